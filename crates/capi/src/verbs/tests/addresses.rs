use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ptr;

use oarlock_wire::{AddressVector, FlowLabel, Gid, Grh};

use super::{Opened, last};
use crate::abi::*;
use crate::verbs::ah::*;
use crate::verbs::context::Context;
use crate::verbs::pd::{ibv_alloc_pd, ibv_dealloc_pd};

fn attr(remote: &str, sgid_index: u8) -> ibv_ah_attr {
    let ip: IpAddr = remote.parse().expect("an address");
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid {
                raw: Gid::from_ip(ip).0,
            },
            flow_label: 5,
            sgid_index,
            hop_limit: 0,
            traffic_class: 8,
        },
        dlid: 1,
        sl: 3,
        src_path_bits: 1,
        static_rate: 2,
        is_global: 1,
        port_num: 1,
    }
}

fn vector(opened: &Opened, attr: &ibv_ah_attr) -> Result<AddressVector, i32> {
    // SAFETY: a context of this library.
    let context = unsafe { Context::of(opened.context) };
    vector_of(context, attr).map_err(|refused| refused.errno.0)
}

#[test]
fn a_path_has_what_packets_carry() {
    let opened = Opened::new();
    let path = vector(&opened, &attr("10.1.2.3", 0)).expect("a path");
    assert_eq!(path.local.to_string(), "127.0.0.1");
    assert_eq!(path.remote.to_string(), "10.1.2.3");
    assert_eq!((path.traffic_class, path.hop_limit), (8, 64));
    assert_eq!(
        (path.flow_label, path.service_level),
        (FlowLabel::default(), 0)
    );
    assert_eq!(path.scope_id, 0);
    let group = vector(&opened, &attr("239.1.2.3", 0)).expect("a path");
    assert_eq!(group.hop_limit, 1, "0 would not leave the host");
    assert_ne!(group.scope_id, 0);
    let local = vector(&opened, &attr("fe80::1", 1)).expect("a path");
    assert_ne!(local.scope_id, 0);
}

#[test]
fn what_is_no_path_of_the_port_is_refused() {
    let opened = Opened::new();
    let good = attr("10.1.2.3", 0);
    let no_route = ibv_ah_attr {
        is_global: 0,
        ..good
    };
    let no_port = ibv_ah_attr {
        port_num: 2,
        ..good
    };
    let wrong = [
        (no_route, libc::EINVAL),
        (no_port, libc::EINVAL),
        (attr("10.1.2.3", 9), libc::ENODATA),
        (attr("10.1.2.3", 1), libc::EINVAL),
        (attr("fd00::1", 0), libc::EINVAL),
        (attr("::", 1), libc::EINVAL),
    ];
    for (case, (mut wrong, errno)) in wrong.into_iter().enumerate() {
        assert_eq!(vector(&opened, &wrong), Err(errno), "case {case}");
        // SAFETY: refused.
        let ah = unsafe { ibv_create_ah(opened.pd, &raw mut wrong) };
        assert!(ah.is_null());
        assert_eq!(last(), errno);
    }
}

#[test]
fn a_handle_is_in_its_domain() {
    let opened = Opened::new();
    let mut attr = attr("127.0.0.1", 0);
    // SAFETY: objects of this library, each freed once.
    unsafe {
        let pd = ibv_alloc_pd(opened.context);
        let ah = ibv_create_ah(pd, &raw mut attr);
        assert_eq!(((*ah).context, (*ah).pd), (opened.context, pd));
        assert_eq!(
            AddressHandle::of(ah).vector().remote.to_string(),
            "127.0.0.1"
        );
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!(ibv_destroy_ah(ah), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
}

/// A completion with a header of a datagram from 10.0.0.9 to `to`.
fn received(to: &str) -> (ibv_wc, [u8; 40]) {
    // SAFETY: integers, for which zero is a value.
    let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
    wc.wc_flags = IBV_WC_GRH;
    wc.sl = 2;
    let grh = Grh {
        source: "10.0.0.9".parse().expect("an address"),
        destination: to.parse().expect("an address"),
        traffic_class: 12,
        flow_label: FlowLabel::default(),
        hop_limit: 61,
        payload_len: 64,
    };
    (wc, grh.to_bytes())
}

#[test]
fn an_answer_goes_back_the_way_that_the_datagram_came() {
    let opened = Opened::new();
    let (mut wc, mut grh) = received("127.0.0.1");
    let grh = grh.as_mut_ptr().cast::<ibv_grh>();
    let mut answer = MaybeUninit::<ibv_ah_attr>::uninit();
    // SAFETY: objects of this library, and room for what is asked.
    unsafe {
        assert_eq!(
            ibv_init_ah_from_wc(opened.context, 1, &raw mut wc, grh, answer.as_mut_ptr()),
            0
        );
        let answer = answer.assume_init();
        assert_eq!((answer.is_global, answer.port_num, answer.sl), (1, 1, 2));
        assert_eq!(gid_of(&answer.grh.dgid).to_string(), "10.0.0.9");
        assert_eq!(answer.grh.sgid_index, 0);
        assert_eq!((answer.grh.hop_limit, answer.grh.traffic_class), (61, 12));
        let ah = ibv_create_ah_from_wc(opened.pd, &raw mut wc, grh, 1);
        assert_eq!(
            AddressHandle::of(ah).vector().remote.to_string(),
            "10.0.0.9"
        );
        assert_eq!(ibv_destroy_ah(ah), 0);
    }
}

#[test]
fn a_datagram_without_a_sender_to_answer_to_is_refused() {
    let opened = Opened::new();
    let mut room = MaybeUninit::<ibv_ah_attr>::uninit();
    let mut ask = |wc: &mut ibv_wc, mut grh: [u8; 40]| {
        let grh = grh.as_mut_ptr().cast();
        // SAFETY: objects of this library, and room for what is asked.
        let answer = unsafe { ibv_init_ah_from_wc(opened.context, 1, wc, grh, room.as_mut_ptr()) };
        (answer, last())
    };
    let (mut wc, to_group) = received("239.1.2.3");
    assert_eq!(ask(&mut wc, to_group), (-1, libc::EINVAL));
    let (mut wc, to_other) = received("127.0.0.2");
    assert_eq!(ask(&mut wc, to_other), (-1, libc::EINVAL));
    assert_eq!(ask(&mut wc, [0; 40]), (-1, libc::EPROTONOSUPPORT));
    // Without a header there is no global route, and a handle of it is refused on this device.
    wc.wc_flags = 0;
    assert_eq!(ask(&mut wc, [0; 40]).0, 0);
    // SAFETY: the header is not looked at.
    let ah = unsafe { ibv_create_ah_from_wc(opened.pd, &raw mut wc, ptr::null_mut(), 1) };
    assert!(ah.is_null());
    assert_eq!(last(), libc::EINVAL);
}

#[test]
fn groups_have_hardware_addresses_of_their_own() {
    let opened = Opened::new();
    for (group, index, expected) in [
        ("239.129.2.3", 0, [0x01, 0x00, 0x5e, 0x01, 2, 3]),
        ("ff15::1:2:3", 1, [0x33, 0x33, 0, 2, 0, 3]),
    ] {
        let (mut mac, mut vid) = ([0; 6], 0);
        // SAFETY: objects of this library, and room for what is asked.
        let answer = unsafe {
            let mut attr = attr(group, index);
            ibv_resolve_eth_l2_from_gid(opened.context, &raw mut attr, &raw mut mac, &raw mut vid)
        };
        assert_eq!((answer, mac, vid), (0, expected, 0xffff), "{group}");
    }
    let (mut mac, mut vid) = ([0; 6], 0);
    let mut wrong = attr("10.1.2.3", 9);
    // SAFETY: refused.
    let answer = unsafe {
        ibv_resolve_eth_l2_from_gid(opened.context, &raw mut wrong, &raw mut mac, &raw mut vid)
    };
    assert_eq!(answer, -libc::ENODATA);
}
