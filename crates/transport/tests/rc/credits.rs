//! End-to-end flow control.

use oarlock_transport::{Counter, RcConfig, SendOp, WcStatus};
use oarlock_wire::{Aeth, Opcode, Packet, Syndrome};

use crate::forge;
use crate::pair::{A, B, Pair, Setup};

fn with_credits() -> Pair {
    let config = RcConfig {
        flow_control: true,
        ..RcConfig::default()
    };
    Pair::new(&Setup {
        config,
        ..Setup::default()
    })
}

fn credits(bytes: &[u8]) -> Option<u8> {
    match Packet::parse(bytes).unwrap().aeth?.syndrome {
        Syndrome::Ack { credits } => Some(credits),
        _ => None,
    }
}

/// Says to A that B has completed `msn` messages and has so many buffers.
fn grant(pair: &mut Pair, at: u32, msn: u32, credits: u8) {
    let syndrome = Syndrome::Ack { credits };
    let header = forge::header(A, Opcode::RC_ACKNOWLEDGE, at).with_aeth(Aeth { syndrome, msn });
    forge::response(pair, &header, &[]);
}

#[test]
fn acknowledgements_tell_how_many_buffers_wait() {
    for (flow_control, expected) in [(true, [3, 2]), (false, [31, 31])] {
        let config = RcConfig {
            flow_control,
            ..RcConfig::default()
        };
        let mut pair = Pair::new(&Setup {
            config,
            ..Setup::default()
        });
        for n in 0..3 {
            pair.hosts[B].recv(n, 600);
        }
        // The buffer of a message in progress counts until the message does.
        let first = forge::header(B, Opcode::RC_SEND_FIRST, 0x100);
        forge::request(&mut pair, &first, &[0; 256]);
        let middle = forge::sent(&mut pair, B);
        let last = forge::header(B, Opcode::RC_SEND_LAST, 0x101);
        forge::request(&mut pair, &last, &[0; 4]);
        let end = forge::sent(&mut pair, B);
        let given = [&middle[0], &end[0]].map(|bytes| credits(bytes).unwrap());
        assert_eq!(given, expected);
    }
}

#[test]
fn a_shared_queue_gives_no_credits() {
    let config = RcConfig {
        flow_control: true,
        ..RcConfig::default()
    };
    let setup = Setup {
        config,
        ..Setup::default()
    };
    let mut pair = Pair::new(&setup.shared());
    pair.hosts[B].memory.share(None);
    pair.hosts[B].memory.post_shared(None, 1, 10);
    forge::request(
        &mut pair,
        &forge::header(B, Opcode::RC_SEND_ONLY, 0x100),
        b"x",
    );
    let answer = forge::sent(&mut pair, B);
    assert_eq!(credits(&answer[0]), Some(Syndrome::NO_CREDITS));
}

#[test]
fn without_credit_one_packet_is_sent_as_a_probe() {
    let mut pair = Pair::new(&Setup::default());
    for n in 10..16 {
        pair.hosts[A].send(n, &[1; 300]);
    }
    // Nothing is known yet: no limit.
    let all = forge::sent(&mut pair, A);
    assert_eq!(all.len(), 12);
    for n in 16..20 {
        pair.hosts[A].send(n, &[1; 300]);
    }
    // All six are done, and there is one buffer more: one message of two packets.
    grant(&mut pair, 0x10B, 6, 1);
    let one = forge::sent(&mut pair, A);
    assert_eq!(one.len(), 2);
    assert_eq!(pair.hosts[A].count(Counter::CreditStalls), 0);
    grant(&mut pair, 0x10D, 7, 0);
    let probe = forge::sent(&mut pair, A);
    assert_eq!(forge::outline(&probe), [(Opcode::RC_SEND_FIRST, 0x10E)]);
    assert!(
        Packet::parse(&probe[0]).unwrap().bth.ack_request,
        "a probe asks for an answer"
    );
    assert_eq!(pair.hosts[A].count(Counter::CreditStalls), 1);
    // The answer to the probe gives two more.
    grant(&mut pair, 0x10E, 7, 2);
    let rest = forge::sent(&mut pair, A);
    assert_eq!(rest.len(), 3);
    // A peer that gives up flow control gives up the limit.
    grant(&mut pair, 0x111, 9, Syndrome::NO_CREDITS);
    assert_eq!(forge::sent(&mut pair, A).len(), 2);
    grant(&mut pair, 0x113, 10, Syndrome::NO_CREDITS);
    pair.drain_both();
    assert_eq!(pair.hosts[A].completions.len(), 10);
}

#[test]
fn requests_that_take_no_buffer_need_no_credit_but_count_as_messages() {
    let mut pair = Pair::new(&Setup::default());
    let remote = Default::default();
    pair.hosts[A].send(10, b"x");
    let _ = forge::sent(&mut pair, A);
    grant(&mut pair, 0x100, 1, 1);
    pair.hosts[A].post(11, SendOp::Write(remote), b"y");
    pair.hosts[A].post(12, SendOp::Read(remote), b"z");
    let add = SendOp::FetchAdd { remote, add: 1 };
    pair.hosts[A].post(13, add, &[0; 8]);
    pair.hosts[A].send(14, b"beyond: it is message 5, and 2 is the limit");
    assert_eq!(forge::sent(&mut pair, A).len(), 3);
    grant(&mut pair, 0x101, 2, 1);
    assert_eq!(forge::sent(&mut pair, A).len(), 0);
    // Data give credits, too.
    let header = forge::header(A, Opcode::RC_RDMA_READ_RESPONSE_ONLY, 0x102).with_aeth(Aeth {
        syndrome: Syndrome::Ack { credits: 2 },
        msn: 3,
    });
    forge::response(&mut pair, &header, b"z");
    let next = forge::outline(&forge::sent(&mut pair, A));
    assert_eq!(next, [(Opcode::RC_SEND_ONLY, 0x104)]);
}

/// A local operation is no message.
#[test]
fn local_operations_do_not_count_as_messages() {
    let mut pair = Pair::new(&Setup::default());
    let sge = pair.hosts[A].memory.alloc(8);
    let key = pair.hosts[A].memory.offer(sge).rkey;
    pair.hosts[A].post_local(9, SendOp::LocalInvalidate(key));
    pair.hosts[A].send(10, b"message 1");
    let _ = forge::sent(&mut pair, A);
    grant(&mut pair, 0x100, 1, 1);
    pair.hosts[A].send(11, b"message 2");
    pair.hosts[A].send(12, b"message 3, for which there is no credit");
    let next = forge::outline(&forge::sent(&mut pair, A));
    assert_eq!(next, [(Opcode::RC_SEND_ONLY, 0x101)]);
    assert_eq!(
        pair.hosts[A].count(Counter::CreditStalls),
        0,
        "it is no probe"
    );
}

/// Both sides of one kind: nothing waits for ever, and fewer messages meet a receiver that is not ready.
#[test]
fn two_sides_with_credits_come_to_an_end() {
    let mut pair = with_credits();
    for n in 0..40 {
        pair.hosts[A].send(n, &[n as u8; 700]);
    }
    for n in 0..40 {
        pair.hosts[B].recv(n, 700);
        pair.run_until(oarlock_wire::Time::from_nanos((n + 1) * 2_000_000));
    }
    pair.run();
    let expected: Vec<_> = (0..40).map(|n| (n, WcStatus::SUCCESS)).collect();
    assert_eq!(pair.hosts[A].outcomes(), expected);
    assert_eq!(pair.hosts[B].outcomes(), expected);
    assert!(pair.hosts[A].count(Counter::CreditStalls) > 0);
}
