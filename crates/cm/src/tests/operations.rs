//! Random lists of operations on a pair: nothing panics, nothing leaks, whatever the order.

use std::time::Duration;

use oarlock_sim::{NetworkConfig, Rng};
use oarlock_wire::mad::MAD_LEN;
use oarlock_wire::{AprStatus, IbTimeout, Qpn, RejReason, SidrStatus};
use proptest::prelude::*;

use super::support::{A, B, Pair, accept_params, config, connect_params};
use crate::{
    AcceptParams, AlternatePathParams, Config, ConnId, ConnectParams, Event, SidrParams,
    SidrReplyParams,
};

/// One input to one side. `pick` chooses among the ids that side has ever had.
#[derive(Clone, Debug)]
enum Op {
    Connect {
        qpn: u8,
        retries: u8,
        deadline: Option<u16>,
    },
    Accept {
        qpn: u8,
    },
    Establish,
    NotifyEstablished,
    SidrRequest {
        retries: u8,
        deadline: Option<u16>,
    },
    SidrReply {
        status: u8,
    },
    LoadPath,
    AnswerPath {
        status: u8,
    },
    /// A message of any kind with random content, to the connection if `named`, from the peer or from a stranger.
    Forge {
        attribute: u16,
        named: bool,
        stranger: bool,
        seed: u64,
    },
    Reject {
        stale: bool,
    },
    SendMra {
        timeout: u8,
    },
    Disconnect,
    ReplyDisconnect,
    DropRequest,
    Destroy,
    /// A message that was sent before, again, with one byte changed or none.
    Replay {
        pick: u16,
        byte: u8,
        value: Option<u8>,
    },
    Pass {
        millis: u16,
    },
    Timeout,
    Deliver,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u8..4, 0u8..4, proptest::option::of(0u16..9000)).prop_map(|(qpn, retries, deadline)| Op::Connect { qpn, retries, deadline }),
        3 => (0u8..4).prop_map(|qpn| Op::Accept { qpn }),
        3 => Just(Op::Establish),
        1 => Just(Op::NotifyEstablished),
        2 => (0u8..4, proptest::option::of(0u16..9000)).prop_map(|(retries, deadline)| Op::SidrRequest { retries, deadline }),
        2 => (0u8..7).prop_map(|status| Op::SidrReply { status }),
        2 => Just(Op::LoadPath),
        2 => (0u8..7).prop_map(|status| Op::AnswerPath { status }),
        2 => (0x10u16..0x1B, any::<bool>(), any::<bool>(), any::<u64>())
            .prop_map(|(attribute, named, stranger, seed)| Op::Forge { attribute, named, stranger, seed }),
        1 => any::<bool>().prop_map(|stale| Op::Reject { stale }),
        1 => (0u8..32).prop_map(|timeout| Op::SendMra { timeout }),
        2 => Just(Op::Disconnect),
        2 => Just(Op::ReplyDisconnect),
        1 => Just(Op::DropRequest),
        1 => Just(Op::Destroy),
        2 => (any::<u16>(), any::<u8>(), proptest::option::of(any::<u8>())).prop_map(|(pick, byte, value)| Op::Replay { pick, byte, value }),
        2 => (0u16..6000).prop_map(|millis| Op::Pass { millis }),
        2 => Just(Op::Timeout),
        5 => Just(Op::Deliver),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_list_of_operations_is_survived_and_everything_can_be_destroyed(
        ops in proptest::collection::vec((0usize..2, any::<u16>(), op()), 1..120),
        seed in any::<u64>(),
    ) {
        let limits = |side| Config { max_connections: 12, max_half_open: 4, ..config(side) };
        let network = NetworkConfig { loss: 0.1, duplication: 0.1, reorder: 0.1, ..NetworkConfig::default() };
        let mut pair = Pair::with([limits(A), limits(B)], network, seed);
        pair.cms[A].listen(super::support::SERVICE).expect("the first listener");
        let mut ids: [Vec<ConnId>; 2] = Default::default();
        for (side, pick, op) in ops {
            apply(&mut pair, &mut ids, side, pick, &op);
            for side in [A, B] {
                pair.drain(side);
                for event in pair.events[side].drain(..) {
                    if let Event::ReqReceived { id, .. } | Event::SidrReqReceived { id, .. } = event {
                        ids[side].push(id);
                    }
                }
                prop_assert!(pair.cms[side].connections() <= 12);
                prop_assert!(pair.cms[side].half_open() <= 4);
            }
        }
        for side in [A, B] {
            let now = pair.now();
            for id in &ids[side] {
                pair.cms[side].destroy(now, *id);
            }
            prop_assert_eq!(pair.cms[side].connections(), 0);
            prop_assert_eq!(pair.cms[side].half_open(), 0);
            prop_assert_eq!(pair.cms[side].footprint(), ([0; 4], 0));
            prop_assert_eq!(pair.cms[side].poll_event(), None);
        }
    }
}

fn apply(pair: &mut Pair, ids: &mut [Vec<ConnId>; 2], side: usize, pick: u16, op: &Op) {
    let now = pair.now();
    let cm = &mut pair.cms[side];
    let id = (!ids[side].is_empty()).then(|| ids[side][usize::from(pick) % ids[side].len()]);
    // A refusal is a correct answer; only panics and leaks are looked for.
    let _refused = match (op, id) {
        (
            Op::Connect {
                qpn,
                retries,
                deadline,
            },
            _,
        ) => {
            let params = ConnectParams {
                av: super::support::av(side),
                local_qpn: Qpn::truncate(u32::from(*qpn) + 0x10),
                max_cm_retries: *retries,
                deadline: deadline.map(|millis| Duration::from_millis(millis.into())),
                ..connect_params()
            };
            cm.connect(now, params)
                .map(|id| ids[side].push(id))
                .is_err()
        }
        (Op::Accept { qpn }, Some(id)) => cm
            .accept(
                now,
                id,
                AcceptParams {
                    local_qpn: Qpn::truncate(u32::from(*qpn) + 0x20),
                    ..accept_params()
                },
            )
            .is_err(),
        (Op::Establish, Some(id)) => cm.establish(now, id, &[1]).is_err(),
        (Op::NotifyEstablished, Some(id)) => cm.notify_established(now, id).is_err(),
        (Op::SidrRequest { retries, deadline }, _) => {
            let params = SidrParams {
                max_cm_retries: *retries,
                deadline: deadline.map(|millis| Duration::from_millis(millis.into())),
                ..SidrParams::new(super::support::av(side), super::support::SERVICE)
            };
            cm.sidr_request(now, params)
                .map(|id| ids[side].push(id))
                .is_err()
        }
        (Op::SidrReply { status }, Some(id)) => cm
            .sidr_reply(now, id, SidrReplyParams::refusal(SidrStatus(*status)))
            .is_err(),
        (Op::LoadPath, Some(id)) => cm
            .load_alternate_path(now, id, AlternatePathParams::new(Default::default()))
            .is_err(),
        (Op::AnswerPath { status }, Some(id)) => cm
            .answer_alternate_path(now, id, AprStatus(*status), &[], &[])
            .is_err(),
        (
            Op::Forge {
                attribute,
                named,
                stranger,
                seed,
            },
            id,
        ) => {
            let mut mad = [0; MAD_LEN];
            Rng::new(*seed).fill(&mut mad);
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&attribute.to_be_bytes());
            let names = id.and_then(|id| cm.comm_id(id)).filter(|_| *named);
            if let Some(comm_id) = names {
                // The receiver's comm id is the second of most messages, and the request id is the first of a SIDR_REP.
                let at = if *attribute == 0x18 { 24 } else { 28 };
                mad[at..at + 4].copy_from_slice(&comm_id.0.to_be_bytes());
            }
            let mut from = super::support::av(side);
            if *stranger {
                from.remote = oarlock_wire::Gid::from_ip([10, 0, 0, 99].into());
            }
            cm.handle_mad(now, &from, &mad);
            false
        }
        (Op::Reject { stale }, Some(id)) => {
            let reason = if *stale {
                RejReason::STALE_CONNECTION
            } else {
                RejReason::CONSUMER_DEFINED
            };
            cm.reject(now, id, reason, &[], &[]).is_err()
        }
        (Op::SendMra { timeout }, Some(id)) => {
            cm.send_mra(now, id, IbTimeout::truncate(*timeout)).is_err()
        }
        (Op::Disconnect, Some(id)) => cm.disconnect(now, id, &[]).is_err(),
        (Op::ReplyDisconnect, Some(id)) => cm.reply_disconnect(now, id, &[]).is_err(),
        (Op::DropRequest, Some(id)) => cm.drop_request(now, id).is_err(),
        (Op::Destroy, Some(id)) => {
            cm.destroy(now, id);
            false
        }
        (Op::Replay { pick, byte, value }, _) if !pair.sent.is_empty() => {
            let (from, mut transmit) = pair.sent[usize::from(*pick) % pair.sent.len()];
            if let Some(value) = value {
                transmit.mad[usize::from(*byte)] = *value;
            }
            pair.inject(1 - from, &transmit);
            false
        }
        (Op::Pass { millis }, _) => {
            pair.clock.advance(Duration::from_millis((*millis).into()));
            false
        }
        (Op::Timeout, _) => {
            cm.handle_timeout(now);
            false
        }
        (Op::Deliver, _) => {
            if let Some(next) = pair.network.next_delivery() {
                pair.advance_to(next);
            }
            false
        }
        _ => false,
    };
}
