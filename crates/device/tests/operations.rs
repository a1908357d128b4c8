//! Every operation of every transport service between two ends: content, completions and events, on private devices and
//! between two processes.

mod support;

use std::sync::Arc;

use oarlock_device::{
    Access, AsyncEvent, Qp, QpInit, Region, Srq, SrqInit, SrqXrc, Window, WindowBind, WindowType,
    XrcDomain,
};
use oarlock_transport::{
    AccessFlags, AttrMask, BindWindow, QpAttr, QpState, QpType, RecvWr, RemoteAddress, SendData,
    SendOp, SendWr, Sge, WcOpcode, WcStatus,
};
use oarlock_wire::{Grh, Mtu, RKey};
use support::ends::{End, Link, both_ways};
use support::{content, eventually, filled, pattern, recv, whole, write_to};

const EVERYTHING: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

fn region(end: &End, len: usize, access: Access) -> Region {
    end.side.pd.allocate(len, access).expect("region")
}

/// Posts one request and waits for its success; gives opcode and length of the completion.
fn run(end: &End, qp: &Qp, op: SendOp, sges: &[Sge]) -> (WcOpcode, u32) {
    let completion = attempt(end, qp, op, sges);
    assert_eq!(completion.0, WcStatus::SUCCESS, "{}", op.name());
    (completion.1, completion.2)
}

/// Posts one request and waits for its end.
fn attempt(end: &End, qp: &Qp, op: SendOp, sges: &[Sge]) -> (WcStatus, WcOpcode, u32) {
    qp.post_send(&SendWr {
        wr_id: 77,
        op,
        data: SendData::Sges(sges),
        ..SendWr::default()
    })
    .expect("post_send");
    let completion = end.side.collect_any(1).remove(0).completion;
    assert_eq!((completion.wr_id, completion.is_send), (77, true));
    (completion.status, completion.opcode, completion.byte_len)
}

fn at(remote: RemoteAddress, offset: u64) -> RemoteAddress {
    RemoteAddress {
        addr: remote.addr + offset,
        ..remote
    }
}

both_ways! {
    /// SEND, WRITE, READ, with and without immediate, of lengths around the path MTU and of many packets.
    reliable_messages: |end| {
        for mtu in [Mtu::MTU_256, Mtu::MTU_1024, Mtu::MTU_4096] {
            messages(end, QpType::Rc, &Link { mtu, ..Link::default() });
        }
    };
    /// The same without acknowledgements; an unreliable connection has no READ.
    unreliable_messages: |end| {
        for mtu in [Mtu::MTU_256, Mtu::MTU_1024, Mtu::MTU_4096] {
            messages(end, QpType::Uc, &Link { mtu, ..Link::default() });
        }
    };
    /// Compare-and-swap and fetch-and-add change the peer's memory and give the value before.
    atomics: atomics_body;
    /// A window of type 2: bound, used by the peer, taken away by the peer's SEND with invalidate or by ourselves.
    windows_of_type_2: windows_2_body;
    /// A window of type 1: each binding gives it another key, and the one before works no more.
    windows_of_type_1: windows_1_body;
    /// Messages of several queue pairs take the buffers of one queue in their order.
    shared_receive_queues: shared_body;
    /// An XRC target takes buffers of whichever queue of its domain a message names, and completes there.
    extended_connections: xrc_body;
    /// A list is posted up to the first request that is refused, or as a whole.
    lists: lists_body;
    /// What a peer may not do fails at both ends, with an event at the responder.
    refusals: refusals_body;
    /// In state SQD nothing new starts; what was begun ends, and then there is an event.
    draining: draining_body;
}

fn messages(end: &mut End, qp_type: QpType, link: &Link) {
    let init = QpInit {
        qp_type,
        ..QpInit::default()
    };
    let qp = end.connected(init, link);
    let mtu = usize::from(link.mtu.bytes().expect("a real one"));
    let lengths = [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5, 70_001];
    for (round, len) in lengths.into_iter().enumerate() {
        let bytes = pattern(round, len + 1);
        let message = &bytes[..len];
        if end.is_first() {
            let source = filled(&end.side, &bytes);
            let sge = [source.sge(0, len as u32)];
            let remote = end.offered();
            let immediate = 0xface_0000 + round as u32;
            for op in [
                SendOp::Send,
                SendOp::SendWithImm(immediate),
                SendOp::Write(at(remote, 8)),
                SendOp::WriteWithImm(at(remote, 100_000), immediate),
            ] {
                let (opcode, byte_len) = run(end, &qp, op, &sge);
                // Nobody repeats what a full socket loses on an unreliable connection: one at a time.
                end.meet();
                let is_write = matches!(op, SendOp::Write(_) | SendOp::WriteWithImm(..));
                let expected = if is_write {
                    WcOpcode::RDMA_WRITE
                } else {
                    WcOpcode::SEND
                };
                assert_eq!((opcode, byte_len as usize), (expected, len));
            }
            if qp_type == QpType::Rc {
                let back = region(end, len + 1, Access::LOCAL_WRITE);
                let read = SendOp::Read(at(remote, 8));
                let (opcode, byte_len) = run(end, &qp, read, &[back.sge(0, len as u32)]);
                assert_eq!((opcode, byte_len as usize), (WcOpcode::RDMA_READ, len));
                assert!(content(&back)[..len] == *message, "READ of {len} bytes");
            }
            end.meet();
        } else {
            let target = region(end, 200_000, EVERYTHING);
            let buffers = [0, 1, 2].map(|_| region(end, len + 1, Access::LOCAL_WRITE));
            for (i, buffer) in buffers.iter().enumerate() {
                recv(&qp, i as u64, &[whole(buffer)]);
            }
            end.offer(&target);
            let mut received = Vec::new();
            for completes in [true, true, false, true] {
                if completes {
                    received.extend(end.side.collect(1));
                }
                end.meet();
            }
            let immediate = Some(0xface_0000 + round as u32);
            let expected = [
                (WcOpcode::RECV, None),
                (WcOpcode::RECV, immediate),
                (WcOpcode::RECV_RDMA_WITH_IMM, immediate),
            ];
            for (i, (cqe, (opcode, imm))) in received.iter().zip(expected).enumerate() {
                let completion = &cqe.completion;
                assert_eq!((completion.wr_id, completion.is_send), (i as u64, false));
                assert_eq!((completion.opcode, completion.imm), (opcode, imm));
                assert_eq!(completion.byte_len as usize, len);
            }
            for buffer in &buffers[..2] {
                assert!(content(buffer)[..len] == *message, "SEND of {len} bytes");
            }
            assert!(
                content(&buffers[2]).iter().all(|byte| *byte == 0),
                "a WRITE fills no buffer"
            );
            end.meet();
            let placed = content(&target);
            for offset in [8, 100_000] {
                assert!(placed[offset..][..len] == *message, "WRITE of {len} bytes");
                assert_eq!((placed[offset - 1], placed[offset + len]), (0, 0));
            }
        }
    }
    if qp_type == QpType::Uc {
        for op in [
            SendOp::Read(RemoteAddress::default()),
            SendOp::FetchAdd {
                remote: RemoteAddress::default(),
                add: 1,
            },
            SendOp::SendWithInvalidate(RKey(1)),
        ] {
            let refused = qp
                .post_send(&SendWr {
                    op,
                    ..SendWr::default()
                })
                .unwrap_err();
            let expected = format!("{} is no operation of UC queue pairs", op.name());
            assert_eq!(refused.to_string(), expected);
        }
    }
    end.meet();
}

fn atomics_body(end: &mut End) {
    let qp = end.connected(QpInit::default(), &Link::default());
    if !end.is_first() {
        let target = region(end, 64, EVERYTHING);
        target.store_u64(8, 41).expect("aligned");
        end.offer(&target);
        end.meet();
        let value = |offset| target.load_u64(offset).expect("aligned");
        assert_eq!((value(0), value(8), value(16)), (0, 1_000, 0));
        return;
    }
    let remote = at(end.offered(), 8);
    let result = region(end, 8, Access::LOCAL_WRITE);
    let swap = |compare, swap| SendOp::CompareSwap {
        remote,
        compare,
        swap,
    };
    let add = |add| SendOp::FetchAdd { remote, add };
    for (op, opcode, before) in [
        (add(1), WcOpcode::FETCH_ADD, 41),
        (swap(41, 7), WcOpcode::COMP_SWAP, 42),
        (swap(42, 7), WcOpcode::COMP_SWAP, 42),
        (add(u64::MAX), WcOpcode::FETCH_ADD, 7),
        (swap(6, 1_000), WcOpcode::COMP_SWAP, 6),
    ] {
        assert_eq!(run(end, &qp, op, &[whole(&result)]), (opcode, 8));
        assert_eq!(
            result.load_u64(0).expect("aligned"),
            before,
            "{}",
            op.name()
        );
    }
    end.meet();
}

fn windows_2_body(end: &mut End) {
    let qp = end.connected(QpInit::default(), &Link::default());
    if end.is_first() {
        for _ in 0..2 {
            let [addr, rkey] = end.told();
            let rkey = RKey(rkey as u32);
            let remote = RemoteAddress { addr, rkey };
            let source = filled(&end.side, b"through a window");
            run(end, &qp, SendOp::Write(remote), &[whole(&source)]);
            run(end, &qp, SendOp::SendWithInvalidate(rkey), &[]);
            end.meet();
        }
        let [addr, rkey] = end.told();
        let rkey = RKey(rkey as u32);
        let source = filled(&end.side, b"too late");
        let (status, ..) = attempt(
            end,
            &qp,
            SendOp::Write(RemoteAddress { addr, rkey }),
            &[whole(&source)],
        );
        assert_eq!(status, WcStatus::REM_ACCESS_ERR);
        end.meet();
        return;
    }
    let memory = region(end, 64, EVERYTHING);
    let window = Window::new(&end.side.pd, WindowType::Two).expect("window");
    let bind = |n: u32| BindWindow {
        window: window.rkey(),
        rkey: RKey(window.rkey().0 & !0xff | n),
        region: memory.lkey(),
        addr: memory.iova() + 16,
        len: 32,
        access: AccessFlags::REMOTE_WRITE,
    };
    for n in 0..2 {
        recv(&qp, 5, &[]);
        let request = bind(n);
        let (opcode, _) = run(end, &qp, SendOp::BindWindow(request), &[]);
        assert_eq!((opcode, window.rkey()), (WcOpcode::BIND_MW, request.rkey));
        end.tell(&[request.addr, request.rkey.0.into()]);
        let received = end.side.collect(1).remove(0).completion;
        assert_eq!(received.invalidated, Some(request.rkey));
        assert_eq!(window.bound(), None);
        assert_eq!(content(&memory)[16..32], *b"through a window");
        write_to(&memory, &[0; 64]);
        end.meet();
    }
    let request = bind(9);
    run(end, &qp, SendOp::BindWindow(request), &[]);
    let (opcode, _) = run(end, &qp, SendOp::LocalInvalidate(request.rkey), &[]);
    assert_eq!(opcode, WcOpcode::LOCAL_INV);
    end.tell(&[request.addr, request.rkey.0.into()]);
    end.meet();
    assert_eq!(content(&memory), [0; 64]);
}

fn windows_1_body(end: &mut End) {
    let qp = end.connected(QpInit::default(), &Link::default());
    if end.is_first() {
        let source = filled(&end.side, b"first");
        let [addr, old] = end.told();
        let write = |rkey: u64| {
            SendOp::Write(RemoteAddress {
                addr,
                rkey: RKey(rkey as u32),
            })
        };
        run(end, &qp, write(old), &[whole(&source)]);
        end.meet();
        let [new] = end.told();
        assert_ne!(old, new);
        write_to(&source, b"other");
        run(end, &qp, write(new), &[whole(&source)]);
        let (status, ..) = attempt(end, &qp, write(old), &[whole(&source)]);
        assert_eq!(status, WcStatus::REM_ACCESS_ERR);
        end.meet();
        return;
    }
    let memory = region(end, 5, EVERYTHING);
    let window = Window::new(&end.side.pd, WindowType::One).expect("window");
    let bind = WindowBind {
        wr_id: 12,
        signaled: true,
        region: memory.lkey(),
        addr: memory.iova(),
        len: 5,
        access: AccessFlags::REMOTE_WRITE,
    };
    let bound = |end: &End| {
        let key = qp.bind_window(&window, &bind).expect("posted");
        let completion = end.side.collect(1).remove(0).completion;
        assert_eq!(
            (completion.wr_id, completion.opcode),
            (12, WcOpcode::BIND_MW)
        );
        assert_eq!(window.rkey(), key);
        key.0.into()
    };
    let old = bound(end);
    end.tell(&[memory.iova(), old]);
    end.meet();
    assert_eq!(content(&memory), b"first");
    let new = bound(end);
    end.tell(&[new]);
    end.meet();
    assert_eq!(content(&memory), b"other");
    let two = Window::new(&end.side.pd, WindowType::Two).expect("window");
    let refused = qp.bind_window(&two, &bind).unwrap_err();
    assert!(
        refused.to_string().starts_with("windows of type 2"),
        "{refused}"
    );
}

/// The transport services whose queue pairs can share a receive queue.
const SHARING: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

fn shared_body(end: &mut End) {
    for qp_type in SHARING {
        let srq = Arc::new(
            Srq::new(
                &end.side.pd,
                SrqInit {
                    max_wr: 8,
                    max_sge: 1,
                    user: Some(Arc::new("the queue's")),
                    ..SrqInit::default()
                },
            )
            .expect("srq"),
        );
        let init = QpInit {
            qp_type,
            srq: Some(Arc::clone(&srq)),
            user: Some(Arc::new("the queue pair's")),
            ..QpInit::default()
        };
        let pairs = [0, 1].map(|_| match qp_type {
            QpType::Ud => {
                let (qp, to) = end.datagrams(init.clone());
                (qp, Some(to))
            }
            _ => (end.connected(init.clone(), &Link::default()), None),
        });
        assert_eq!(srq.queue_pairs(), 2);
        let header = if qp_type == QpType::Ud { Grh::LEN } else { 0 };
        if end.is_first() {
            end.meet();
            for n in 0..6_u8 {
                let (qp, ud) = &pairs[usize::from(n % 2)];
                let message = [n; 10];
                qp.post_send(&SendWr {
                    data: SendData::Inline(&message),
                    ud: *ud,
                    ..SendWr::default()
                })
                .expect("post_send");
                end.side.collect(1);
                // One after the other: queue pairs do not keep each other's order.
                end.meet();
            }
        } else {
            let buffers: Vec<_> = (0..7)
                .map(|_| region(end, header + 10, Access::LOCAL_WRITE))
                .collect();
            let refused = recv_refused(&pairs[0].0, &buffers[0]);
            assert!(
                refused.starts_with("the queue pair has no receive queue"),
                "{refused}"
            );
            for (i, buffer) in buffers.iter().enumerate() {
                let sges = [whole(buffer)];
                srq.post_recv(&RecvWr {
                    wr_id: i as u64,
                    sges: &sges,
                })
                .expect("post_recv");
            }
            srq.set_limit(3).expect("below the depth");
            end.meet();
            for n in 0..6_u8 {
                let cqe = end.side.collect(1).remove(0);
                let completion = &cqe.completion;
                assert_eq!(completion.wr_id, u64::from(n), "in the order of posting");
                assert_eq!(cqe.qpn(), pairs[usize::from(n % 2)].0.qpn());
                assert_eq!(cqe.srq_id(), Some(srq.id()));
                let user = cqe.user().and_then(|user| user.downcast_ref::<&str>());
                assert_eq!(user, Some(&"the queue's"));
                assert_eq!(content(&buffers[usize::from(n)])[header..], [n; 10]);
                end.meet();
            }
            let limit = AsyncEvent::SrqLimitReached(srq.id());
            let mut seen = 0;
            while let Some(event) = end.side.context.try_async_event() {
                seen += usize::from(event == limit);
            }
            assert_eq!(
                seen, 1,
                "five of seven are taken, so that fewer than three are left"
            );
            assert_eq!(srq.query().limit, 0, "reached, so it is disarmed");
        }
        for (qp, _) in &pairs {
            qp.modify(&QpAttr::to_state(QpState::Error)).expect("error");
            eventually("the last buffer", || {
                end.side.context.try_async_event() == Some(AsyncEvent::LastWqeReached(qp.qpn()))
            });
        }
        drop(pairs);
        assert_eq!(srq.queue_pairs(), 0);
        end.meet();
    }
}

fn recv_refused(qp: &Qp, buffer: &Region) -> String {
    let sges = [whole(buffer)];
    qp.post_recv(&RecvWr {
        wr_id: 1,
        sges: &sges,
    })
    .unwrap_err()
    .to_string()
}

fn xrc_body(end: &mut End) {
    if end.is_first() {
        let init = QpInit {
            qp_type: QpType::XrcInitiator,
            ..QpInit::default()
        };
        let qp = end.connected(init, &Link::default());
        let queues = [end.told_srqn(), end.told_srqn()];
        let remote = end.offered();
        let post = |wr: SendWr<'_>| {
            qp.post_send(&wr).expect("post_send");
            end.side.collect_any(1).remove(0).completion
        };
        let refused = qp.post_send(&SendWr::default()).unwrap_err().to_string();
        assert!(
            refused.contains("needs the number of a shared receive queue"),
            "{refused}"
        );
        for (n, queue) in queues.iter().enumerate() {
            let message = pattern(n, 3000);
            let source = filled(&end.side, &message);
            let sges = [whole(&source)];
            let wr = SendWr {
                data: SendData::Sges(&sges),
                xrc_srqn: Some(*queue),
                ..SendWr::default()
            };
            assert_eq!(post(wr).status, WcStatus::SUCCESS);
            let immediate = SendOp::WriteWithImm(at(remote, 0), 5 + n as u32);
            let write = SendWr {
                op: immediate,
                ..wr
            };
            // The memory is of the first queue's domain: named with the other queue it is nobody's.
            if n == 0 {
                assert_eq!(post(write).status, WcStatus::SUCCESS);
                let back = region(end, 3000, Access::LOCAL_WRITE);
                let sges = [whole(&back)];
                let read = SendWr {
                    op: SendOp::Read(remote),
                    data: SendData::Sges(&sges),
                    ..wr
                };
                assert_eq!(post(read).status, WcStatus::SUCCESS);
                assert!(content(&back) == message, "read back");
            } else {
                assert_eq!(post(write).status, WcStatus::REM_ACCESS_ERR);
            }
        }
        end.meet();
        return;
    }
    let domain = XrcDomain::open(&end.side.context, None).expect("domain");
    let other_pd = oarlock_device::Pd::new(&end.side.context);
    let queues = [&end.side.pd.clone(), &other_pd].map(|pd| {
        let cq = oarlock_device::Cq::new(&end.side.context, 16, None, 0).expect("cq");
        let init = SrqInit {
            xrc: Some(SrqXrc {
                domain: domain.clone(),
                cq: Arc::new(cq),
            }),
            ..SrqInit::default()
        };
        Srq::new(pd, init).expect("srq")
    });
    let target = end.side.qp(QpInit {
        qp_type: QpType::XrcTarget,
        xrc_domain: Some(domain.clone()),
        ..QpInit::default()
    });
    // A second handle keeps it when the first is dropped.
    let opened = domain
        .open_target(target.qpn())
        .expect("a target of this domain");
    drop(target);
    end.connect(&opened, &Link::default());
    let memory = region(end, 3000, EVERYTHING);
    let buffers = [
        region(end, 3000, Access::LOCAL_WRITE),
        other_pd
            .allocate(3000, Access::LOCAL_WRITE)
            .expect("region"),
    ];
    for (queue, buffer) in queues.iter().zip(&buffers) {
        for wr_id in [1, 2] {
            let sges = [whole(buffer)];
            queue
                .post_recv(&RecvWr { wr_id, sges: &sges })
                .expect("post_recv");
        }
        end.tell_srqn(queue);
    }
    end.offer(&memory);
    let cq = |n: usize| queues[n].cq().expect("of XRC");
    let first = support::collect(cq(0), 2);
    let expected = [
        (1, None, WcOpcode::RECV),
        (2, Some(5), WcOpcode::RECV_RDMA_WITH_IMM),
    ];
    for (cqe, (wr_id, imm, opcode)) in first.iter().zip(expected) {
        let completion = &cqe.completion;
        assert_eq!(
            (completion.wr_id, completion.imm, completion.opcode),
            (wr_id, imm, opcode)
        );
        assert_eq!(
            (completion.srqn, cqe.qpn()),
            (queues[0].number(), opened.qpn())
        );
    }
    assert_eq!(content(&buffers[0]), pattern(0, 3000));
    let second = support::collect(cq(1), 1).remove(0);
    assert_eq!(second.completion.srqn, queues[1].number());
    assert_eq!(content(&buffers[1]), pattern(1, 3000));
    end.meet();
    assert_eq!(
        content(&memory),
        pattern(0, 3000),
        "the first message, and no other"
    );
    let qpn = opened.qpn();
    drop(opened);
    let refused = domain.open_target(qpn).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("the XRC domain has no target {qpn}")
    );
}

fn lists_body(end: &mut End) {
    let init = QpInit {
        max_send_wr: 4,
        max_recv_wr: 4,
        ..QpInit::default()
    };
    let qp = end.connected(init, &Link::default());
    let messages: [&[u8]; 6] = [b"one", b"two", b"three", b"four", b"five", b"six"];
    if end.is_first() {
        let list = messages.map(|message| SendWr {
            data: SendData::Inline(message),
            ..SendWr::default()
        });
        end.meet();
        let (index, error) = qp.post_send_list(&list).unwrap_err();
        assert_eq!(
            (index, error.to_string()),
            (4, "send queue is full: 4 requests outstanding".to_owned())
        );
        assert_eq!(end.side.collect(4).len(), 4);
        let wrong = [
            list[4],
            SendWr {
                op: SendOp::LocalInvalidate(RKey(0)),
                solicited: true,
                ..list[5]
            },
            list[5],
        ];
        let (index, _) = qp.post_send_list(&wrong).unwrap_err();
        assert_eq!(index, 1);
        qp.post_send_list(&[]).expect("nothing to refuse");
        // All or none: nobody receives the ones before the one that is refused.
        assert_eq!(qp.post_send_all(&wrong).unwrap_err().0, 1);
        end.side.collect(1);
        let too_many = [list[0]; 5];
        assert_eq!(qp.post_send_all(&too_many).unwrap_err().0, 4);
        qp.post_send_all(&list[5..]).expect("posted");
        assert_eq!(end.side.collect(1).len(), 1);
        end.meet();
        return;
    }
    let buffers = messages.map(|message| region(end, message.len(), Access::LOCAL_WRITE));
    let sges: Vec<_> = buffers.iter().map(|buffer| [whole(buffer)]).collect();
    let list: Vec<_> = (0..)
        .zip(&sges)
        .map(|(wr_id, sges)| RecvWr { wr_id, sges })
        .collect();
    let (index, error) = qp.post_recv_list(&list).unwrap_err();
    assert_eq!(
        (index, error.to_string()),
        (
            4,
            "receive queue is full: 4 requests outstanding".to_owned()
        )
    );
    end.meet();
    end.side.collect(4);
    qp.post_recv_list(&list[4..]).expect("room again");
    end.side.collect(2);
    for (buffer, message) in buffers.iter().zip(messages) {
        assert_eq!(content(buffer), message);
    }
    end.meet();
}

fn refusals_body(end: &mut End) {
    let read_write = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    for (what, of_region, of_qp, status, event) in [
        (
            "the region",
            Access::LOCAL_WRITE,
            read_write,
            WcStatus::REM_ACCESS_ERR,
            AsyncEvent::QpAccessError as fn(_) -> _,
        ),
        (
            "the queue pair",
            EVERYTHING,
            AccessFlags::empty(),
            WcStatus::REM_INV_REQ_ERR,
            AsyncEvent::QpRequestError as fn(_) -> _,
        ),
    ] {
        for is_read in [false, true] {
            let link = Link {
                access: of_qp,
                ..Link::default()
            };
            let qp = end.connected(QpInit::default(), &link);
            if end.is_first() {
                let remote = end.offered();
                let local = filled(&end.side, b"never");
                let op = if is_read {
                    SendOp::Read(remote)
                } else {
                    SendOp::Write(remote)
                };
                let (ended, ..) = attempt(end, &qp, op, &[whole(&local)]);
                assert_eq!(ended, status, "{what}");
                assert_eq!(
                    (content(&local), qp.state()),
                    (b"never".to_vec(), QpState::Error)
                );
                end.meet();
            } else {
                let memory = region(end, 5, of_region);
                end.offer(&memory);
                eventually("the event", || {
                    end.side.context.try_async_event() == Some(event(qp.qpn()))
                });
                assert_eq!(qp.state(), QpState::Error, "{what}");
                end.meet();
                assert_eq!(content(&memory), [0; 5]);
            }
        }
    }
}

fn draining_body(end: &mut End) {
    let qp = end.connected(QpInit::default(), &Link::default());
    let buffer = region(end, 5, Access::LOCAL_WRITE);
    if !end.is_first() {
        // Begun before the state, and ended after it: we are not ready at first.
        end.meet();
        recv(&qp, 1, &[whole(&buffer)]);
        end.side.collect(1);
        end.meet();
        recv(&qp, 2, &[whole(&buffer)]);
        end.side.collect(1);
        assert_eq!(content(&buffer), b"later");
        end.meet();
        return;
    }
    let send = |bytes: &[u8]| {
        qp.post_send(&SendWr {
            data: SendData::Inline(bytes),
            ..SendWr::default()
        })
        .expect("post_send");
    };
    send(b"begun");
    qp.modify(&QpAttr {
        mask: AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
        state: QpState::Sqd,
        sqd_notify: true,
        ..QpAttr::default()
    })
    .expect("sqd");
    send(b"later");
    assert_eq!(qp.state(), QpState::Sqd);
    end.meet();
    eventually("the event", || {
        end.side.context.try_async_event() == Some(AsyncEvent::SqDrained(qp.qpn()))
    });
    assert_eq!(end.side.collect(1).len(), 1, "what was begun has ended");
    end.meet();
    qp.modify(&QpAttr::to_state(QpState::Rts)).expect("rts");
    end.side.collect(1);
    end.meet();
}
