//! Datagrams: destinations, keys, the GRH before each message, groups.

use std::net::IpAddr;

use oarlock_device::{Error as DeviceError, QpInit};
use oarlock_transport::{
    AttrMask, Counter, Error, QpAttr, QpType, SendData, SendOp, SendWr, UdDestination,
};
use oarlock_wire::{AddressVector, Gid, Grh, Mtu, QKey, Qpn};

use crate::end::{End, content};
use crate::support::ends::Link;
use crate::support::{KEY, eventually, pattern};
use crate::{assert_same, cases};

cases! {
    /// 40 bytes before the message say who sent it, from where, to where.
    grh: grh_from, grh_into;
    /// A message with another key, or for another queue pair, or longer than the buffer, is dropped, and counted.
    datagrams_dropped: dropped_from, dropped_into;
    /// A key with the top bit set stands for the sender's own.
    own_q_key: own_key_from, own_key_into;
    /// What no datagram can be is refused.
    datagrams_refused: refused, refused;
    /// Every attached queue pair gets a copy, the sender's own too; a detached one none.
    multicast: group_from, group_into;
}

fn grh_from(end: &mut End) {
    let conn = end.open(QpType::Ud);
    end.tell(&[conn.qp.qpn().get().into()]);
    let to = conn.to.expect("a destination");
    for (round, hop_limit) in [(1, 64), (2, 3)] {
        let to = UdDestination {
            av: AddressVector {
                traffic_class: 4 * round,
                hop_limit,
                ..to.av
            },
            ..to
        };
        end.meet();
        let bytes = pattern(7, 100);
        conn.post(&SendWr {
            ud: Some(to),
            data: SendData::Inline(&bytes[..50]),
            ..SendWr::default()
        });
        end.next();
        end.meet();
    }
}

fn grh_into(end: &mut End) {
    let conn = end.open(QpType::Ud);
    let [sender] = end.told();
    for round in [1, 2] {
        let buffer = end.ready(&conn, 1, 60);
        end.meet();
        let (done, message) = end.received(&conn, &buffer);
        assert_eq!((done.has_grh, done.pkey_index, done.sl), (true, 0, 0));
        assert_eq!(u64::from(done.src_qp.get()), sender);
        assert_eq!(done.byte_len as usize, Grh::LEN + 50);
        assert_same!(message, pattern(7, 100)[..50]);
        let bytes = content(&buffer);
        let grh = Grh::parse(bytes.first_chunk().expect("40 bytes")).expect("a GRH");
        let expected: (IpAddr, IpAddr) = (end.there.to_ip(), end.here.to_ip());
        assert_eq!((grh.source, grh.destination), expected);
        assert_eq!(
            (grh.traffic_class, grh.hop_limit),
            (4 * round, [64, 3][round as usize - 1])
        );
        end.meet();
    }
}

fn dropped_from(end: &mut End) {
    let conn = end.open(QpType::Ud);
    let to = conn.to.expect("a destination");
    end.meet();
    let long = end.filled(&[3; 200]);
    let send = |to: UdDestination, len: u32| {
        conn.post(&SendWr {
            ud: Some(to),
            data: SendData::Sges(&[long.sge(0, len)]),
            ..SendWr::default()
        });
        assert!(end.next().status.is_success(), "nobody acknowledges");
    };
    send(
        UdDestination {
            remote_qkey: QKey(KEY.0 + 1),
            ..to
        },
        8,
    );
    send(to, 65);
    let other = Qpn::truncate(to.remote_qpn.get() ^ 0x8000);
    send(
        UdDestination {
            remote_qpn: other,
            ..to
        },
        8,
    );
    send(to, 64);
    end.meet();
}

fn dropped_into(end: &mut End) {
    let conn = end.open(QpType::Ud);
    let buffer = end.ready(&conn, 1, 64);
    end.meet();
    let (_, message) = end.received(&conn, &buffer);
    assert_eq!(message, [3; 64]);
    let counted = |counter| conn.count(counter);
    assert_eq!(counted(Counter::DroppedWrongQkey), 1);
    assert_eq!(counted(Counter::DroppedNoRoom), 1);
    eventually("the one for nobody", || end.side.counter("no_such_qp") == 1);
    end.nothing();
    end.meet();
}

fn own_key_from(end: &mut End) {
    let conn = end.open(QpType::Ud);
    let own = QKey(0x55);
    conn.qp
        .modify(&QpAttr {
            mask: AttrMask::QKEY,
            qkey: own,
            ..QpAttr::default()
        })
        .expect("RTS to RTS");
    end.meet();
    conn.post(&SendWr {
        ud: conn.to.map(|to| UdDestination {
            remote_qkey: QKey(1 << 31),
            ..to
        }),
        ..SendWr::default()
    });
    end.next();
    end.meet();
}

fn own_key_into(end: &mut End) {
    let conn = end.open(QpType::Ud);
    conn.qp
        .modify(&QpAttr {
            mask: AttrMask::QKEY,
            qkey: QKey(0x55),
            ..QpAttr::default()
        })
        .expect("RTS to RTS");
    let buffer = end.ready(&conn, 1, 0);
    end.meet();
    end.received(&conn, &buffer);
    end.meet();
}

fn refused(end: &mut End) {
    let conn = end.open(QpType::Ud);
    let to = conn.to.expect("a destination");
    let bytes = end.region(4097, crate::end::EVERYTHING);
    let sges = [bytes.sge(0, 4097)];
    let wr = conn.wr(SendOp::Send);
    let long = SendWr {
        data: SendData::Sges(&sges),
        ..wr
    };
    let mtu = Mtu::MTU_4096;
    assert_eq!(
        conn.refused(&long),
        Error::DatagramTooLong { given: 4097, mtu }
    );
    assert_eq!(
        conn.refused(&SendWr { ud: None, ..wr }),
        Error::NoDestination
    );
    let group = UdDestination {
        remote_qpn: Qpn::MULTICAST,
        ..to
    };
    let refused = conn.refused(&SendWr {
        ud: Some(group),
        ..wr
    });
    assert!(matches!(refused, Error::MulticastQpn { .. }), "{refused}");
    let attach = conn.qp.attach_multicast(end.there).unwrap_err();
    assert!(matches!(attach, DeviceError::NotMulticast(_)), "{attach}");
    let nobody = conn.qp.detach_multicast(group_of(end)).unwrap_err();
    assert!(matches!(nobody, DeviceError::NotAttached(_)), "{nobody}");
    let connected = end.open_with(QpType::Rc, QpInit::default(), &Link::default());
    let refused = connected.refused(&SendWr {
        ud: Some(to),
        ..SendWr::default()
    });
    assert_eq!(refused, Error::UnexpectedDestination);
    let attach = connected.qp.attach_multicast(group_of(end)).unwrap_err();
    assert!(matches!(attach, DeviceError::NotUd { .. }), "{attach}");
    end.meet();
}

/// A group of the medium's kind of address, within the host for IPv6.
fn group_of(end: &End) -> Gid {
    match end.here.to_ip() {
        IpAddr::V4(_) => Gid::from_ip([239, 1, 2, 3].into()),
        IpAddr::V6(_) => {
            let address: std::net::Ipv6Addr = "ff01::4791".parse().expect("an address");
            Gid::from_ip(address.into())
        }
    }
}

fn to_group(end: &End) -> UdDestination {
    UdDestination {
        av: AddressVector {
            scope_id: end.side.context.device().ifindex,
            ..AddressVector::new(end.here, group_of(end))
        },
        remote_qpn: Qpn::MULTICAST,
        remote_qkey: KEY,
    }
}

fn group_from(end: &mut End) {
    let conn = end.open(QpType::Ud);
    conn.qp.attach_multicast(group_of(end)).expect("attach");
    let mine = end.ready(&conn, 9, 4);
    end.meet();
    let to = to_group(end);
    for text in [b"all ", b"less"] {
        conn.post(&SendWr {
            ud: Some(to),
            data: SendData::Inline(text),
            ..SendWr::default()
        });
        // The send, and with the first the own copy.
        let count = if text == b"all " { 2 } else { 1 };
        for done in end.nexts(count) {
            assert!(done.status.is_success());
        }
        end.meet();
    }
    assert_eq!(content(&mine)[Grh::LEN..], *b"all ");
}

fn group_into(end: &mut End) {
    let conn = end.open(QpType::Ud);
    let other = end.side.qp(QpInit {
        qp_type: QpType::Ud,
        ..QpInit::default()
    });
    for attr in end.way(QpType::Ud, Qpn::QP0, &Link::default()) {
        other.modify(&attr).expect("modify");
    }
    let other = crate::conn::Conn {
        qp: other,
        to: None,
        srqn: None,
        srq: None,
    };
    for qp in [&conn.qp, &other.qp] {
        qp.attach_multicast(group_of(end)).expect("attach");
    }
    // Twice is once.
    conn.qp.attach_multicast(group_of(end)).expect("attach");
    let buffers = [(&conn, 1), (&conn, 2), (&other, 3), (&other, 4)]
        .map(|(conn, wr_id)| end.ready(conn, wr_id, 4));
    end.meet();
    let mut numbers: Vec<u64> = end.nexts(2).iter().map(|done| done.wr_id).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 3]);
    for i in [0, 2] {
        let bytes = content(&buffers[i]);
        assert_eq!(bytes[Grh::LEN..], *b"all ");
        let grh = Grh::parse(bytes.first_chunk().expect("40 bytes")).expect("a GRH");
        assert_eq!(grh.destination, group_of(end).to_ip());
    }
    other.qp.detach_multicast(group_of(end)).expect("attached");
    end.meet();
    assert_eq!(end.next().wr_id, 2);
    end.meet();
    end.nothing();
}
