//! Every operation of every transport service: what arrives, where, and what the completions say.

use oarlock_device::{Access, QpInit, Window, WindowType};
use oarlock_transport::{
    BindWindow, QpType, RemoteAddress, SendData, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};
use oarlock_wire::{Grh, Mtu, RKey};

use crate::conn::{Conn, RELIABLE, SERVICES, WRITING};
use crate::end::{EVERYTHING, End, content};
use crate::support::ends::Link;
use crate::support::pattern;
use crate::{assert_same, cases};

pub(crate) const MTUS: [Mtu; 5] = [
    Mtu::MTU_256,
    Mtu::MTU_512,
    Mtu::MTU_1024,
    Mtu::MTU_2048,
    Mtu::MTU_4096,
];

cases! {
    /// SEND of lengths around every path MTU, out of three elements into two.
    send: |end| each_length(end, send_from, false), |end| each_length(end, send_into, false);
    /// The value reaches the receiver's completion.
    send_with_immediate: |end| each_length(end, send_from, true), |end| each_length(end, send_into, true);
    /// WRITE changes exactly the bytes that it names, and takes no receive.
    write: |end| each_write(end, write_from, false), |end| each_write(end, write_into, false);
    /// WRITE with immediate takes a receive, whose buffer stays as it was.
    write_with_immediate: |end| each_write(end, write_from, true), |end| each_write(end, write_into, true);
    /// READ brings exactly the bytes that it names.
    read: read_from, read_out_of;
    compare_and_swap: swap_from, word_of_swaps;
    fetch_and_add: add_from, word_of_sums;
    send_with_invalidate: invalidate_from, invalidate_into;
    local_invalidate: invalidated_from, invalidated_at_home;
    /// Binding and invalidating are the requester's own affair, on every connected type.
    local_operations_by_type: |end| {
        for service in WRITING {
            let conn = end.open(service);
            let region = end.region(8, EVERYTHING);
            let (window, rkey) = window_on(end, &conn, &region, 5, Access::REMOTE_READ);
            assert_eq!(window.bound().map(|bound| bound.len), Some(8));
            end.run(&conn, SendOp::LocalInvalidate(rkey), &[]);
            assert_eq!(window.bound(), None);
            end.meet();
        }
    }, |end| {
        for service in WRITING {
            let _conn = end.open(service);
            end.meet();
        }
    };
    /// Inline data are the program's again when the request is posted.
    inline: inline_from, inline_into;
    /// As many elements as the queue was made for, and no more.
    scatter_gather_limit: elements_from, elements_into;
    /// A READ or WRITE of no bytes looks at no key; a SEND of none takes a receive.
    zero_length: nothing_from, nothing_into;
    /// Packet sequence numbers wrap within messages of every kind.
    psn_wrap: wrap_from, wrap_into;
}

/// Runs `body` for every service, path MTU and a set of lengths.
fn each_length(end: &mut End, body: fn(&mut End, &Conn, usize, Option<u32>), with_imm: bool) {
    for service in SERVICES {
        for mtu in MTUS {
            let link = Link {
                mtu,
                ..Link::default()
            };
            let conn = end.open_with(service, QpInit::default(), &link);
            let mtu = usize::from(mtu.bytes().expect("a real one"));
            let lengths = [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5];
            let single = if service == QpType::Ud { 4 } else { 6 };
            for len in &lengths[..single] {
                body(
                    end,
                    &conn,
                    *len,
                    with_imm.then_some(0xfeed_0000 + *len as u32),
                );
                end.meet();
            }
        }
    }
}

fn send_op(imm: Option<u32>) -> SendOp {
    imm.map_or(SendOp::Send, SendOp::SendWithImm)
}

/// Elements that together are `len` bytes from the front of `region`, of lengths that no packet has.
fn parts(region: &oarlock_device::Region, len: usize, count: usize) -> Vec<Sge> {
    let piece = len / count;
    (0..count)
        .map(|i| {
            let this = if i + 1 == count {
                len - i * piece
            } else {
                piece
            };
            region.sge((i * piece) as u64, this as u32)
        })
        .collect()
}

fn send_from(end: &mut End, conn: &Conn, len: usize, imm: Option<u32>) {
    let source = end.filled(&pattern(len, len + 1));
    // The buffer is there.
    end.meet();
    let done = end.run(conn, send_op(imm), &parts(&source, len, 3));
    assert_eq!((done.byte_len as usize, done.imm), (len, None));
}

fn send_into(end: &mut End, conn: &Conn, len: usize, imm: Option<u32>) {
    let room = conn.header() + len;
    let buffer = end.region(room + 1, Access::LOCAL_WRITE);
    conn.recv(5, &parts(&buffer, room, 2));
    end.meet();
    let (done, message) = end.received(conn, &buffer);
    assert_eq!((done.wr_id, done.opcode), (5, WcOpcode::RECV));
    assert_eq!((done.imm, done.byte_len as usize), (imm, room));
    assert_same!(message, pattern(len, len + 1)[..len]);
    assert_eq!(content(&buffer)[room], 0, "the byte behind");
}

fn each_write(end: &mut End, body: fn(&mut End, &Conn, usize, Option<u32>), with_imm: bool) {
    for service in WRITING {
        for mtu in MTUS {
            let link = Link {
                mtu,
                ..Link::default()
            };
            let conn = end.open_with(service, QpInit::default(), &link);
            let mtu = usize::from(mtu.bytes().expect("a real one"));
            for len in [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5] {
                body(
                    end,
                    &conn,
                    len,
                    with_imm.then_some(0xbeef_0000 + len as u32),
                );
                end.meet();
            }
        }
    }
}

pub(crate) fn at(remote: RemoteAddress, offset: u64) -> RemoteAddress {
    RemoteAddress {
        addr: remote.addr + offset,
        ..remote
    }
}

fn write_from(end: &mut End, conn: &Conn, len: usize, imm: Option<u32>) {
    let source = end.filled(&pattern(len, len + 1));
    let remote = at(end.offered(), 3);
    let op = match imm {
        Some(imm) => SendOp::WriteWithImm(remote, imm),
        None => SendOp::Write(remote),
    };
    let done = end.run(conn, op, &parts(&source, len, 3));
    assert_eq!(done.byte_len as usize, len);
    // A message behind it, so that the other side knows that it is there, acknowledged or not.
    end.run(conn, SendOp::Send, &[]);
}

fn write_into(end: &mut End, conn: &Conn, len: usize, imm: Option<u32>) {
    let target = end.region(len + 8, EVERYTHING);
    let buffer = imm.map(|imm| (imm, end.ready(conn, 6, 16)));
    let last = end.ready(conn, 7, 0);
    end.offer(&target);
    if let Some((imm, buffer)) = buffer {
        let done = end.next();
        assert_eq!((done.status, done.wr_id), (WcStatus::SUCCESS, 6));
        assert_eq!(done.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
        assert_eq!((done.imm, done.byte_len as usize), (Some(imm), len));
        assert_eq!(content(&buffer), [0; 16], "no byte of a WRITE");
    }
    assert_eq!(end.received(conn, &last).0.wr_id, 7);
    let placed = content(&target);
    assert_same!(placed[3..][..len], pattern(len, len + 1)[..len]);
    assert_eq!(
        (&placed[..3], &placed[3 + len..]),
        (&[0; 3][..], &[0; 5][..])
    );
}

fn read_from(end: &mut End) {
    for service in RELIABLE {
        for mtu in MTUS {
            let link = Link {
                mtu,
                ..Link::default()
            };
            let conn = end.open_with(service, QpInit::default(), &link);
            let mtu = usize::from(mtu.bytes().expect("a real one"));
            let remote = end.offered();
            for len in [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 60_001] {
                let target = end.region(len + 1, Access::LOCAL_WRITE);
                let op = SendOp::Read(at(remote, 11));
                let done = end.run(&conn, op, &parts(&target, len, 3));
                assert_eq!(done.byte_len as usize, len);
                let read = content(&target);
                assert_same!(read[..len], pattern(1, 70_000)[11..][..len]);
                assert_eq!(read[len], 0, "the byte behind");
            }
            end.meet();
        }
    }
}

fn read_out_of(end: &mut End) {
    for service in RELIABLE {
        for mtu in MTUS {
            let link = Link {
                mtu,
                ..Link::default()
            };
            let _conn = end.open_with(service, QpInit::default(), &link);
            let source = end.region(70_000, EVERYTHING);
            source.copy_in(0, &pattern(1, 70_000)).expect("as long");
            end.offer(&source);
            end.meet();
            assert_same!(
                content(&source),
                pattern(1, 70_000),
                "reading changes nothing"
            );
        }
    }
}

/// The word that atomics work on is the second of three.
fn word(end: &mut End) -> RemoteAddress {
    at(end.offered(), 8)
}

fn swap_from(end: &mut End) {
    for service in RELIABLE {
        let conn = end.open(service);
        let remote = word(end);
        let result = end.region(8, Access::LOCAL_WRITE);
        for (compare, swap, before) in [(7, 9, 5), (5, 9, 5), (5, 1, 9), (9, u64::MAX, 9)] {
            let op = SendOp::CompareSwap {
                remote,
                compare,
                swap,
            };
            assert_eq!(end.run(&conn, op, &[result.sge(0, 8)]).byte_len, 8);
            assert_eq!(result.load_u64(0).expect("aligned"), before);
        }
        end.meet();
    }
}

fn word_of_swaps(end: &mut End) {
    words(end, 5, u64::MAX);
}

fn words(end: &mut End, before: u64, after: u64) {
    for service in RELIABLE {
        let _conn = end.open(service);
        let memory = end.region(24, EVERYTHING);
        memory.store_u64(8, before).expect("aligned");
        end.offer(&memory);
        end.meet();
        let value = |offset| memory.load_u64(offset).expect("aligned");
        assert_eq!((value(0), value(8), value(16)), (0, after, 0));
    }
}

fn add_from(end: &mut End) {
    for service in RELIABLE {
        let conn = end.open(service);
        let remote = word(end);
        let result = end.region(8, Access::LOCAL_WRITE);
        for (add, before) in [
            (1, 100),
            (u64::MAX, 101),
            (1 << 63, 100),
            (1 << 63, (1 << 63) + 100),
        ] {
            let op = SendOp::FetchAdd { remote, add };
            // Two elements take the eight bytes as well as one.
            end.run(&conn, op, &[result.sge(0, 3), result.sge(3, 5)]);
            assert_eq!(result.load_u64(0).expect("aligned"), before);
        }
        end.meet();
    }
}

fn word_of_sums(end: &mut End) {
    words(end, 100, 100);
}

/// A type 2 window on all of a region of ours, bound on `conn`.
pub(crate) fn window_on(
    end: &End,
    conn: &Conn,
    region: &oarlock_device::Region,
    variant: u8,
    access: Access,
) -> (Window, RKey) {
    let window = Window::new(&end.side.pd, WindowType::Two).expect("window");
    let rkey = RKey((window.rkey().0 & !0xff) | u32::from(variant));
    let bind = BindWindow {
        window: window.rkey(),
        rkey,
        region: region.lkey(),
        addr: region.iova(),
        len: region.len(),
        access,
    };
    end.run(conn, SendOp::BindWindow(bind), &[]);
    assert_eq!(window.rkey(), rkey);
    (window, rkey)
}

fn invalidate_from(end: &mut End) {
    let conn = end.open(QpType::Rc);
    for len in [0, 10, 5000] {
        let remote = end.offered();
        let source = end.filled(&pattern(len, len + 1));
        let message = [source.sge(0, len as u32)];
        end.run(&conn, SendOp::Write(remote), &[source.sge(0, 1)]);
        end.run(&conn, SendOp::SendWithInvalidate(remote.rkey), &message);
    }
    let gone = end.offered();
    let source = end.filled(b"x");
    let done = end.attempt(&conn, SendOp::Write(gone), &[source.sge(0, 1)]);
    assert_eq!(done.status, WcStatus::REM_ACCESS_ERR);
    end.meet();
    // A target of XRC has no send queue, hence no windows of type 2 of its own: the key is none.
    for len in [0, 2000] {
        let conn = end.open(QpType::XrcInitiator);
        let remote = end.offered();
        let source = end.filled(&pattern(len, len + 1));
        let op = SendOp::SendWithInvalidate(remote.rkey);
        let done = end.attempt(&conn, op, &[source.sge(0, len as u32)]);
        assert_eq!(done.status, WcStatus::REM_ACCESS_ERR);
        end.meet();
    }
}

fn invalidate_into(end: &mut End) {
    let conn = end.open(QpType::Rc);
    let region = end.region(64, EVERYTHING);
    let mut last = None;
    for (variant, len) in [(1, 0), (2, 10), (3, 5000)] {
        let buffer = end.ready(&conn, 1, len);
        let (window, rkey) = window_on(end, &conn, &region, variant, Access::REMOTE_WRITE);
        end.tell(&[region.iova(), rkey.0.into()]);
        let (done, message) = end.received(&conn, &buffer);
        assert_eq!(
            (done.opcode, done.invalidated),
            (WcOpcode::RECV, Some(rkey))
        );
        assert_same!(message, pattern(len, len + 1)[..len]);
        assert_eq!(window.bound(), None, "taken away before it is told");
        last = Some(rkey);
    }
    let rkey = last.expect("three rounds");
    end.tell(&[region.iova(), rkey.0.into()]);
    end.meet();
    for len in [0, 2000] {
        let conn = end.open(QpType::XrcInitiator);
        let _buffer = end.ready(&conn, 2, len);
        end.offer(&region);
        assert_eq!(end.next().status, WcStatus::REM_INV_REQ_ERR);
        end.meet();
    }
}

/// Takes away a window of our own; the peer has used it before and fails afterwards.
fn invalidated_from(end: &mut End) {
    let conn = end.open(QpType::Rc);
    let remote = end.offered();
    let source = end.filled(b"before");
    end.run(&conn, SendOp::Write(remote), &[source.sge(0, 6)]);
    end.meet();
    end.meet();
    let done = end.attempt(&conn, SendOp::Write(remote), &[source.sge(0, 6)]);
    assert_eq!(done.status, WcStatus::REM_ACCESS_ERR);
    end.meet();
}

fn invalidated_at_home(end: &mut End) {
    let conn = end.open(QpType::Rc);
    let region = end.region(6, EVERYTHING);
    let (window, rkey) = window_on(end, &conn, &region, 9, Access::REMOTE_WRITE);
    end.tell(&[region.iova(), rkey.0.into()]);
    end.meet();
    assert_eq!(content(&region), b"before");
    region.copy_in(0, &[0; 6]).expect("as long");
    end.run(&conn, SendOp::LocalInvalidate(rkey), &[]);
    assert_eq!(window.bound(), None);
    end.meet();
    end.meet();
    assert_eq!(content(&region), [0; 6]);
}

fn inline_from(end: &mut End) {
    let limit = 100;
    for service in SERVICES {
        let init = QpInit {
            max_inline_data: limit as u32,
            ..QpInit::default()
        };
        let conn = end.open_with(service, init, &Link::default());
        let remote = (service != QpType::Ud).then(|| end.offered());
        // The buffers are there.
        end.meet();
        let ops = [Some(SendOp::Send), remote.map(SendOp::Write)];
        for op in ops.into_iter().flatten() {
            let mut bytes = pattern(3, limit + 1);
            let too_long = SendWr {
                data: SendData::Inline(&bytes),
                ..conn.wr(op)
            };
            assert_eq!(
                conn.refused(&too_long),
                oarlock_transport::Error::InlineTooLong {
                    given: limit + 1,
                    max: limit as u32
                }
            );
            conn.post(&SendWr {
                data: SendData::Inline(&bytes[..limit]),
                ..conn.wr(op)
            });
            // Whenever the packet is built, or built again: not of these.
            bytes.fill(0xee);
            assert_eq!(end.next().status, WcStatus::SUCCESS);
        }
        end.run(&conn, SendOp::Send, &[]);
        end.meet();
    }
}

fn inline_into(end: &mut End) {
    let limit = 100;
    for service in SERVICES {
        let conn = end.open(service);
        let target = end.region(limit, EVERYTHING);
        if service != QpType::Ud {
            end.offer(&target);
        }
        let buffer = end.ready(&conn, 1, limit);
        let last = end.ready(&conn, 2, 0);
        end.meet();
        let (_, message) = end.received(&conn, &buffer);
        assert_same!(message, pattern(3, limit + 1)[..limit]);
        end.received(&conn, &last);
        if service != QpType::Ud {
            assert_same!(content(&target), pattern(3, limit + 1)[..limit]);
        }
        end.meet();
    }
}

fn elements_from(end: &mut End) {
    for service in SERVICES {
        let init = QpInit {
            max_send_sge: 7,
            max_recv_sge: 4,
            ..QpInit::default()
        };
        let conn = end.open_with(service, init, &Link::default());
        let source = end.filled(&pattern(8, 70));
        end.meet();
        let sges = parts(&source, 70, 8);
        let refused = conn.refused(&SendWr {
            data: SendData::Sges(&sges),
            ..conn.wr(SendOp::Send)
        });
        assert_eq!(
            refused,
            oarlock_transport::Error::TooManySges { given: 8, max: 7 }
        );
        end.run(&conn, SendOp::Send, &parts(&source, 70, 7));
        end.meet();
    }
}

fn elements_into(end: &mut End) {
    for service in SERVICES {
        let init = QpInit {
            max_recv_sge: 4,
            ..QpInit::default()
        };
        let conn = end.open_with(service, init, &Link::default());
        let room = conn.header() + 70;
        let buffer = end.region(room, Access::LOCAL_WRITE);
        let five = parts(&buffer, room, 5);
        let wr = oarlock_transport::RecvWr {
            wr_id: 1,
            sges: &five,
        };
        let refused = match &conn.srq {
            Some(srq) => srq.post_recv(&wr),
            None => conn.qp.post_recv(&wr),
        };
        assert!(matches!(
            refused,
            Err(oarlock_device::Error::QueuePair(
                oarlock_transport::Error::TooManySges { given: 5, max: 4 }
            ))
        ));
        conn.recv(1, &parts(&buffer, room, 4));
        end.meet();
        assert_same!(end.received(&conn, &buffer).1, pattern(8, 70));
        end.meet();
    }
}

fn nothing_from(end: &mut End) {
    for service in SERVICES {
        let conn = end.open(service);
        end.meet();
        let nowhere = RemoteAddress {
            addr: 0x1234,
            rkey: RKey(0xdead_beef),
        };
        if service != QpType::Ud {
            end.run(&conn, SendOp::Write(nowhere), &[]);
            end.run(&conn, SendOp::WriteWithImm(nowhere, 4), &[]);
        }
        if RELIABLE.contains(&service) {
            end.run(&conn, SendOp::Read(nowhere), &[]);
        }
        end.run(&conn, SendOp::Send, &[]);
        end.meet();
    }
}

fn nothing_into(end: &mut End) {
    for service in SERVICES {
        let conn = end.open(service);
        let buffers = [end.ready(&conn, 1, 0), end.ready(&conn, 2, 0)];
        end.meet();
        if service != QpType::Ud {
            let done = end.next();
            assert_eq!((done.byte_len, done.imm), (0, Some(4)));
            assert_eq!((done.wr_id, done.status), (1, WcStatus::SUCCESS));
        }
        let header = conn.header() as u32;
        let done = end.next();
        assert_eq!((done.status, done.byte_len), (WcStatus::SUCCESS, header));
        let untouched = if header == 0 { 1 } else { Grh::LEN };
        assert!(buffers.iter().all(|b| content(b).len() == untouched));
        end.meet();
    }
}

/// 20 packets from two before the last number.
const WRAP: Link = Link {
    mtu: Mtu::MTU_256,
    access: Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC),
    reads: 4,
    timeout: 18,
    retries: 7,
    rnr_timer: 1,
    rnr_retry: 7,
    first_psn: 0xff_fffe,
};
const WRAPPING: usize = 20 * 256;

fn wrap_from(end: &mut End) {
    for service in WRITING {
        for kind in 0..3 {
            if kind == 2 && service == QpType::Uc {
                continue;
            }
            let conn = end.open_with(service, QpInit::default(), &WRAP);
            let source = end.filled(&pattern(kind, WRAPPING));
            let remote = end.offered();
            let whole = [source.sge(0, WRAPPING as u32)];
            match kind {
                0 => end.run(&conn, SendOp::Send, &whole),
                1 => end.run(&conn, SendOp::WriteWithImm(remote, 1), &whole),
                _ => {
                    let target = end.region(WRAPPING, Access::LOCAL_WRITE);
                    let sge = [target.sge(0, WRAPPING as u32)];
                    let done = end.run(&conn, SendOp::Read(remote), &sge);
                    assert_same!(content(&target), pattern(kind, WRAPPING));
                    end.run(&conn, SendOp::Send, &[]);
                    done
                }
            };
            end.meet();
        }
    }
}

fn wrap_into(end: &mut End) {
    for service in WRITING {
        for kind in 0..3 {
            if kind == 2 && service == QpType::Uc {
                continue;
            }
            let conn = end.open_with(service, QpInit::default(), &WRAP);
            let memory = end.region(WRAPPING, EVERYTHING);
            if kind == 2 {
                memory
                    .copy_in(0, &pattern(kind, WRAPPING))
                    .expect("as long");
            }
            let buffer = end.ready(&conn, 1, WRAPPING);
            end.offer(&memory);
            assert_eq!(end.next().status, WcStatus::SUCCESS);
            end.meet();
            let arrived = if kind == 0 { &buffer } else { &memory };
            assert_same!(content(arrived), pattern(kind, WRAPPING));
        }
    }
}
