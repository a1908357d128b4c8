//! Every request that a responder refuses: by which NAK, with which event, and what becomes of the receive buffer.

use oarlock_transport::{
    AccessFlags, Counter, QpEvent, QpState, RemoteAddress, SendOp, VendorError, WcStatus,
};
use oarlock_wire::{ImmDt, NakCode, Opcode, Packet, PacketHeader, RKey, Syndrome};

use crate::forge::{self, atomic_eth, header, reth};
use crate::pair::{A, ALL_RIGHTS, B, Pair, Setup};

const FULL: [u8; 256] = [5; 256];

/// What the last packet of a case meets at B.
struct Case {
    name: &'static str,
    setup: Setup,
    /// What the peer may do with the memory it names.
    rights: AccessFlags,
    /// The packets, made from the memory offered.
    packets: fn(RemoteAddress) -> Vec<(PacketHeader, Vec<u8>)>,
    nak: NakCode,
    event: Option<QpEvent>,
    /// How B's receive ends, and why.
    receive: (WcStatus, VendorError),
}

/// An invalid request: the buffer that is flushed tells which rule it breaks.
fn case(
    name: &'static str,
    rule: VendorError,
    packets: fn(RemoteAddress) -> Vec<(PacketHeader, Vec<u8>)>,
) -> Case {
    Case {
        name,
        setup: Setup::default(),
        rights: ALL_RIGHTS,
        packets,
        nak: NakCode::INVALID_REQUEST,
        event: Some(QpEvent::RequestError),
        receive: (WcStatus::WR_FLUSH_ERR, rule),
    }
}

impl Case {
    /// The memory is offered to the peer, but not so.
    fn access(self, rights: AccessFlags) -> Self {
        Self {
            rights,
            nak: NakCode::REMOTE_ACCESS_ERROR,
            event: Some(QpEvent::AccessError),
            ..self
        }
    }

    fn receive(self, status: WcStatus) -> Self {
        Self {
            receive: (status, self.receive.1),
            ..self
        }
    }

    fn without(self, right: AccessFlags) -> Self {
        let access = ALL_RIGHTS.difference(right);
        Self {
            setup: Setup {
                access,
                ..self.setup
            },
            ..self
        }
    }

    fn run(self) {
        let name = self.name;
        let mut pair = Pair::new(&self.setup);
        let memory = pair.hosts[B].memory.alloc(1024);
        let remote = pair.hosts[B].memory.offer_for(memory, self.rights);
        pair.hosts[B].recv(20, 1000);
        let packets = (self.packets)(remote);
        let count = packets.len();
        for (header, payload) in packets {
            assert_eq!(pair.hosts[B].rc.state(), QpState::Rts, "{name}");
            forge::request(&mut pair, &header, &payload);
        }
        assert_eq!(pair.hosts[B].rc.state(), QpState::Error, "{name}");
        let at = 0x100 + count as u32 - 1;
        let answers = forge::sent(&mut pair, B);
        let last = Packet::parse(
            answers
                .last()
                .unwrap_or_else(|| panic!("{name}: no answer")),
        )
        .unwrap();
        let syndrome = last.aeth.map(|aeth| aeth.syndrome);
        assert_eq!(syndrome, Some(Syndrome::Nak(self.nak)), "{name}");
        assert_eq!(last.bth.psn.get(), at, "{name}");
        pair.drain_both();
        let mut events = vec![QpEvent::CommEst];
        events.extend(self.event);
        assert_eq!(pair.hosts[B].events, events, "{name}");
        let completion = pair.hosts[B].completions[0];
        assert_eq!(
            (completion.status, completion.vendor_err),
            self.receive,
            "{name}"
        );
        assert_eq!(pair.hosts[B].completions.len(), 1, "{name}");
        assert_eq!(pair.hosts[B].count(Counter::FatalNaksSent), 1, "{name}");
        let counter = match self.nak {
            NakCode::INVALID_REQUEST => Counter::InvalidRequestNaksSent,
            NakCode::REMOTE_ACCESS_ERROR => Counter::RemoteAccessNaksSent,
            _ => Counter::RemoteOperationalNaksSent,
        };
        assert_eq!(pair.hosts[B].count(counter), 1, "{name}");
        assert_eq!(pair.hosts[B].memory.atomics, 0, "{name}");
    }
}

fn write(opcode: Opcode, at: u32, remote: RemoteAddress, len: u32) -> PacketHeader {
    let header = header(B, opcode, at).with_reth(reth(remote.rkey, remote.addr, len));
    if opcode.has_immediate() {
        header.with_immdt(ImmDt(1))
    } else {
        header
    }
}

fn read(remote: RemoteAddress, len: u32) -> PacketHeader {
    header(B, Opcode::RC_RDMA_READ_REQUEST, 0x100).with_reth(reth(remote.rkey, remote.addr, len))
}

fn add(remote: RemoteAddress, offset: u64) -> PacketHeader {
    header(B, Opcode::RC_FETCH_ADD, 0x100)
        .with_atomic_eth(atomic_eth(remote.rkey, remote.addr + offset))
}

const FIRST: Opcode = Opcode::RC_RDMA_WRITE_FIRST;
const MIDDLE: Opcode = Opcode::RC_RDMA_WRITE_MIDDLE;
const LAST: Opcode = Opcode::RC_RDMA_WRITE_LAST;
const ONLY: Opcode = Opcode::RC_RDMA_WRITE_ONLY;
const ONLY_IMM: Opcode = Opcode::RC_RDMA_WRITE_ONLY_IMM;

#[test]
fn opcodes_that_cannot_follow_each_other_are_invalid() {
    let cases = [
        case(
            "WRITE middle without first",
            VendorError::OPCODE_SEQUENCE,
            |_| vec![(header(B, MIDDLE, 0x100), FULL.into())],
        ),
        case(
            "WRITE last without first",
            VendorError::OPCODE_SEQUENCE,
            |_| vec![(header(B, LAST, 0x100), FULL.into())],
        ),
        case("SEND in a WRITE", VendorError::OPCODE_SEQUENCE, |r| {
            vec![
                (write(FIRST, 0x100, r, 512), FULL.into()),
                (header(B, Opcode::RC_SEND_LAST, 0x101), FULL.into()),
            ]
        }),
        case("WRITE in a SEND", VendorError::OPCODE_SEQUENCE, |_| {
            vec![
                (header(B, Opcode::RC_SEND_FIRST, 0x100), FULL.into()),
                (header(B, LAST, 0x101), FULL.into()),
            ]
        }),
        case("new WRITE in a WRITE", VendorError::OPCODE_SEQUENCE, |r| {
            vec![
                (write(FIRST, 0x100, r, 512), FULL.into()),
                (write(ONLY, 0x101, r, 1), vec![1]),
            ]
        }),
        case("READ in a WRITE", VendorError::OPCODE_SEQUENCE, |r| {
            let mut request = read(r, 8);
            request.bth.psn = crate::pair::psn(0x101);
            vec![
                (write(FIRST, 0x100, r, 512), FULL.into()),
                (request, vec![]),
            ]
        }),
        case("atomic in a SEND", VendorError::OPCODE_SEQUENCE, |r| {
            let mut request = add(r, 0);
            request.bth.psn = crate::pair::psn(0x101);
            vec![
                (header(B, Opcode::RC_SEND_FIRST, 0x100), FULL.into()),
                (request, vec![]),
            ]
        }),
    ];
    cases.into_iter().for_each(Case::run);
}

#[test]
fn operations_that_the_queue_pair_does_not_enable_are_invalid() {
    let cases = [
        case("WRITE", VendorError::ACCESS_NOT_ENABLED, |r| {
            vec![(write(ONLY, 0x100, r, 1), vec![1])]
        })
        .without(AccessFlags::REMOTE_WRITE),
        case("empty WRITE", VendorError::ACCESS_NOT_ENABLED, |r| {
            vec![(write(ONLY, 0x100, r, 0), vec![])]
        })
        .without(AccessFlags::REMOTE_WRITE),
        case("READ", VendorError::ACCESS_NOT_ENABLED, |r| {
            vec![(read(r, 1), vec![])]
        })
        .without(AccessFlags::REMOTE_READ),
        case("atomic", VendorError::ACCESS_NOT_ENABLED, |r| {
            vec![(add(r, 0), vec![])]
        })
        .without(AccessFlags::REMOTE_ATOMIC),
    ];
    cases.into_iter().for_each(Case::run);
}

#[test]
fn packets_of_a_wrong_length_are_invalid() {
    let cases = [
        case("short first", VendorError::PACKET_LENGTH, |r| {
            vec![(write(FIRST, 0x100, r, 512), FULL[..252].into())]
        }),
        case("a first that is all", VendorError::WRITE_LENGTH, |r| {
            vec![(write(FIRST, 0x100, r, 256), FULL.into())]
        }),
        case(
            "only with less than announced",
            VendorError::WRITE_LENGTH,
            |r| vec![(write(ONLY, 0x100, r, 9), vec![0; 8])],
        ),
        case(
            "only with more than announced",
            VendorError::WRITE_LENGTH,
            |r| vec![(write(ONLY, 0x100, r, 7), vec![0; 8])],
        ),
        case(
            "only longer than the MTU",
            VendorError::PACKET_LENGTH,
            |r| vec![(write(ONLY, 0x100, r, 260), vec![0; 260])],
        ),
        case("last with less", VendorError::WRITE_LENGTH, |r| {
            vec![
                (write(FIRST, 0x100, r, 300), FULL.into()),
                (header(B, LAST, 0x101), vec![0; 40]),
            ]
        }),
        case("middle that ends it", VendorError::WRITE_LENGTH, |r| {
            vec![
                (write(FIRST, 0x100, r, 512), FULL.into()),
                (header(B, MIDDLE, 0x101), FULL.into()),
            ]
        }),
        case("empty last", VendorError::PACKET_LENGTH, |r| {
            vec![
                (write(FIRST, 0x100, r, 257), FULL.into()),
                (header(B, LAST, 0x101), vec![]),
            ]
        }),
        case("WRITE beyond 2^31", VendorError::WRITE_LENGTH, |r| {
            vec![(write(FIRST, 0x100, r, (1 << 31) + 1), FULL.into())]
        }),
        case("READ beyond 2^31", VendorError::PACKET_LENGTH, |r| {
            vec![(read(r, (1 << 31) + 1), vec![])]
        }),
        case(
            "READ request with payload",
            VendorError::PACKET_LENGTH,
            |r| vec![(read(r, 8), vec![0; 4])],
        ),
        case("atomic with payload", VendorError::PACKET_LENGTH, |r| {
            vec![(add(r, 0), vec![0; 4])]
        }),
        case("atomic at an odd address", VendorError::MISALIGNED, |r| {
            vec![(add(r, 4), vec![])]
        }),
    ];
    cases.into_iter().for_each(Case::run);
}

#[test]
fn memory_that_the_peer_may_not_access_so_is_an_access_error() {
    let cases = [
        case(
            "WRITE with an unknown key",
            VendorError::RKEY_UNKNOWN,
            |r| {
                let r = RemoteAddress {
                    rkey: RKey(0xBAD),
                    ..r
                };
                vec![(write(ONLY, 0x100, r, 1), vec![1])]
            },
        )
        .access(ALL_RIGHTS),
        case("WRITE beyond the end", VendorError::OUT_OF_BOUNDS, |r| {
            vec![(write(FIRST, 0x100, r, 1025), FULL.into())]
        })
        .access(ALL_RIGHTS),
        case("WRITE before the start", VendorError::OUT_OF_BOUNDS, |r| {
            let r = RemoteAddress {
                addr: r.addr - 1,
                ..r
            };
            vec![(write(ONLY, 0x100, r, 1), vec![1])]
        })
        .access(ALL_RIGHTS),
        case("WRITE without the right", VendorError::RIGHT_MISSING, |r| {
            vec![(write(ONLY, 0x100, r, 1), vec![1])]
        })
        .access(ALL_RIGHTS.difference(AccessFlags::REMOTE_WRITE)),
        case("READ with an unknown key", VendorError::RKEY_UNKNOWN, |r| {
            vec![(
                read(
                    RemoteAddress {
                        rkey: RKey(0xBAD),
                        ..r
                    },
                    1,
                ),
                vec![],
            )]
        })
        .access(ALL_RIGHTS),
        case("READ beyond the end", VendorError::OUT_OF_BOUNDS, |r| {
            vec![(read(r, 1025), vec![])]
        })
        .access(ALL_RIGHTS),
        case("READ without the right", VendorError::RIGHT_MISSING, |r| {
            vec![(read(r, 1), vec![])]
        })
        .access(ALL_RIGHTS.difference(AccessFlags::REMOTE_READ)),
        case(
            "atomic with an unknown key",
            VendorError::RKEY_UNKNOWN,
            |r| {
                vec![(
                    add(
                        RemoteAddress {
                            rkey: RKey(0xBAD),
                            ..r
                        },
                        0,
                    ),
                    vec![],
                )]
            },
        )
        .access(ALL_RIGHTS),
        case("atomic beyond the end", VendorError::OUT_OF_BOUNDS, |r| {
            vec![(add(r, 1024), vec![])]
        })
        .access(ALL_RIGHTS),
        case(
            "atomic without the right",
            VendorError::RIGHT_MISSING,
            |r| vec![(add(r, 0), vec![])],
        )
        .access(ALL_RIGHTS.difference(AccessFlags::REMOTE_ATOMIC)),
        case("no right at all", VendorError::RIGHT_MISSING, |r| {
            vec![(read(r, 1), vec![])]
        })
        .access(AccessFlags::empty()),
    ];
    cases.into_iter().for_each(Case::run);
}

/// The receive of a WRITE with immediate, and that of a SEND with invalidate, tell what happened.
#[test]
fn the_receive_that_a_refused_message_would_take_fails_with_its_own_status() {
    let cases = [
        case(
            "WRITE with immediate, unknown key",
            VendorError::RKEY_UNKNOWN,
            |r| {
                let r = RemoteAddress {
                    rkey: RKey(0xBAD),
                    ..r
                };
                vec![(write(ONLY_IMM, 0x100, r, 1), vec![1])]
            },
        )
        .access(ALL_RIGHTS)
        .receive(WcStatus::LOC_ACCESS_ERR),
        case(
            "WRITE with immediate, no right",
            VendorError::RIGHT_MISSING,
            |r| vec![(write(ONLY_IMM, 0x100, r, 1), vec![1])],
        )
        .access(AccessFlags::REMOTE_READ)
        .receive(WcStatus::LOC_ACCESS_ERR),
        case(
            "SEND with invalidate, unknown key",
            VendorError::RKEY_UNKNOWN,
            |_| {
                let header = header(B, Opcode::RC_SEND_ONLY_INVALIDATE, 0x100)
                    .with_ieth(oarlock_wire::Ieth(RKey(0xBAD)));
                vec![(header, vec![1])]
            },
        )
        .access(ALL_RIGHTS)
        .receive(WcStatus::REM_INV_REQ_ERR),
    ];
    cases.into_iter().for_each(Case::run);
}

/// The key of an operation without bytes is not looked at (IBA Vol. 1 ch. 9 "RDMA WRITE", "RDMA READ").
#[test]
fn an_operation_without_bytes_needs_no_key() {
    let nowhere = RemoteAddress {
        addr: u64::MAX,
        rkey: RKey(0xBAD),
    };
    let mut pair = Pair::new(&Setup::default());
    pair.hosts[B].recv(20, 0);
    pair.hosts[A].post(1, SendOp::Write(nowhere), &[]);
    pair.hosts[A].post(2, SendOp::WriteWithImm(nowhere, 7), &[]);
    pair.hosts[A].post(3, SendOp::Read(nowhere), &[]);
    pair.run();
    let success = WcStatus::SUCCESS;
    assert_eq!(
        pair.hosts[A].outcomes(),
        [(1, success), (2, success), (3, success)]
    );
    assert_eq!(pair.hosts[B].outcomes(), [(20, success)]);
}

#[test]
fn more_reads_and_atomics_than_agreed_are_invalid() {
    let setup = Setup {
        rd_atomic: 2,
        ..Setup::default()
    };
    let mut pair = Pair::new(&setup);
    let memory = pair.hosts[B].memory.alloc(1024);
    let remote = pair.hosts[B].memory.offer(memory);
    for n in 0..3 {
        let mut request = if n == 1 {
            add(remote, 0)
        } else {
            read(remote, 256)
        };
        request.bth.psn = crate::pair::psn(0x100 + n);
        forge::request(&mut pair, &request, &[]);
    }
    assert_eq!(pair.hosts[B].rc.state(), QpState::Error);
    // Those before the one too many are answered, in order.
    let answers = forge::outline(&forge::sent(&mut pair, B));
    let expected = [
        (Opcode::RC_RDMA_READ_RESPONSE_ONLY, 0x100),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, 0x101),
        (Opcode::RC_ACKNOWLEDGE, 0x102),
    ];
    assert_eq!(answers, expected);
    assert_eq!(pair.hosts[B].count(Counter::InvalidRequestNaksSent), 1);
    // With none agreed, the first is one too many.
    let setup = Setup {
        rd_atomic: 0,
        ..Setup::default()
    };
    let mut pair = Pair::new(&setup);
    forge::request(&mut pair, &read(remote, 0), &[]);
    assert_eq!(pair.hosts[B].rc.state(), QpState::Error);
}

/// Memory that the program has unmapped is no fault of the peer: a remote operational error, and a fatal event here.
#[test]
fn memory_that_is_gone_is_an_operational_error() {
    let ops: [fn(RemoteAddress) -> SendOp; 3] = [SendOp::Write, SendOp::Read, |remote| {
        SendOp::FetchAdd { remote, add: 1 }
    }];
    for op in ops {
        let mut pair = Pair::new(&Setup::default());
        let memory = pair.hosts[B].memory.alloc(8);
        let remote = pair.hosts[B].memory.offer(memory);
        pair.hosts[B].memory.vanish(memory);
        pair.hosts[B].recv(20, 8);
        pair.hosts[A].post(10, op(remote), &[0; 8]);
        pair.run();
        assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::REM_OP_ERR)]);
        assert_eq!(
            pair.hosts[A].completions[0].vendor_err,
            VendorError::NAK_REMOTE_OPERATIONAL
        );
        assert_eq!(pair.hosts[B].events, [QpEvent::CommEst, QpEvent::Fatal]);
        assert_eq!(pair.hosts[B].outcomes(), [(20, WcStatus::WR_FLUSH_ERR)]);
    }
    let mut pair = Pair::new(&Setup::default());
    let memory = pair.hosts[B].memory.alloc(8);
    let remote = pair.hosts[B].memory.offer(memory);
    pair.hosts[B].memory.vanish(memory);
    pair.hosts[B].recv(20, 8);
    pair.hosts[A].post(10, SendOp::WriteWithImm(remote, 1), &[0; 8]);
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, WcStatus::LOC_ACCESS_ERR)]);
    assert_eq!(
        pair.hosts[B].completions[0].vendor_err,
        VendorError::UNMAPPED
    );
}

/// A key that is taken away while a READ is answered ends it in the middle: the packets before are good, a NAK takes the place of
/// the next.
#[test]
fn a_read_whose_memory_goes_is_refused_in_its_middle() {
    let mut pair = Pair::new(&Setup::default());
    let memory = pair.hosts[B].memory.alloc(1024);
    let remote = pair.hosts[B].memory.offer(memory);
    pair.hosts[A].post(10, SendOp::Read(remote), &[0; 1024]);
    pair.hosts[A].post(11, SendOp::Write(remote), &[1; 8]);
    for bytes in forge::sent(&mut pair, A) {
        forge::deliver(&mut pair, B, &bytes);
    }
    let mut out = [0; oarlock_transport::MAX_PACKET_LEN];
    let now = pair.clock.now();
    for _ in 0..2 {
        let host = &mut pair.hosts[B];
        let sent = host
            .rc
            .poll_transmit(now, &mut host.memory, &mut out)
            .unwrap();
        let bytes = out[..sent.len].to_vec();
        let a = &mut pair.hosts[A];
        a.rc.handle_datagram(now, &sent.av.reversed(), &bytes, &mut a.memory);
    }
    oarlock_transport::Memory::invalidate(&mut pair.hosts[B].memory, remote.rkey).unwrap();
    pair.run();
    assert_eq!(
        pair.hosts[A].outcomes(),
        [(10, WcStatus::REM_ACCESS_ERR), (11, WcStatus::WR_FLUSH_ERR)]
    );
    assert_eq!(pair.hosts[A].count(Counter::ReadResponsesReceived), 2);
    assert_eq!(pair.hosts[A].count(Counter::RemoteAccessNaksReceived), 1);
    assert_eq!(
        pair.hosts[B].events,
        [QpEvent::CommEst, QpEvent::AccessError]
    );
    assert_eq!(pair.hosts[B].rc.state(), QpState::Error);
}

/// The fault rule `rnr`: requests of every kind are refused as often as asked for, and nothing of them happens.
#[test]
fn a_refused_request_is_repeated_and_executed_once() {
    let ops: [fn(RemoteAddress) -> SendOp; 4] = [
        |_| SendOp::Send,
        SendOp::Write,
        SendOp::Read,
        |remote| SendOp::FetchAdd { remote, add: 1 },
    ];
    for op in ops {
        let mut pair = Pair::new(&Setup::default());
        let word = pair.hosts[B].memory.store(&1u64.to_ne_bytes());
        let remote = pair.hosts[B].memory.offer(word);
        pair.hosts[B].recv(20, 8);
        pair.hosts[B].rc.refuse_request();
        pair.hosts[B].rc.refuse_request();
        pair.hosts[A].post(10, op(remote), &1u64.to_ne_bytes());
        pair.run();
        assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::SUCCESS)]);
        assert_eq!(pair.hosts[B].count(Counter::RnrNaksSent), 2);
        assert_eq!(pair.hosts[B].count(Counter::RnrInjected), 2);
        assert_eq!(pair.hosts[B].count(Counter::RequestsReceived), 1);
        assert!(pair.hosts[B].memory.atomics <= 1);
    }
}
