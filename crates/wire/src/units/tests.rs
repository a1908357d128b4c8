//! The field types: what fits, how it prints, how it converts.

use super::*;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use proptest::prelude::*;
use std::string::ToString;
use std::vec::Vec;

#[test]
fn narrow_types_refuse_what_does_not_fit() {
    assert_eq!(Qpn::new(0xFF_FFFF), Some(Qpn::MULTICAST));
    assert_eq!(Qpn::new(0x100_0000), None);
    assert_eq!(RetryCount::new(7), Some(RetryCount::MAX));
    assert_eq!(RetryCount::new(8), None);
    assert_eq!(FlowLabel::new(0x10_0000), None);
    assert_eq!(IbTimeout::new(32), None);
    assert_eq!(Psn::truncate(0x1234_5678).get(), 0x34_5678);
}

#[test]
fn numbers_print_as_logs_want_them() {
    let printed = [
        Qpn::QP1.to_string(),
        Psn::truncate(1000).to_string(),
        CommId(1).to_string(),
        CommId(0x3B34_DF5B).to_string(),
        ServiceId(0x0106_1D2F).to_string(),
        PKey::DEFAULT.to_string(),
        QKey::GSI.to_string(),
        Lid(17).to_string(),
        Guid(0x5054_00FF_FE12_3402).to_string(),
        FlowLabel::truncate(0xAF266).to_string(),
        Mtu::MTU_1024.to_string(),
        Mtu(9).to_string(),
        RejReason(28).to_string(),
        RejReason(99).to_string(),
        SidrStatus::UNSUPPORTED.to_string(),
        SidrStatus(6).to_string(),
        AprStatus::IS_CURRENT.to_string(),
        AprStatus(14).to_string(),
        IbTimeout::truncate(20).to_string(),
    ];
    let wanted = [
        "0x000001",
        "0x0003e8",
        "0x0001",
        "0x3b34df5b",
        "0x0000000001061d2f",
        "0xffff",
        "0x80010000",
        "17",
        "0x505400fffe123402",
        "0xaf266",
        "1024",
        "mtu code 9",
        "consumer defined (28)",
        "reason 99",
        "service ID not supported (1)",
        "status 6",
        "alternate path is the current path (5)",
        "status 14",
        "20 (4.294967296s)",
    ];
    assert_eq!(printed, wanted);
}

#[test]
fn the_statuses_are_numbered_as_in_the_specification() {
    let sidr: Vec<_> = (0..=u8::MAX)
        .filter(|&code| SidrStatus(code).name().is_some())
        .collect();
    assert_eq!(sidr, Vec::from_iter(0..=5));
    let apr: Vec<_> = (0..=u8::MAX)
        .filter(|&code| AprStatus(code).name().is_some())
        .collect();
    assert_eq!(apr, Vec::from_iter(0..=13));
    assert_eq!(
        (SidrStatus::SUCCESS, AprStatus::SUCCESS),
        Default::default()
    );
    assert_eq!(
        (SidrStatus::REJECT.0, SidrStatus::UNSUPPORTED_VERSION.0),
        (2, 5)
    );
    assert_eq!((AprStatus::UNSUPPORTED.0, AprStatus::INVALID_SL.0), (2, 13));
}

#[test]
fn a_group_is_told_from_a_host() {
    for (text, is_multicast) in [
        ("224.0.0.1", true),
        ("239.1.2.3", true),
        ("ff02::1", true),
        ("ff0e::123", true),
        ("10.98.0.1", false),
        ("255.255.255.255", false),
        ("fe80::1", false),
        ("::", false),
    ] {
        let gid = Gid::from_ip(text.parse().expect("an address"));
        assert_eq!(gid.is_multicast(), is_multicast, "{text}");
    }
    let group = Gid::from_ip(IpAddr::from([239, 1, 2, 3]));
    assert_eq!(group.0, *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xef\x01\x02\x03");
}

#[test]
fn psns_compare_on_a_circle() {
    let last = Psn::MAX;
    assert_eq!(last.next(), Psn::default());
    assert!(last.is_before(last.next()) && last.next().is_after(last));
    assert_eq!(last.next().distance_from(last), 1);
    assert_eq!(last.distance_from(last.next()), 0xFF_FFFF);
    assert!(!last.is_before(last) && !last.is_after(last));
    let opposite = last.add(1 << 23);
    assert!(!last.is_before(opposite) && !last.is_after(opposite));
    assert!(last.is_before(opposite.sub(1)) && last.is_after(opposite.next()));
}

#[test]
fn the_path_mtu_leaves_room_for_headers() {
    let cases = [
        (351, None),
        (352, Some(256)),
        (1119, Some(512)),
        (1500, Some(1024)),
        (4191, Some(2048)),
    ];
    for (link, bytes) in cases {
        assert_eq!(
            Mtu::largest_for_link(link).and_then(Mtu::bytes),
            bytes,
            "a link of {link}"
        );
    }
    assert_eq!(Mtu::largest_for_link(4192), Some(Mtu::MTU_4096));
    assert_eq!(Mtu::largest_for_link(65_536), Some(Mtu::MTU_4096));
    let bytes: Vec<_> = (0..=6).map(|code| Mtu(code).bytes()).collect();
    assert_eq!(
        bytes,
        [
            None,
            Some(256),
            Some(512),
            Some(1024),
            Some(2048),
            Some(4096),
            None
        ]
    );
}

#[test]
fn a_timeout_is_exact_and_the_kernels_milliseconds_are_not() {
    assert_eq!(
        IbTimeout::truncate(0).to_duration(),
        Duration::from_nanos(4096)
    );
    assert_eq!(
        IbTimeout::truncate(20).to_duration(),
        Duration::from_nanos(4_294_967_296)
    );
    assert_eq!(IbTimeout::truncate(20).kernel_millis(), 4096);
    assert_eq!(IbTimeout::truncate(16).kernel_millis(), 256);
    assert_eq!(IbTimeout::truncate(3).kernel_millis(), 1);
    assert_eq!(
        IbTimeout::from_duration_ceil(Duration::ZERO),
        IbTimeout::truncate(0)
    );
    assert_eq!(
        IbTimeout::from_duration_ceil(Duration::from_nanos(4097)),
        IbTimeout::truncate(1)
    );
    assert_eq!(IbTimeout::from_duration_ceil(Duration::MAX), IbTimeout::MAX);
}

/// R-ADDR-1: an address and its GID are two spellings of one thing.
#[test]
fn gids_and_addresses_convert_into_each_other() {
    let v4 = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let gid = Gid::from(v4);
    assert_eq!(
        gid.0,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 1]
    );
    assert_eq!((gid.to_ip(), gid.to_string().as_str()), (v4, "192.0.2.1"));
    let link_local = Gid::from_ip("fe80::1".parse().expect("an address"));
    assert!(link_local.is_link_local() && !gid.is_link_local());
    assert_eq!(
        link_local.to_ip(),
        IpAddr::V6(Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 1))
    );
    assert!(Gid::UNSPECIFIED.is_unspecified() && !gid.is_unspecified());
}

#[test]
fn a_path_turned_around_twice_is_itself() {
    let path = AddressVector {
        scope_id: 3,
        ..AddressVector::new(Gid([1; 16]), Gid([2; 16]))
    };
    assert_eq!(path.reversed().local, path.remote);
    assert_eq!(path.reversed().reversed(), path);
}

#[test]
fn service_ids_carry_port_space_and_port() {
    use crate::ip_cm::PortSpace;
    for (space, id) in [
        (PortSpace::TCP, 0x0000_0000_0106_1F40),
        (PortSpace::UDP, 0x0000_0000_0111_1F40),
        (PortSpace::IB, 0x0000_0000_013F_1F40),
    ] {
        let service_id = ServiceId::for_port(space, 8000);
        assert_eq!(service_id, ServiceId(id));
        assert_eq!(
            (service_id.port_space(), service_id.port()),
            (Some(space), Some(8000))
        );
    }
    let foreign = ServiceId(0x1000_0000_0106_1F40);
    assert_eq!((foreign.port_space(), foreign.port()), (None, None));
}

proptest! {
    #[test]
    fn adding_and_taking_away_cancel(psn: u32, count: u32) {
        let psn = Psn::truncate(psn);
        prop_assert_eq!(psn.add(count).sub(count), psn);
        prop_assert_eq!(psn.add(count).distance_from(psn), count & 0xFF_FFFF);
    }

    #[test]
    fn the_rounded_timeout_is_the_shortest_that_is_long_enough(nanos in 1..4096_u64 << 31) {
        let duration = Duration::from_nanos(nanos);
        let timeout = IbTimeout::from_duration_ceil(duration);
        prop_assert!(timeout.to_duration() >= duration);
        if let Some(shorter) = timeout.get().checked_sub(1) {
            prop_assert!(IbTimeout::truncate(shorter).to_duration() < duration);
        }
    }
}
