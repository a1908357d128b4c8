//! Random traffic against a model: what a queue pair promises its user.
//!
//! - Every accepted request completes exactly once (an unsignalled success: not at all), in the order of its queue.
//! - The messages received are the first of the messages sent, bit by bit, in order, with their immediate values.
//! - A send that succeeded was received. After the first failure nothing succeeds.

use std::time::Duration;

use oarlock_sim::{Network, NetworkConfig, Rng, for_each_seed};
use oarlock_transport::{
    Error, QpAttr, QpState, RcConfig, RecvWr, SendData, SendOp, SendWr, Sge, WcStatus,
};
use oarlock_wire::Mtu;
use proptest::prelude::*;

use crate::memory::VecMemory;
use crate::pair::{A, B, Pair, Setup};

#[derive(Clone, Debug)]
struct Message {
    len: usize,
    imm: Option<u32>,
    solicited: bool,
    signaled: bool,
    inline: bool,
}

#[derive(Clone, Debug)]
struct Plan {
    setup: Setup,
    network: NetworkConfig,
    seed: u64,
    /// What A sends, what B sends.
    messages: [Vec<Message>; 2],
    /// Probability per step that a receive is posted.
    eagerness: f64,
}

const MAX_INLINE: usize = 64;

struct Run<'a> {
    plan: &'a Plan,
    pair: Pair,
    rng: Rng,
    sent: [Vec<Vec<u8>>; 2],
    receives: [Vec<Vec<Sge>>; 2],
}

/// Cuts `len` bytes into up to four ranges with holes between them; ranges may be empty.
fn ranges(rng: &mut Rng, memory: &mut VecMemory, len: usize) -> Vec<Sge> {
    let mut left = len;
    let mut sges = Vec::new();
    for _ in 0..rng.below(4) {
        let take = rng.index(left + 1);
        sges.push(memory.alloc(take));
        memory.alloc(rng.index(9));
        left -= take;
    }
    sges.push(memory.alloc(left));
    sges
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            pair: Pair::over(&plan.setup, Network::new(plan.network.clone(), plan.seed)),
            rng: Rng::new(plan.seed ^ 0xA5A5),
            sent: Default::default(),
            receives: Default::default(),
        }
    }

    fn post_sends(&mut self, side: usize) {
        while let Some(message) = self.plan.messages[side].get(self.sent[side].len()) {
            let mut data = vec![0; message.len];
            self.rng.fill(&mut data);
            let host = &mut self.pair.hosts[side];
            let mark = host.memory.mark();
            let mut sges = Vec::new();
            if !message.inline {
                let mut rest = &data[..];
                for sge in ranges(&mut self.rng, &mut host.memory, message.len) {
                    let (part, behind) = rest.split_at(sge.len as usize);
                    sges.push(host.memory.store(part));
                    rest = behind;
                }
            }
            let wr = SendWr {
                wr_id: self.sent[side].len() as u64,
                op: message.imm.map_or(SendOp::Send, SendOp::SendWithImm),
                data: if message.inline {
                    SendData::Inline(&data)
                } else {
                    SendData::Sges(&sges)
                },
                signaled: message.signaled,
                solicited: message.solicited,
                ..SendWr::default()
            };
            match host.rc.post_send(&wr) {
                Ok(()) => self.sent[side].push(data),
                Err(Error::QueueFull { .. }) => return host.memory.release(mark),
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn post_receive(&mut self, side: usize) {
        let Some(message) = self.plan.messages[1 - side].get(self.receives[side].len()) else {
            return;
        };
        if !self.rng.chance(self.plan.eagerness) {
            return;
        }
        let capacity = message.len + self.rng.index(40);
        let host = &mut self.pair.hosts[side];
        let mark = host.memory.mark();
        let sges = ranges(&mut self.rng, &mut host.memory, capacity);
        let wr = RecvWr {
            wr_id: self.receives[side].len() as u64,
            sges: &sges,
        };
        match host.rc.post_recv(&wr) {
            Ok(()) => self.receives[side].push(sges),
            Err(Error::QueueFull { .. }) => host.memory.release(mark),
            Err(other) => panic!("{other}"),
        }
    }

    fn has_failed(&self) -> bool {
        self.pair
            .hosts
            .iter()
            .any(|host| host.rc.state() == QpState::Error)
    }

    fn is_all_posted(&self) -> bool {
        (0..2).all(|side| {
            self.sent[side].len() == self.plan.messages[side].len()
                && self.receives[side].len() == self.plan.messages[1 - side].len()
        })
    }

    /// Drives both sides until nothing happens any more. Returns whether every message arrived.
    fn run(mut self) -> bool {
        for _ in 0..200_000 {
            for side in [A, B] {
                self.post_sends(side);
                self.post_receive(side);
            }
            if !self.pair.step() && (self.is_all_posted() || self.has_failed()) {
                return self.check();
            }
        }
        panic!("never at rest: {}", self.pair.ladder);
    }

    fn check(mut self) -> bool {
        let failed = self.has_failed();
        if failed {
            // What a program does: the other side, too, is torn down.
            for host in &mut self.pair.hosts {
                host.rc.modify(&QpAttr::to_state(QpState::Error)).unwrap();
            }
            self.pair.run();
        }
        for side in [A, B] {
            self.check_sends(side, failed);
            self.check_receives(side, failed);
        }
        !failed
    }

    fn check_sends(&self, side: usize, failed: bool) {
        let completions = self.pair.hosts[side]
            .completions
            .iter()
            .filter(|c| c.is_send);
        let mut expected = 0;
        let mut first_failure = None;
        let mut succeeded = 0;
        for completion in completions {
            // Successful unsignalled ones are passed over in silence.
            while !self.plan.messages[side][expected].signaled
                && (expected as u64) < completion.wr_id
            {
                assert_eq!(
                    first_failure, None,
                    "a request without completion after a failure"
                );
                expected += 1;
            }
            assert_eq!(completion.wr_id, expected as u64, "order of the send queue");
            if completion.status.is_success() {
                assert_eq!(first_failure, None, "success after a failure");
                assert!(self.plan.messages[side][expected].signaled);
                assert_eq!(
                    completion.byte_len as usize,
                    self.sent[side][expected].len()
                );
                succeeded = expected + 1;
            } else if first_failure.is_none() {
                first_failure = Some(expected);
                let allowed = [
                    WcStatus::RETRY_EXC_ERR,
                    WcStatus::RNR_RETRY_EXC_ERR,
                    WcStatus::WR_FLUSH_ERR,
                ];
                assert!(
                    allowed.contains(&completion.status),
                    "{}",
                    completion.status
                );
            } else {
                assert_eq!(completion.status, WcStatus::WR_FLUSH_ERR);
            }
            expected += 1;
        }
        let silent = self.plan.messages[side][expected..self.sent[side].len()]
            .iter()
            .all(|message| !message.signaled);
        assert!(
            silent && (first_failure.is_none() || expected == self.sent[side].len()),
            "a completion is missing"
        );
        assert!(failed || first_failure.is_none());
        let received = self.received(1 - side).len();
        assert!(
            succeeded <= received,
            "send {succeeded} succeeded, {received} arrived"
        );
    }

    fn received(&self, side: usize) -> Vec<&oarlock_transport::Completion> {
        let completions = self.pair.hosts[side].completions.iter();
        completions
            .filter(|c| !c.is_send && c.status.is_success())
            .collect()
    }

    fn check_receives(&self, side: usize, failed: bool) {
        let host = &self.pair.hosts[side];
        let completions: Vec<_> = host.completions.iter().filter(|c| !c.is_send).collect();
        let ids: Vec<u64> = completions.iter().map(|c| c.wr_id).collect();
        let all: Vec<u64> = (0..self.receives[side].len() as u64).collect();
        assert_eq!(ids, all, "every receive completes once, in order");
        let received = self.received(side);
        if !failed {
            assert_eq!(
                received.len(),
                self.sent[1 - side].len(),
                "a message is missing"
            );
        }
        for (n, completion) in received.iter().enumerate() {
            assert_eq!(completion.wr_id, n as u64, "success after a failure");
            let message = &self.plan.messages[1 - side][n];
            let data = host
                .memory
                .load_all(&self.receives[side][n], completion.byte_len as usize);
            assert_eq!(data, self.sent[1 - side][n], "message {n}");
            assert_eq!(completion.imm, message.imm);
            assert_eq!(completion.solicited, message.solicited);
        }
    }
}

fn random_messages(rng: &mut Rng, mtu: usize) -> Vec<Message> {
    let count = 1 + rng.index(12);
    let message = |rng: &mut Rng| {
        let len = match rng.below(4) {
            0 => rng.index(MAX_INLINE + 1),
            1 => mtu * rng.index(4) + rng.index(3),
            _ => rng.index(6 * mtu),
        };
        Message {
            len,
            imm: rng.chance(0.3).then(|| rng.next_u64() as u32),
            solicited: rng.chance(0.5),
            signaled: rng.chance(0.7),
            inline: len <= MAX_INLINE && rng.chance(0.5),
        }
    };
    (0..count).map(|_| message(rng)).collect()
}

fn config(rng: &mut Rng) -> RcConfig {
    RcConfig {
        max_send_wr: 1 + rng.below(16) as u32,
        max_recv_wr: 1 + rng.below(16) as u32,
        max_inline: MAX_INLINE as u32,
        window: 1 + rng.below(70) as u32,
        ack_interval: 1 + rng.below(70) as u32,
        ..RcConfig::default()
    }
}

fn random_plan(seed: u64, loss: f64, faults: f64) -> Plan {
    let mut rng = Rng::new(seed);
    let mtu = Mtu(1 + rng.below(3) as u8);
    let bytes = usize::from(mtu.bytes().unwrap());
    let near_wrap = |rng: &mut Rng| (0xFF_FFF0 + rng.below(32) as u32) & 0xFF_FFFF;
    let setup = Setup {
        mtu,
        psn_a: near_wrap(&mut rng),
        psn_b: near_wrap(&mut rng),
        min_rnr_timer: 1 + rng.below(20) as u8,
        config: config(&mut rng),
        ..Setup::default()
    };
    let delay = Duration::from_micros(10)..=Duration::from_micros(30);
    Plan {
        setup,
        network: NetworkConfig {
            loss,
            duplication: faults,
            reorder: faults,
            delay,
            ..NetworkConfig::default()
        },
        seed,
        messages: [
            random_messages(&mut rng, bytes),
            random_messages(&mut rng, bytes),
        ],
        eagerness: if rng.chance(0.5) { 1.0 } else { 0.1 },
    }
}

#[test]
fn a_perfect_network_delivers_everything() {
    for_each_seed(100, |seed| {
        assert!(Run::new(&random_plan(seed, 0.0, 0.0)).run())
    });
}

#[test]
fn duplication_and_reordering_alone_lose_nothing() {
    for_each_seed(200, |seed| {
        assert!(Run::new(&random_plan(seed, 0.0, 0.2)).run())
    });
}

#[test]
fn one_packet_in_twenty_lost_is_made_good() {
    for_each_seed(200, |seed| {
        assert!(Run::new(&random_plan(seed, 0.05, 0.05)).run())
    });
}

#[test]
fn under_heavy_loss_both_sides_agree_or_give_up() {
    let (mut complete, mut given_up) = (0, 0);
    for_each_seed(300, |seed| {
        let mut plan = random_plan(seed, 0.35, 0.1);
        plan.setup.retry = (seed % 8) as u8;
        plan.setup.rnr_retry = (seed / 8 % 8) as u8;
        if Run::new(&plan).run() {
            complete += 1
        } else {
            given_up += 1
        }
    });
    // Both endings are reached, or the test would show less than it says. One seed alone has one ending.
    assert!(
        complete + given_up == 1 || (complete > 10 && given_up > 10),
        "{complete} complete, {given_up} not"
    );
}

fn message() -> impl Strategy<Value = Message> {
    let len = prop_oneof![0usize..=MAX_INLINE, 0usize..20_000];
    (len, any::<Option<u32>>(), any::<[bool; 3]>()).prop_map(
        |(len, imm, [solicited, signaled, inline])| Message {
            len,
            imm,
            solicited,
            signaled,
            inline: inline && len <= MAX_INLINE,
        },
    )
}

prop_compose! {
    fn plan()(
        mtu in 1u8..=5,
        psns in any::<[u32; 2]>(),
        messages in [prop::collection::vec(message(), 0..6), prop::collection::vec(message(), 0..6)],
        depths in [1u32..20, 1u32..20],
        window in 1u32..80,
        ack_interval in 1u32..80,
        loss in 0.0..0.03f64,
        faults in 0.0..0.2f64,
        seed in any::<u64>(),
    ) -> Plan {
        let config = RcConfig {
            max_send_wr: depths[0],
            max_recv_wr: depths[1],
            max_inline: MAX_INLINE as u32,
            window,
            ack_interval,
            ..RcConfig::default()
        };
        let setup =
            Setup { mtu: Mtu(mtu), psn_a: psns[0] >> 8, psn_b: psns[1] >> 8, config, ..Setup::default() };
        let network = NetworkConfig { loss, duplication: faults, reorder: faults, ..NetworkConfig::default() };
        Plan { setup, network, seed, messages, eagerness: 0.7 }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sizes_arrive_with_any_segmentation(plan in plan()) {
        prop_assert!(Run::new(&plan).run());
    }
}
