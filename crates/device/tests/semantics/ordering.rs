//! What is promised of the order of things, and what flags change about it.

use std::collections::BTreeSet;
use std::sync::Arc;

use oarlock_device::{Access, CompChannel, Cq, Notify, Qp, QpInit};
use oarlock_transport::{BindWindow, Error, QpType, RecvWr, SendData, SendOp, SendWr, WcStatus};

use crate::conn::{RELIABLE, SERVICES, WRITING};
use crate::end::{EVERYTHING, End, content};
use crate::moving::{at, window_on};
use crate::support::ends::{Link, steps};
use crate::support::pattern;
use crate::{assert_same, cases};

cases! {
    /// A fenced SEND of what a READ brings has the bytes of the READ, even if its first response is lost; without the fence
    /// it has those of before.
    fence: fence_from, fence_into;
    /// When a SEND has arrived, the bytes of the WRITE before it are there.
    write_then_send: in_order, placed_in_order;
    /// A READ brings what the WRITE before it has placed.
    read_after_write: read_back_from, read_back_out_of;
    /// Additions and swaps of several queue pairs at once: none is lost, none counted twice.
    atomics_of_many: many_from, many_at;
    /// An unsignalled request gives no completion when it succeeds, frees its place, and tells when it fails.
    unsignaled: unsignaled_from, unsignaled_into;
    /// With `sq_sig_all` every request is signalled.
    signal_all: signal_all_from, signal_all_into;
    /// Only a solicited message wakes a queue armed for such.
    solicited: solicited_from, solicited_into;
    /// One list with every operation, posted as a whole: executed in its order.
    batch_of_every_operation: batch_from, batch_at;
    /// A list stays in order and ends at the request that is refused; or, all or nothing, none is posted.
    lists: lists_from, lists_into;
}

fn fence_from(end: &mut End) {
    for service in RELIABLE {
        for fence in [true, false] {
            let link = Link {
                timeout: 16,
                ..Link::default()
            };
            let conn = end.open_with(service, QpInit::default(), &link);
            let remote = end.offered();
            let buffer = end.filled(b"old");
            end.strike("drop:opcode=read,direction=rx,count=1");
            let sges = [buffer.sge(0, 3)];
            let read = SendWr {
                data: SendData::Sges(&sges),
                ..conn.wr(SendOp::Read(remote))
            };
            conn.post(&read);
            conn.post(&SendWr {
                fence,
                data: SendData::Sges(&sges),
                ..conn.wr(SendOp::Send)
            });
            for done in end.nexts(2) {
                assert_eq!(done.status, WcStatus::SUCCESS);
            }
            assert_eq!(content(&buffer), b"new");
            end.heal();
            end.meet();
        }
    }
}

fn fence_into(end: &mut End) {
    for service in RELIABLE {
        for fence in [true, false] {
            let conn = end.open(service);
            let source = end.region(3, EVERYTHING);
            source.copy_in(0, b"new").expect("as long");
            let buffer = end.ready(&conn, 1, 3);
            end.offer(&source);
            let (_, message) = end.received(&conn, &buffer);
            let expected: &[u8] = if fence { b"new" } else { b"old" };
            assert_eq!(message, expected);
            end.meet();
        }
    }
}

const ROUNDS: usize = 20;
/// Some packets of the default path MTU.
const LEN: usize = 5000;

fn in_order(end: &mut End) {
    for service in WRITING {
        let conn = end.open(service);
        let remote = end.offered();
        for round in 0..ROUNDS {
            let source = end.filled(&pattern(round, LEN));
            let sges = [source.sge(0, LEN as u32)];
            let list = [
                SendWr {
                    data: SendData::Sges(&sges),
                    signaled: false,
                    ..conn.wr(SendOp::Write(remote))
                },
                conn.wr(SendOp::Send),
            ];
            conn.qp.post_send_list(&list).expect("posted");
            assert_eq!(end.next().status, WcStatus::SUCCESS);
            end.meet();
        }
    }
}

fn placed_in_order(end: &mut End) {
    for service in WRITING {
        let conn = end.open(service);
        let target = end.region(LEN, EVERYTHING);
        for round in 0..ROUNDS {
            conn.recv(round as u64, &[]);
        }
        end.offer(&target);
        for round in 0..ROUNDS {
            assert_eq!(end.next().wr_id, round as u64);
            assert_same!(content(&target), pattern(round, LEN));
            end.meet();
        }
    }
}

fn read_back_from(end: &mut End) {
    for service in RELIABLE {
        let conn = end.open(service);
        let remote = end.offered();
        for round in 0..ROUNDS {
            let source = end.filled(&pattern(round, LEN));
            let target = end.region(LEN, Access::LOCAL_WRITE);
            let (from, to) = ([source.sge(0, LEN as u32)], [target.sge(0, LEN as u32)]);
            let list = [
                SendWr {
                    data: SendData::Sges(&from),
                    signaled: false,
                    ..conn.wr(SendOp::Write(remote))
                },
                SendWr {
                    data: SendData::Sges(&to),
                    ..conn.wr(SendOp::Read(remote))
                },
            ];
            conn.qp.post_send_list(&list).expect("posted");
            assert_eq!(end.next().status, WcStatus::SUCCESS);
            assert_same!(content(&target), pattern(round, LEN));
        }
        end.meet();
    }
}

fn read_back_out_of(end: &mut End) {
    for service in RELIABLE {
        let _conn = end.open(service);
        let memory = end.region(LEN, EVERYTHING);
        end.offer(&memory);
        end.meet();
        assert_same!(content(&memory), pattern(ROUNDS - 1, LEN));
    }
}

const PAIRS: usize = 4;
const EACH: usize = 40;

fn many_from(end: &mut End) {
    let conns: Vec<_> = (0..PAIRS).map(|_| end.open(QpType::Rc)).collect();
    let remote = end.offered();
    let results = end.region(8 * PAIRS * EACH, Access::LOCAL_WRITE);
    for i in 0..EACH {
        for (n, conn) in conns.iter().enumerate() {
            let slot = n * EACH + i;
            let sges = [results.sge(8 * slot as u64, 8)];
            conn.post(&SendWr {
                data: SendData::Sges(&sges),
                ..conn.wr(SendOp::FetchAdd { remote, add: 1 })
            });
        }
    }
    for done in end.nexts(PAIRS * EACH) {
        assert_eq!(done.status, WcStatus::SUCCESS);
    }
    let before: BTreeSet<u64> = (0..PAIRS * EACH)
        .map(|slot| results.load_u64(8 * slot as u64).expect("aligned"))
        .collect();
    assert_eq!(before, (0..(PAIRS * EACH) as u64).collect());
    // Of those that swap one value away, one sees it.
    let swapped = at(remote, 8);
    for (n, conn) in conns.iter().enumerate() {
        let sges = [results.sge(8 * n as u64, 8)];
        conn.post(&SendWr {
            data: SendData::Sges(&sges),
            ..conn.wr(SendOp::CompareSwap {
                remote: swapped,
                compare: 0,
                swap: 100 + n as u64,
            })
        });
    }
    end.nexts(PAIRS);
    let saw_it = (0..PAIRS).filter(|n| results.load_u64(8 * *n as u64).expect("aligned") == 0);
    assert_eq!(saw_it.count(), 1);
    end.meet();
}

fn many_at(end: &mut End) {
    let _conns: Vec<_> = (0..PAIRS).map(|_| end.open(QpType::Rc)).collect();
    let memory = end.region(16, EVERYTHING);
    end.offer(&memory);
    end.meet();
    let sum = memory.load_u64(0).expect("aligned");
    assert_eq!(sum, (PAIRS * EACH) as u64);
    let winner = memory.load_u64(8).expect("aligned");
    assert!((100..100 + PAIRS as u64).contains(&winner), "{winner}");
}

const DEPTH: u32 = 6;

fn unsignaled_from(end: &mut End) {
    for service in SERVICES {
        let init = QpInit {
            max_send_wr: DEPTH,
            ..QpInit::default()
        };
        let conn = end.open_with(service, init, &Link::default());
        end.meet();
        for round in 0..4 {
            for i in 0..u64::from(DEPTH) {
                conn.post(&SendWr {
                    wr_id: 10 * round + i,
                    signaled: i == u64::from(DEPTH) - 1,
                    ..conn.wr(SendOp::Send)
                });
            }
            // One tells of all: their places are free.
            let done = end.next();
            assert_eq!(done.status, WcStatus::SUCCESS);
            assert_eq!(done.wr_id, 10 * round + u64::from(DEPTH) - 1);
            end.nothing();
            end.meet();
        }
        // Failures tell whatever was asked.
        let lost = end.filled(b"x");
        let sge = lost.sge(0, 1);
        drop(lost);
        conn.post(&SendWr {
            wr_id: 99,
            signaled: false,
            data: SendData::Sges(&[sge]),
            ..conn.wr(SendOp::Send)
        });
        let done = end.next();
        assert_eq!((done.wr_id, done.status), (99, WcStatus::LOC_PROT_ERR));
        end.meet();
    }
}

fn unsignaled_into(end: &mut End) {
    for service in SERVICES {
        let conn = end.open(service);
        let buffers: Vec<_> = (0..4 * u64::from(DEPTH))
            .map(|wr_id| end.ready(&conn, wr_id, 0))
            .collect();
        end.meet();
        for _ in 0..4 {
            for done in end.nexts(DEPTH as usize) {
                assert_eq!(done.status, WcStatus::SUCCESS);
            }
            end.meet();
        }
        drop(buffers);
        end.meet();
    }
}

fn signal_all_from(end: &mut End) {
    for service in SERVICES {
        let init = QpInit {
            sq_sig_all: true,
            ..QpInit::default()
        };
        let conn = end.open_with(service, init, &Link::default());
        end.meet();
        for wr_id in 0..3 {
            conn.post(&SendWr {
                wr_id,
                signaled: false,
                ..conn.wr(SendOp::Send)
            });
        }
        for (done, wr_id) in end.nexts(3).iter().zip(0..) {
            assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::SUCCESS));
        }
        end.meet();
    }
}

fn signal_all_into(end: &mut End) {
    for service in SERVICES {
        let conn = end.open(service);
        let _buffers = [1, 2, 3].map(|wr_id| end.ready(&conn, wr_id, 0));
        end.meet();
        end.nexts(3);
        end.meet();
    }
}

fn solicited_from(end: &mut End) {
    for service in [QpType::Rc, QpType::Uc] {
        let conn = end.open_to_channel(service);
        let remote = end.offered();
        let ops = [
            SendOp::Send,
            SendOp::SendWithImm(1),
            SendOp::WriteWithImm(remote, 2),
        ];
        for op in ops {
            for solicited in [false, true] {
                let wr = SendWr {
                    solicited,
                    ..conn.0.wr(op)
                };
                conn.0.post(&wr);
                assert_eq!(end.next().status, WcStatus::SUCCESS);
                end.meet();
            }
        }
        // A WRITE alone has no completion there that could be solicited.
        let wr = SendWr {
            solicited: true,
            ..conn.0.wr(SendOp::Write(remote))
        };
        let refused = conn.0.refused(&wr);
        assert!(
            matches!(
                refused,
                Error::FlagNotAllowed {
                    flag: "solicited",
                    ..
                }
            ),
            "{refused}"
        );
    }
}

fn solicited_into(end: &mut End) {
    for service in [QpType::Rc, QpType::Uc] {
        let (conn, cq, channel) = end.open_to_channel(service);
        let target = end.region(8, EVERYTHING);
        for wr_id in 0..6 {
            conn.recv(wr_id, &[]);
        }
        cq.req_notify(Notify::Solicited).expect("arm");
        end.offer(&target);
        for _ in 0..3 {
            for solicited in [false, true] {
                let done = crate::support::collect(&cq, 1).remove(0).completion;
                assert_eq!(done.solicited, solicited);
                assert_eq!(channel.try_event().is_some(), solicited);
                if solicited {
                    cq.req_notify(Notify::Solicited).expect("arm");
                }
                end.meet();
            }
        }
    }
}

impl End {
    /// As `open`; receives of the second side complete on a queue with a channel.
    fn open_to_channel(
        &mut self,
        service: QpType,
    ) -> (crate::conn::Conn, Arc<Cq>, Arc<CompChannel>) {
        let channel = CompChannel::new(&self.side.context).expect("channel");
        let cq = Cq::new(&self.side.context, 64, Some(&channel), 0).expect("cq");
        let cq = Arc::new(cq);
        let init = QpInit {
            qp_type: service,
            ..QpInit::default()
        };
        let qp = Qp::new(&self.side.pd, &self.side.cq, &cq, init).expect("qp");
        let [peer] = self.swap([qp.qpn().get().into()]);
        let peer = oarlock_wire::Qpn::truncate(peer as u32);
        for attr in steps(service, self.here, self.there, peer, &Link::default()) {
            qp.modify(&attr).expect("modify");
        }
        self.meet();
        let conn = crate::conn::Conn {
            qp,
            to: None,
            srqn: None,
            srq: None,
        };
        (conn, cq, channel)
    }
}

/// The list needs a window of the other side's, which its last SEND takes away, and one of our own.
fn batch_from(end: &mut End) {
    let conn = end.open(QpType::Rc);
    let remote = end.offered();
    let window = end.offered();
    let own = end.region(16, EVERYTHING);
    let result = end.region(16, Access::LOCAL_WRITE);
    let (bound, key) = window_on(end, &conn, &own, 1, Access::REMOTE_READ);
    let again = BindWindow {
        window: key,
        rkey: oarlock_wire::RKey(key.0 ^ 3),
        region: own.lkey(),
        addr: own.iova(),
        len: 16,
        access: Access::REMOTE_READ,
    };
    let (low, high) = ([result.sge(0, 8)], [result.sge(8, 8)]);
    let back = end.region(16, Access::LOCAL_WRITE);
    let whole = [back.sge(0, 16)];
    let swap = SendOp::CompareSwap {
        remote,
        compare: 0x0706_0504_0302_0100_u64.to_le(),
        swap: 5,
    };
    let add = SendOp::FetchAdd { remote, add: 2 };
    let steps = [
        (
            SendOp::Write(remote),
            SendData::Inline(&[0, 1, 2, 3, 4, 5, 6, 7]),
        ),
        (
            SendOp::WriteWithImm(at(remote, 8), 1),
            SendData::Inline(&[9; 8]),
        ),
        (swap, SendData::Sges(&low)),
        (add, SendData::Sges(&high)),
        (SendOp::Read(remote), SendData::Sges(&whole)),
        (SendOp::LocalInvalidate(key), SendData::Sges(&[])),
        (SendOp::BindWindow(again), SendData::Sges(&[])),
        (SendOp::Send, SendData::Inline(b"send")),
        (SendOp::SendWithImm(2), SendData::Inline(b"imm")),
        (
            SendOp::SendWithInvalidate(window.rkey),
            SendData::Inline(b"inv"),
        ),
    ];
    let list: Vec<_> = steps
        .iter()
        .zip(0..)
        .map(|((op, data), wr_id)| SendWr {
            wr_id,
            data: *data,
            ..conn.wr(*op)
        })
        .collect();
    end.meet();
    conn.qp.post_send_all(&list).expect("posted");
    for (done, request) in end.nexts(list.len()).iter().zip(&list) {
        assert_eq!(
            (done.wr_id, done.status),
            (request.wr_id, WcStatus::SUCCESS)
        );
        assert_eq!(done.opcode, request.op.wc_opcode());
    }
    let before = 0x0706_0504_0302_0100_u64.to_le();
    assert_eq!(result.load_u64(0).expect("aligned"), before);
    assert_eq!(result.load_u64(8).expect("aligned"), 5);
    assert_eq!(back.load_u64(0).expect("aligned"), 7);
    assert_eq!(content(&back)[8..], [9; 8]);
    assert_eq!(bound.rkey(), again.rkey);
    end.meet();
}

fn batch_at(end: &mut End) {
    let conn = end.open(QpType::Rc);
    let memory = end.region(16, EVERYTHING);
    end.offer(&memory);
    let (window, key) = window_on(end, &conn, &memory, 7, Access::REMOTE_READ);
    end.tell(&[memory.iova(), key.0.into()]);
    let buffers = [0, 1, 2, 3].map(|wr_id| end.ready(&conn, wr_id, 4));
    end.meet();
    let done = end.nexts(4);
    assert_eq!((done[0].imm, done[0].byte_len), (Some(1), 8));
    assert_eq!((done[1].imm, done[1].byte_len), (None, 4));
    assert_eq!((done[2].imm, done[2].byte_len), (Some(2), 3));
    assert_eq!(done[3].invalidated, Some(key));
    let texts = buffers.each_ref().map(content);
    assert_eq!(texts, [*b"\0\0\0\0", *b"send", *b"imm\0", *b"inv\0"]);
    assert_eq!(window.bound(), None);
    end.meet();
}

fn lists_from(end: &mut End) {
    for service in SERVICES {
        let init = QpInit {
            max_send_wr: 4,
            ..QpInit::default()
        };
        let conn = end.open_with(service, init, &Link::default());
        end.meet();
        let texts: [&[u8]; 6] = [b"0", b"1", b"2", b"3", b"4", b"5"];
        let list = texts.map(|text| SendWr {
            data: SendData::Inline(text),
            ..conn.wr(SendOp::Send)
        });
        let (index, error) = conn.qp.post_send_all(&list).unwrap_err();
        assert_eq!(index, 4, "{error}");
        end.nothing();
        let (index, error) = conn.qp.post_send_list(&list).unwrap_err();
        assert_eq!(index, 4, "{error}");
        end.nexts(4);
        conn.qp.post_send_all(&list[4..]).expect("room again");
        end.nexts(2);
        end.meet();
    }
}

fn lists_into(end: &mut End) {
    for service in SERVICES {
        let init = QpInit {
            max_recv_wr: 6,
            ..QpInit::default()
        };
        let conn = end.open_with(service, init, &Link::default());
        let buffer = end.region(conn.header() + 6, Access::LOCAL_WRITE);
        let sges: Vec<_> = (0..7)
            .map(|i| {
                // The GRHs go to one place, the bytes each to its own.
                let own = buffer.sge(conn.header() as u64 + i, u32::from(i < 6));
                [buffer.sge(0, conn.header() as u32), own]
            })
            .collect();
        let list: Vec<_> = sges
            .iter()
            .zip(0..)
            .map(|(sges, wr_id)| RecvWr { wr_id, sges })
            .collect();
        if let Some(srq) = &conn.srq {
            srq.post_recv_list(&list[..6]).expect("posted");
        } else {
            let (index, _) = conn.qp.post_recv_list(&list).unwrap_err();
            assert_eq!(index, 6);
        }
        end.meet();
        let done: Vec<_> = end.nexts(6).iter().map(|done| done.wr_id).collect();
        assert_eq!(done, [0, 1, 2, 3, 4, 5]);
        assert_eq!(content(&buffer)[conn.header()..], *b"012345");
        end.meet();
    }
}
