//! The device on the real port, in a network namespace of its own.

mod support;

use oarlock_device::{Access, DeviceInfo, QpInit};
use oarlock_port::{ForwardToken, Port, UdpPort, UdpSlots, netlink};
use oarlock_transport::{AttrMask, QpAttr, QpState, WcStatus};
use oarlock_wire::{AddressVector, Gid, Mtu, Psn};
use support::{Path, Side, Source, content, filled, pattern, recv, send, to_init, to_rts, whole};

/// Runs `body` in a namespace with the loopback interface up, by running the test `name` again.
fn in_own_namespace(name: &str, body: impl FnOnce()) {
    oarlock_sim::in_namespace(&["-Urn"], name, || {
        netlink::bring_up(LOOPBACK).expect("loopback up");
        body();
    });
}

/// A new namespace's loopback interface is its first (Linux `LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

fn side(slots: &UdpSlots, slot: u8, gid: Gid) -> Side {
    let socket = slots
        .socket(slot)
        .expect("socket")
        .try_clone_to_owned()
        .expect("dup");
    let port = UdpPort::new(slot, socket, ForwardToken(1)).expect("port");
    let info = DeviceInfo {
        netdev_mtu: 65_536,
        ..support::device("lo", gid)
    };
    Side::with_device(Source::new(Port::Udp(port)), info)
}

/// Messages both ways, with full packets of 4096 bytes, so that bursts and merged receives occur.
fn exchange(slots: &UdpSlots, first_slot: u8, gid: Gid) {
    let (a, b) = (
        side(slots, first_slot, gid),
        side(slots, first_slot + 1, gid),
    );
    let (qa, qb) = (a.qp(QpInit::default()), b.qp(QpInit::default()));
    for (side, qp, peer_side, peer) in [(&a, &qa, &b, &qb), (&b, &qb, &a, &qa)] {
        let path = Path::between(side, peer_side);
        to_init(qp);
        qp.modify(&QpAttr {
            mask: AttrMask::STATE
                | AttrMask::AV
                | AttrMask::PATH_MTU
                | AttrMask::DEST_QPN
                | AttrMask::RQ_PSN
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::MIN_RNR_TIMER,
            state: QpState::Rtr,
            av: AddressVector::new(gid, gid),
            path_mtu: Mtu::MTU_4096,
            dest_qpn: peer.qpn(),
            rq_psn: Psn::truncate(peer.qpn().get()),
            min_rnr_timer: 1,
            ..QpAttr::default()
        })
        .expect("rtr");
        to_rts(qp, &path);
    }
    for (round, len) in [1, 64, 4096, 4097, 65_536, 1_000_003]
        .into_iter()
        .enumerate()
    {
        for (from, to, sender, receiver) in [(&a, &b, &qa, &qb), (&b, &a, &qb, &qa)] {
            let target = to.pd.allocate(len, Access::LOCAL_WRITE).expect("region");
            let bytes = pattern(round, len);
            let source = filled(from, &bytes);
            recv(receiver, 1, &[whole(&target)]);
            send(sender, 2, &[whole(&source)]);
            let received = to.collect(1).remove(0).completion;
            assert_eq!(
                (received.status, received.byte_len as usize),
                (WcStatus::SUCCESS, len)
            );
            assert!(content(&target) == bytes, "content of {len} bytes");
            assert_eq!(from.collect(1)[0].completion.status, WcStatus::SUCCESS);
        }
    }
    for side in [&a, &b] {
        for dropped in [
            "malformed",
            "no_such_qp",
            "foreign_slot",
            "send_failed",
            "port_icrc_bad",
        ] {
            assert_eq!(side.counter(dropped), 0, "{dropped}");
        }
    }
}

#[test]
fn messages_pass_over_ipv4_and_ipv6_on_port_4791() {
    in_own_namespace("messages_pass_over_ipv4_and_ipv6_on_port_4791", || {
        let slots = UdpSlots::open().expect("port 4791");
        exchange(&slots, 1, Gid::from_ip([127, 0, 0, 1].into()));
        if slots.is_ipv6() {
            exchange(
                &slots,
                11,
                Gid::from_ip(std::net::Ipv6Addr::LOCALHOST.into()),
            );
        } else {
            oarlock_sim::not_run("ipv6", "this system has no IPv6");
        }
    });
}
