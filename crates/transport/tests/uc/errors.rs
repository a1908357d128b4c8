//! Every request that is refused, every packet that is dropped, and what a failure does to the rest.

use oarlock_transport::{
    AccessFlags, BindWindow, Counter, Error, MemoryError, QpAttr, QpState, QpType, RecvWr,
    RemoteAddress, SendData, SendOp, SendWr, Sge, Uc, UcConfig, UdDestination, VendorError,
    WcOpcode, WcStatus,
};
use oarlock_wire::base::TransportClass;
use oarlock_wire::units::PKey;
use oarlock_wire::{
    AddressVector, Bth, ImmDt, LKey, Mtu, Opcode, PacketHeader, QKey, Qpn, RKey, Reth, Srqn, Time,
};

use crate::pair::{A, B, Host, MTU, Pair, attr, gid, pattern, qpn};

const OK: WcStatus = WcStatus::SUCCESS;
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;
const REMOTE: RemoteAddress = RemoteAddress {
    addr: 0x1000,
    rkey: RKey(5),
};
const BIND: BindWindow = BindWindow {
    window: RKey(0x100),
    rkey: RKey(0x101),
    region: LKey(0x51),
    addr: 0,
    len: 8,
    access: AccessFlags::REMOTE_WRITE,
};

fn sender() -> Host {
    Host::new(A, UcConfig::default(), QpState::Rts)
}

fn refused<'a>(change: impl FnOnce(&mut SendWr<'a>)) -> Error {
    let mut wr = SendWr::default();
    change(&mut wr);
    let mut host = sender();
    let answer = host.uc.post_send(&wr).expect_err("refused");
    assert!(!host.uc.has_output(), "nothing has changed");
    answer
}

#[test]
fn operations_that_need_answers_are_refused_by_name() {
    let (remote, add) = (REMOTE, 1);
    for op in [
        SendOp::SendWithInvalidate(RKey(1)),
        SendOp::Read(REMOTE),
        SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 1,
        },
        SendOp::FetchAdd { remote, add },
    ] {
        let error = refused(|wr| wr.op = op);
        let (operation, qp_type) = (op.name(), QpType::Uc);
        assert_eq!(error, Error::OperationNotSupported { operation, qp_type });
        assert!(error.to_string().contains(operation));
    }
}

#[test]
fn fields_that_mean_nothing_are_refused() {
    let qp_type = QpType::Uc;
    let error = refused(|wr| {
        wr.ud = Some(UdDestination {
            av: AddressVector::new(gid(1), gid(2)),
            remote_qpn: Qpn::QP0,
            remote_qkey: QKey(0),
        });
    });
    assert_eq!(error, Error::UnexpectedDestination);
    let operation = "SEND";
    let error = refused(|wr| wr.xrc_srqn = Some(Srqn::truncate(1)));
    assert_eq!(
        error,
        Error::UnexpectedSharedQueueNumber { operation, qp_type }
    );
    let flag = "fence";
    let expected = Error::FlagNotAllowed {
        flag,
        operation,
        qp_type,
    };
    assert_eq!(refused(|wr| wr.fence = true), expected);
    for op in [
        SendOp::Write(REMOTE),
        SendOp::LocalInvalidate(RKey(1)),
        SendOp::BindWindow(BIND),
    ] {
        let expected = Error::FlagNotAllowed {
            flag: "solicited",
            operation: op.name(),
            qp_type,
        };
        let answer = refused(|wr| {
            wr.op = op;
            wr.solicited = true;
        });
        assert_eq!(answer, expected);
    }
    for op in [SendOp::LocalInvalidate(RKey(1)), SendOp::BindWindow(BIND)] {
        let operation = op.name();
        let answer = refused(|wr| {
            wr.op = op;
            wr.data = SendData::Inline(b"x");
        });
        assert_eq!(answer, Error::InlineNotAllowed { operation });
        let sges = [Sge::default(); 2];
        let answer = refused(|wr| {
            wr.op = op;
            wr.data = SendData::Sges(&sges);
        });
        assert_eq!(
            answer,
            Error::DataNotAllowed {
                operation,
                given: 2
            }
        );
    }
}

#[test]
fn limits_are_errors_that_name_both_numbers() {
    let sges = [Sge::default(); 5];
    let error = refused(|wr| wr.data = SendData::Sges(&sges));
    assert_eq!(error, Error::TooManySges { given: 5, max: 4 });
    let error = refused(|wr| wr.data = SendData::Inline(&[0; 65]));
    assert_eq!(error, Error::InlineTooLong { given: 65, max: 64 });
    let huge = [Sge {
        len: u32::MAX,
        ..Sge::default()
    }];
    let error = refused(|wr| wr.data = SendData::Sges(&huge));
    assert_eq!(
        error,
        Error::MessageTooLong {
            given: u32::MAX.into(),
            max: 1 << 31
        }
    );
    let two = [Sge {
        len: 2,
        ..Sge::default()
    }];
    let at = |addr| RemoteAddress { addr, ..REMOTE };
    let error = refused(|wr| {
        wr.op = SendOp::Write(at(u64::MAX));
        wr.data = SendData::Sges(&two);
    });
    let operation = "RDMA WRITE";
    assert_eq!(
        error,
        Error::RemoteRange {
            operation,
            addr: u64::MAX,
            len: 2
        }
    );
    // Up to the last byte there is.
    let mut host = sender();
    host.post(SendWr {
        op: SendOp::Write(at(u64::MAX - 1)),
        data: SendData::Sges(&two),
        ..SendWr::default()
    });
    for _ in 1..host.uc.config().max_send_wr {
        host.post(SendWr::default());
    }
    let full = host.uc.post_send(&SendWr::default());
    let queue = "send";
    assert_eq!(full, Err(Error::QueueFull { queue, depth: 128 }));
}

#[test]
fn a_receive_has_its_limits_too() {
    let mut host = Host::new(
        B,
        UcConfig {
            max_recv_wr: 1,
            max_recv_sge: 1,
            ..UcConfig::default()
        },
        QpState::Rts,
    );
    let sges = [Sge::default(); 2];
    let wr = RecvWr {
        wr_id: 1,
        sges: &sges,
    };
    let answer = host.uc.post_recv(&wr);
    assert_eq!(answer, Err(Error::TooManySges { given: 2, max: 1 }));
    host.recv(1, 8);
    let (queue, depth) = ("receive", 1);
    let answer = host.uc.post_recv(&RecvWr::default());
    assert_eq!(answer, Err(Error::QueueFull { queue, depth }));
}

/// One packet for B.
struct Forged {
    header: PacketHeader,
    payload: Vec<u8>,
}

/// A packet with this RC opcode's UC twin, PSN `n` after the expected one.
fn forged(opcode: Opcode, n: u32, payload: &[u8]) -> Forged {
    let opcode = opcode.of(TransportClass::Uc);
    let bth = Bth::new(opcode, qpn(B), attr(B).rq_psn.add(n));
    Forged {
        header: PacketHeader {
            immdt: opcode.has_immediate().then_some(ImmDt(9)),
            ..PacketHeader::new(bth)
        },
        payload: payload.to_vec(),
    }
}

fn forged_write(opcode: Opcode, n: u32, payload: &[u8], reth: Reth) -> Forged {
    let mut packet = forged(opcode, n, payload);
    packet.header.reth = Some(reth);
    packet
}

impl Forged {
    fn bytes(&self) -> Vec<u8> {
        let mut out = [0; 4096 + 64];
        let len = self.header.emit_packet(&self.payload, &mut out).unwrap();
        out[..len].to_vec()
    }
}

fn receiver() -> Host {
    let mut host = Host::new(B, UcConfig::default(), QpState::Rts);
    host.recv(20, 4 * MTU);
    host
}

/// After whatever happened with `used` packets, a good message still arrives.
fn still_works(host: &mut Host, used: u32) {
    let before = host.completions.len();
    host.take(&forged(Opcode::RC_SEND_ONLY, used, b"good").bytes());
    let last = host.completions.last().expect("a completion");
    assert_eq!((last.status, last.byte_len), (OK, 4));
    assert_eq!(host.completions.len(), before + 1);
    assert_eq!(host.uc.state(), QpState::Rts);
}

#[test]
fn packets_that_are_not_for_this_queue_pair_are_counted_by_reason() {
    let good = || forged(Opcode::RC_SEND_ONLY, 0, b"x");
    let change = |f: &dyn Fn(&mut PacketHeader)| {
        let mut packet = good();
        f(&mut packet.header);
        packet.bytes()
    };
    let cases: [(Vec<u8>, Counter); 5] = [
        (vec![0; 5], Counter::DroppedMalformed),
        (
            change(&|header| header.bth.dest_qpn = qpn(7)),
            Counter::DroppedWrongQpn,
        ),
        (
            change(&|header| header.bth.opcode = Opcode::RC_SEND_ONLY),
            Counter::DroppedWrongTransport,
        ),
        (
            change(&|header| header.bth.pkey = PKey(0x8001)),
            Counter::DroppedWrongPkey,
        ),
        // READ exists in no packet of UC: it cannot even be taken apart.
        (
            {
                let mut bytes = good().bytes();
                bytes[0] = Opcode::RC_RDMA_READ_REQUEST.of(TransportClass::Uc).0;
                bytes
            },
            Counter::DroppedMalformed,
        ),
    ];
    for (bytes, reason) in cases {
        let mut host = receiver();
        host.take(&bytes);
        assert_eq!(host.count(reason), 1);
        assert_eq!(host.dropped().len(), 1);
        assert_eq!(host.events, [], "not even established");
        still_works(&mut host, 0);
    }
    let mut host = receiver();
    for (local, remote) in [(gid(2), gid(9)), (gid(9), gid(1))] {
        let from = AddressVector::new(local, remote);
        let bytes = good().bytes();
        host.uc
            .handle_datagram(Time::ZERO, &from, &bytes, &mut host.memory);
    }
    assert_eq!(host.dropped(), [("dropped_wrong_source", 2)]);
    let mut packet = good().header;
    packet.bth.version = 1;
    let from = host.uc.query().av;
    host.uc
        .handle_packet(Time::ZERO, &from, &packet.packet(b"x"), &mut host.memory);
    assert_eq!(host.count(Counter::DroppedWrongVersion), 1);
    // A packet of this service that no parser lets through.
    packet.bth.version = 0;
    packet.bth.opcode = Opcode::RC_FETCH_ADD.of(TransportClass::Uc);
    host.uc
        .handle_packet(Time::ZERO, &from, &packet.packet(b"x"), &mut host.memory);
    assert_eq!(host.count(Counter::DroppedInvalidRequest), 1);
    still_works(&mut host, 1);
}

#[test]
fn payloads_that_do_not_fit_their_place_drop_the_message() {
    let full = [1; MTU];
    let (first, middle, last, only) = (
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_LAST,
        Opcode::RC_SEND_ONLY,
    );
    let cases: [&[(Opcode, &[u8])]; 8] = [
        &[(only, &[1; MTU + 1])],
        &[(first, &[1; MTU - 1])],
        &[(first, &[1; MTU + 1])],
        &[(first, &full), (middle, &full[1..])],
        &[(first, &full), (middle, &[1; MTU + 1])],
        &[(first, &full), (last, &[])],
        &[(first, &full), (last, &[1; MTU + 1])],
        // A middle of a WRITE within a SEND.
        &[(first, &full), (Opcode::RC_RDMA_WRITE_MIDDLE, &full)],
    ];
    for packets in cases {
        let mut host = receiver();
        for (n, (opcode, payload)) in packets.iter().enumerate() {
            host.take(&forged(*opcode, n as u32, payload).bytes());
        }
        assert_eq!(host.outcomes(), [], "{packets:?}");
        assert_eq!(host.dropped().len(), 1);
        still_works(&mut host, packets.len() as u32);
        assert_eq!(host.completions[0].wr_id, 20, "the buffer waited");
    }
}

/// The rest of a message is dropped for the reason of its first bad packet.
#[test]
fn the_rest_of_a_dropped_message_counts_as_what_it_was_dropped_for() {
    let full = [1; MTU];
    let mut host = receiver();
    host.take(&forged(Opcode::RC_SEND_FIRST, 0, &full[1..]).bytes());
    host.take(&forged(Opcode::RC_SEND_MIDDLE, 1, &full).bytes());
    host.take(&forged(Opcode::RC_SEND_LAST, 2, b"end").bytes());
    assert_eq!(host.dropped(), [("dropped_invalid_request", 3)]);
    // The next message is a new one; a stray middle behind it has no beginning.
    still_works(&mut host, 3);
    host.take(&forged(Opcode::RC_SEND_MIDDLE, 4, &full).bytes());
    assert_eq!(host.count(Counter::DroppedOutOfOrder), 1);
    // Nothing is left of a message that was dropped whole.
    let mut host = receiver();
    host.take(&forged(Opcode::RC_SEND_ONLY, 0, &[1; MTU + 1]).bytes());
    host.take(&forged(Opcode::RC_SEND_MIDDLE, 1, &full).bytes());
    let expected = [("dropped_out_of_order", 1), ("dropped_invalid_request", 1)];
    assert_eq!(host.dropped(), expected);
}

/// IBA Vol. 1 ch. 9: a first packet while a message is unfinished begins a new one.
#[test]
fn a_beginning_within_a_message_gives_the_old_one_up() {
    let mut host = receiver();
    host.take(&forged(Opcode::RC_SEND_FIRST, 0, &[1; MTU]).bytes());
    still_works(&mut host, 1);
    assert_eq!(host.count(Counter::MessagesAbandoned), 1);
    assert_eq!(host.dropped(), []);
}

#[test]
fn without_a_receive_a_message_is_dropped_and_nothing_else_happens() {
    let mut pair = Pair::new();
    let (_, remote) = pair.hosts[B].memory.offer(MTU, AccessFlags::REMOTE_WRITE);
    pair.hosts[A].send(10, &pattern(1, 3 * MTU));
    pair.hosts[A].op(11, SendOp::WriteWithImm(remote, 7), &pattern(2, 9));
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, OK), (11, OK)]);
    assert_eq!(pair.hosts[B].dropped(), [("dropped_receiver_not_ready", 4)]);
    assert_eq!(pair.hosts[B].uc.state(), QpState::Rts);
    let sge = pair.hosts[B].recv(20, 10);
    pair.hosts[A].send(12, b"now");
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, OK)]);
    assert_eq!(pair.hosts[B].memory.load(sge, 3), b"now");
}

/// A WRITE with immediate of one packet that nobody can be told of is not placed.
#[test]
fn a_write_with_immediate_without_a_receive_places_nothing() {
    let mut pair = Pair::new();
    let (sge, remote) = pair.hosts[B].memory.offer(8, AccessFlags::REMOTE_WRITE);
    pair.hosts[A].op(1, SendOp::WriteWithImm(remote, 7), &[1; 8]);
    pair.run();
    assert_eq!(pair.hosts[B].memory.load(sge, 8), [0xEE; 8]);
}

#[test]
fn a_message_longer_than_its_buffer_is_dropped_and_the_buffer_waits_on() {
    for len in [11, MTU + 1, 3 * MTU] {
        let mut pair = Pair::new();
        let room = if len > 2 * MTU { MTU + 5 } else { len - 1 };
        pair.hosts[B].recv(20, room);
        pair.hosts[A].send(10, &pattern(1, len));
        pair.hosts[A].send(11, b"fits");
        pair.run();
        let b = &pair.hosts[B];
        assert_eq!(b.outcomes(), [(20, OK)], "{len}");
        assert_eq!(b.completions[0].byte_len, 4);
        assert_eq!(b.count(Counter::ReceiveLengthErrors), 1);
        assert_eq!(b.dropped()[0].0, "dropped_no_room");
        assert_eq!(b.uc.state(), QpState::Rts);
    }
}

#[test]
fn a_buffer_that_cannot_be_written_ends_the_queue_pair() {
    let mut pair = Pair::new();
    pair.hosts[B].recv(20, MTU);
    let gone = pair.hosts[B].recv(21, 2 * MTU);
    pair.hosts[B].recv(22, MTU);
    pair.hosts[B].memory.vanish(gone);
    pair.hosts[A].send(10, b"fine");
    pair.hosts[A].send(11, &pattern(1, 2 * MTU));
    pair.hosts[B].send(12, b"never leaves");
    let mut early = pair.hosts[B].packets(pair.clock.now());
    assert_eq!(early.len(), 1);
    early.clear();
    pair.hosts[B].completions.clear();
    pair.run();
    let b = &pair.hosts[B];
    let expected = [(20, OK), (21, WcStatus::LOC_PROT_ERR), (22, FLUSHED)];
    assert_eq!(b.outcomes(), expected);
    assert_eq!(b.completions[1].vendor_err, VendorError::UNMAPPED);
    assert_eq!(b.completions[2].vendor_err, VendorError::FLUSHED_BY_RECEIVE);
    assert_eq!(b.uc.state(), QpState::Error);
    assert_eq!(b.count(Counter::DroppedNotPlaced), 1);
    assert_eq!(
        b.count(Counter::DroppedWrongState),
        1,
        "what came behind it"
    );
    assert_eq!(b.count(Counter::ReceivesFailed), 1);
    assert_eq!(b.count(Counter::ReceivesFlushed), 1);
}

/// Key, range, right of the region, right of the queue pair: the message is dropped, no byte is placed, nothing else
/// happens (IBA Vol. 1 ch. 9, class D1: no answer, no event, no change of state).
#[test]
fn a_write_that_is_not_allowed_is_dropped() {
    let mut host = receiver();
    let (sge, remote) = host.memory.offer(3 * MTU, AccessFlags::REMOTE_WRITE);
    let (closed_sge, closed) = host.memory.offer(MTU, AccessFlags::REMOTE_READ);
    let reth = |addr, rkey, len| Reth { addr, rkey, len };
    let cases = [
        reth(remote.addr, RKey(0xBAD), 8),
        reth(remote.addr - 1, remote.rkey, 8),
        reth(remote.addr + 3 * MTU as u64 - 7, remote.rkey, 8),
        reth(u64::MAX - 3, remote.rkey, 8),
        reth(closed.addr, closed.rkey, 8),
    ];
    let mut used = 0;
    for reth in cases {
        let opcode = Opcode::RC_RDMA_WRITE_ONLY_IMM;
        host.take(&forged_write(opcode, used, &[1; 8], reth).bytes());
        used += 1;
    }
    // All of a message's bytes are checked with its first packet.
    let too_long = reth(remote.addr, remote.rkey, 3 * MTU as u32 + 1);
    for (n, opcode) in [
        Opcode::RC_RDMA_WRITE_MIDDLE,
        Opcode::RC_RDMA_WRITE_MIDDLE,
        Opcode::RC_RDMA_WRITE_LAST,
    ]
    .into_iter()
    .enumerate()
    {
        if n == 0 {
            let first = Opcode::RC_RDMA_WRITE_FIRST;
            host.take(&forged_write(first, used, &[1; MTU], too_long).bytes());
            used += 1;
        }
        let len = if n == 2 { 1 } else { MTU };
        host.take(&forged(opcode, used, &vec![1; len]).bytes());
        used += 1;
    }
    assert_eq!(host.dropped(), [("dropped_remote_access", 9)]);
    assert_eq!(host.memory.load(sge, 3 * MTU), vec![0xEE; 3 * MTU]);
    assert_eq!(host.memory.load(closed_sge, MTU), vec![0xEE; MTU]);
    let attr = QpAttr {
        mask: oarlock_transport::AttrMask::ACCESS_FLAGS,
        access: AccessFlags::empty(),
        ..QpAttr::default()
    };
    host.uc.modify(&attr).unwrap();
    let good = reth(remote.addr, remote.rkey, 8);
    let only = Opcode::RC_RDMA_WRITE_ONLY;
    host.take(&forged_write(only, used, &[1; 8], good).bytes());
    assert_eq!(host.count(Counter::DroppedRemoteAccess), 10);
    assert_eq!(host.memory.load(sge, 8), [0xEE; 8]);
    let attr = QpAttr {
        access: AccessFlags::REMOTE_WRITE,
        ..attr
    };
    host.uc.modify(&attr).unwrap();
    host.take(&forged_write(only, used + 1, &[1; 8], good).bytes());
    assert_eq!(host.memory.load(sge, 8), [1; 8]);
    assert_eq!(host.events.len(), 1, "established, and no error");
    still_works(&mut host, used + 2);
}

/// A key of no bytes is not looked at (IBA Vol. 1 ch. 9 "R_Key").
#[test]
fn a_write_of_no_bytes_needs_no_key() {
    let mut pair = Pair::new();
    pair.hosts[B].recv(20, 0);
    pair.hosts[A].op(10, SendOp::Write(REMOTE), &[]);
    pair.hosts[A].op(11, SendOp::WriteWithImm(REMOTE, 3), &[]);
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, OK)]);
    assert_eq!(pair.hosts[B].count(Counter::WritesReceived), 2);
}

#[test]
fn a_write_that_carries_another_length_than_it_says_is_dropped() {
    let only = Opcode::RC_RDMA_WRITE_ONLY;
    let (first, last) = (Opcode::RC_RDMA_WRITE_FIRST, Opcode::RC_RDMA_WRITE_LAST);
    let full = [1; MTU];
    for said in [0, 7, 9, u32::MAX] {
        let mut host = receiver();
        let (_, remote) = host.memory.offer(4 * MTU, AccessFlags::REMOTE_WRITE);
        let (addr, rkey, len) = (remote.addr, remote.rkey, said);
        let reth = Reth { addr, rkey, len };
        host.take(&forged_write(only, 0, &[1; 8], reth).bytes());
        assert_eq!(host.dropped(), [("dropped_invalid_request", 1)], "{said}");
        still_works(&mut host, 1);
    }
    for (said, end) in [(MTU, 1), (MTU + 2, 1), (MTU + 2, 3), (3 * MTU, 5)] {
        let mut host = receiver();
        let (_, remote) = host.memory.offer(4 * MTU, AccessFlags::REMOTE_WRITE);
        let (addr, rkey, len) = (remote.addr, remote.rkey, said as u32);
        let reth = Reth { addr, rkey, len };
        host.take(&forged_write(first, 0, &full, reth).bytes());
        host.take(&forged(last, 1, &full[..end]).bytes());
        assert_eq!(
            host.dropped()[0].0,
            "dropped_invalid_request",
            "{said} {end}"
        );
        assert_eq!(host.count(Counter::WritesReceived), 0);
        still_works(&mut host, 2);
    }
}

/// A middle packet cannot carry more than is left.
#[test]
fn a_write_that_goes_beyond_its_length_is_dropped() {
    let mut host = receiver();
    let (sge, remote) = host.memory.offer(4 * MTU, AccessFlags::REMOTE_WRITE);
    let (addr, rkey, len) = (remote.addr, remote.rkey, MTU as u32 + 2);
    let reth = Reth { addr, rkey, len };
    let first = Opcode::RC_RDMA_WRITE_FIRST;
    host.take(&forged_write(first, 0, &[1; MTU], reth).bytes());
    for n in 1..3 {
        host.take(&forged(Opcode::RC_RDMA_WRITE_MIDDLE, n, &[2; MTU]).bytes());
    }
    assert_eq!(host.dropped(), [("dropped_invalid_request", 2)]);
    assert_eq!(host.memory.load(sge, 4 * MTU)[MTU..], [0xEE; 3 * MTU]);
    still_works(&mut host, 3);
}

/// The memory of a WRITE may vanish between two of its packets.
#[test]
fn memory_that_vanishes_within_a_write_drops_the_rest() {
    let mut host = receiver();
    let (sge, remote) = host.memory.offer(2 * MTU, AccessFlags::REMOTE_WRITE);
    let (addr, rkey, len) = (remote.addr, remote.rkey, 2 * MTU as u32);
    let reth = Reth { addr, rkey, len };
    host.take(&forged_write(Opcode::RC_RDMA_WRITE_FIRST, 0, &[1; MTU], reth).bytes());
    host.memory.vanish(sge);
    host.take(&forged(Opcode::RC_RDMA_WRITE_LAST_IMM, 1, &[1; MTU]).bytes());
    assert_eq!(host.dropped(), [("dropped_not_placed", 1)]);
    still_works(&mut host, 2);
}

/// IBA Vol. 1 ch. 10 "Send queue error": a send that fails here flushes those behind it, and nothing else.
#[test]
fn a_failure_of_a_send_stops_the_send_queue_only() {
    let local: [(SendOp, WcStatus, VendorError); 3] = [
        (
            SendOp::LocalInvalidate(RKey(0xBAD)),
            WcStatus::MW_BIND_ERR,
            VendorError::RKEY_UNKNOWN,
        ),
        (
            SendOp::BindWindow(BIND),
            WcStatus::MW_BIND_ERR,
            VendorError::BIND_REFUSED,
        ),
        (
            SendOp::Send,
            WcStatus::LOC_PROT_ERR,
            VendorError::LKEY_UNKNOWN,
        ),
    ];
    for (op, status, vendor_err) in local {
        let mut pair = Pair::new();
        pair.hosts[A].memory.bind_error = Some(MemoryError::BindRefused("a test wants it so"));
        let wrong = [Sge {
            addr: 1,
            len: 4,
            lkey: LKey(0xBAD),
        }];
        let sges: &[Sge] = if op == SendOp::Send { &wrong } else { &[] };
        for n in 20..24 {
            pair.hosts[B].recv(n, 64);
        }
        pair.hosts[A].send(10, b"before");
        pair.hosts[A].post(SendWr {
            wr_id: 11,
            op,
            data: SendData::Sges(sges),
            signaled: false,
            ..SendWr::default()
        });
        pair.hosts[A].send(12, b"behind");
        let buffer = pair.hosts[A].recv(30, 64);
        pair.run();
        let a = &pair.hosts[A];
        let expected = [(10, OK), (11, status), (12, FLUSHED)];
        assert_eq!(a.outcomes(), expected);
        assert_eq!(a.completions[1].opcode, op.wc_opcode());
        assert_eq!(a.completions[1].vendor_err, vendor_err);
        assert_eq!(a.completions[2].vendor_err, VendorError::FLUSHED_BY_SEND);
        assert_eq!(a.uc.state(), QpState::Sqe);
        // What is posted now is flushed, what arrives is taken.
        pair.hosts[A].send(13, b"flushed at once");
        pair.hosts[B].send(14, b"to A");
        pair.run();
        let a = &pair.hosts[A];
        assert_eq!(a.outcomes()[3..], [(13, FLUSHED), (30, OK)]);
        assert_eq!(a.completions[3].vendor_err, VendorError::FLUSHED_AT_POST);
        assert_eq!(a.memory.load(buffer, 4), b"to A");
        assert_eq!(a.count(Counter::SendsFailed), 1);
        assert_eq!(a.count(Counter::SendsFlushed), 2);
        pair.hosts[A].modify(QpState::Rts);
        pair.hosts[A].send(15, b"on");
        pair.run();
        assert_eq!(pair.hosts[A].outcomes().last(), Some(&(15, OK)));
        assert_eq!(pair.hosts[B].completions.last().unwrap().byte_len, 2);
    }
}

#[test]
fn values_of_attributes_are_checked() {
    let mut uc = Uc::new(UcConfig {
        mtu: Mtu::MTU_512,
        ..UcConfig::default()
    });
    let init = QpAttr {
        mask: QpType::Uc
            .transition(QpState::Reset, QpState::Init)
            .unwrap()
            .required
            | oarlock_transport::AttrMask::STATE,
        state: QpState::Init,
        ..attr(A)
    };
    let port_num = 2;
    let answer = uc.modify(&QpAttr { port_num, ..init });
    let expected = Error::AttributeTooLarge {
        attribute: "port_num",
        given: 2,
        max: 1,
    };
    assert_eq!(answer, Err(expected));
    let flags = AccessFlags::ZERO_BASED;
    let access = flags | AccessFlags::REMOTE_WRITE;
    let answer = uc.modify(&QpAttr { access, ..init });
    assert_eq!(answer, Err(Error::QpAccessNotSupported { flags }));
    uc.modify(&init).unwrap();
    let rtr = QpAttr {
        mask: QpType::Uc
            .transition(QpState::Init, QpState::Rtr)
            .unwrap()
            .required
            | oarlock_transport::AttrMask::STATE,
        state: QpState::Rtr,
        path_mtu: Mtu::MTU_1024,
        ..attr(A)
    };
    let (given, port) = (Mtu::MTU_1024, Mtu::MTU_512);
    assert_eq!(uc.modify(&rtr), Err(Error::PathMtuTooLarge { given, port }));
    assert_eq!(uc.state(), QpState::Init, "nothing has changed");
    assert_eq!(uc.query().path_mtu, QpAttr::default().path_mtu);
}

#[test]
fn completions_of_failed_requests_name_their_operation() {
    let mut host = Host::new(A, UcConfig::default(), QpState::Error);
    for op in [
        SendOp::Send,
        SendOp::Write(REMOTE),
        SendOp::WriteWithImm(REMOTE, 1),
        SendOp::LocalInvalidate(RKey(1)),
        SendOp::BindWindow(BIND),
    ] {
        host.op(1, op, &[]);
        host.collect();
        let last = host.completions.last().unwrap();
        assert_eq!((last.status, last.opcode), (FLUSHED, op.wc_opcode()));
        assert!(last.is_send && last.solicited);
    }
    host.recv(2, 4);
    host.collect();
    let last = host.completions.last().unwrap();
    assert_eq!((last.wr_id, last.opcode), (2, WcOpcode::RECV));
    assert!(!last.is_send);
}
