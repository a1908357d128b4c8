//! Random traffic over bad networks against what a UC queue pair promises.
//!
//! - Every accepted request completes exactly once (an unsignalled success: not at all), in the order of its queue.
//! - What is received is a subsequence of what was sent: whole messages, bit by bit, in order, none twice. A network that
//!   loses, repeats and reorders nothing delivers all of them.
//! - Memory that is offered to the peer holds, after the last WRITE with immediate that was received, that WRITE's bytes.

use std::collections::VecDeque;
use std::time::Duration;

use oarlock_sim::{Network, NetworkConfig, Rng, for_each_seed};
use oarlock_transport::{
    AccessFlags, Counter, QpState, RemoteAddress, SendData, SendOp, SendWr, Sge, Uc, UcConfig,
    WcOpcode, WcStatus,
};

use crate::pair::{A, B, Pair};

struct Message {
    bytes: Vec<u8>,
    imm: Option<u32>,
    is_write: bool,
}

struct World {
    rng: Rng,
    pair: Pair,
    /// What A has sent, oldest first.
    sent: Vec<Message>,
    signaled: VecDeque<u64>,
    buffers: VecDeque<(u64, Sge)>,
    target: (Sge, RemoteAddress),
    posted: u64,
    /// The first of `sent` that may be received next.
    next: usize,
    received: usize,
}

const LEN: usize = 1500;

impl World {
    fn new(seed: u64, network: NetworkConfig) -> Self {
        let config = UcConfig {
            max_send_wr: 8,
            max_recv_wr: 8,
            burst: 7,
            ..UcConfig::default()
        };
        let mut pair = Pair::over(config, Network::new(network, seed));
        let target = pair.hosts[B].memory.offer(LEN, AccessFlags::REMOTE_WRITE);
        Self {
            rng: Rng::new(seed ^ 0x5EED),
            pair,
            sent: Vec::new(),
            signaled: VecDeque::new(),
            buffers: VecDeque::new(),
            target,
            posted: 0,
            next: 0,
            received: 0,
        }
    }

    /// Posts a random request at A.
    fn send(&mut self) {
        let number = self.sent.len();
        let len = self.rng.index(LEN);
        let mut bytes: Vec<u8> = (0..len).map(|_| self.rng.below(256) as u8).collect();
        if len >= 4 {
            bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
        }
        let imm = self.rng.chance(0.5).then(|| self.rng.below(1 << 32) as u32);
        let is_write = self.rng.chance(0.4);
        let op = match (is_write, imm) {
            (false, None) => SendOp::Send,
            (false, Some(imm)) => SendOp::SendWithImm(imm),
            (true, None) => SendOp::Write(self.target.1),
            (true, Some(imm)) => SendOp::WriteWithImm(self.target.1, imm),
        };
        let signaled = self.rng.chance(0.7);
        let host = &mut self.pair.hosts[A];
        let sge = [host.memory.store(&bytes)];
        let wr = SendWr {
            wr_id: number as u64,
            op,
            data: if len <= 64 && self.rng.chance(0.5) {
                SendData::Inline(&bytes)
            } else {
                SendData::Sges(&sge)
            },
            signaled,
            ..SendWr::default()
        };
        if host.uc.post_send(&wr).is_err() {
            return;
        }
        if signaled {
            self.signaled.push_back(number as u64);
        }
        self.sent.push(Message {
            bytes,
            imm,
            is_write,
        });
    }

    fn recv(&mut self) {
        let b = &mut self.pair.hosts[B];
        let sge = b.memory.alloc(LEN);
        let wr = oarlock_transport::RecvWr {
            wr_id: self.posted,
            sges: &[sge],
        };
        if b.uc.post_recv(&wr).is_ok() {
            self.buffers.push_back((self.posted, sge));
            self.posted += 1;
        }
    }

    /// Takes what has completed, and compares.
    fn judge(&mut self) {
        for completion in self.pair.hosts[A].completions.drain(..) {
            assert_eq!(completion.status, WcStatus::SUCCESS);
            assert_eq!(Some(completion.wr_id), self.signaled.pop_front());
        }
        let all: Vec<_> = self.pair.hosts[B].completions.drain(..).collect();
        for completion in all {
            assert_eq!(completion.status, WcStatus::SUCCESS);
            let (wr_id, sge) = self.buffers.pop_front().expect("a buffer was posted");
            assert_eq!(completion.wr_id, wr_id);
            let is_write = completion.opcode == WcOpcode::RECV_RDMA_WITH_IMM;
            let len = completion.byte_len as usize;
            let placed = if is_write { None } else { Some(sge) };
            let bytes = placed.map(|sge| self.pair.hosts[B].memory.load(sge, len));
            let found = self.sent[self.next..].iter().position(|message| {
                message.is_write == is_write
                    && message.imm == completion.imm
                    && message.bytes.len() == len
                    && bytes.as_ref().is_none_or(|bytes| *bytes == message.bytes)
            });
            let found = found.unwrap_or_else(|| panic!("{completion:?} was never sent, or before"));
            self.next += found + 1;
            self.received += 1;
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.rng.below(4) {
                0 => self.send(),
                1 => self.recv(),
                _ => {
                    let _ = self.pair.step();
                }
            }
            self.judge();
        }
        self.pair.run();
        self.judge();
        assert!(self.signaled.is_empty(), "every request completes");
        assert!(self.pair.hosts.iter().all(|h| h.uc.state() == QpState::Rts));
    }
}

fn counted(uc: &Uc, counter: Counter) -> u64 {
    uc.counters().get(counter)
}

#[test]
fn what_is_received_was_sent_in_that_order_and_once() {
    let mut delivered = 0;
    for_each_seed(60, |seed| {
        let network = NetworkConfig {
            loss: 0.03,
            duplication: 0.03,
            reorder: 0.03,
            extra_delay: Duration::from_micros(1)..=Duration::from_micros(300),
            ..NetworkConfig::default()
        };
        let mut world = World::new(seed, network);
        world.run(400);
        delivered += world.received;
    });
    assert!(
        delivered > 200,
        "bad networks deliver something: {delivered}"
    );
}

#[test]
fn a_good_network_loses_only_what_had_no_buffer() {
    for_each_seed(20, |seed| {
        let mut world = World::new(seed, NetworkConfig::default());
        world.run(400);
        let b = &world.pair.hosts[B].uc;
        let sent = world.sent.iter();
        let tells = sent.filter(|message| !message.is_write || message.imm.is_some());
        let dropped = tells.count() - world.received;
        let no_buffer = counted(b, Counter::DroppedReceiverNotReady);
        assert_eq!(dropped > 0, no_buffer > 0);
        for reason in [
            Counter::DroppedOutOfOrder,
            Counter::DroppedInvalidRequest,
            Counter::DroppedRemoteAccess,
            Counter::DuplicateRequests,
            Counter::SequenceGaps,
        ] {
            assert_eq!(counted(b, reason), 0, "{reason:?}");
        }
    });
}

/// The last WRITE of all is in the target, whatever was lost before.
#[test]
fn the_target_of_writes_holds_the_last_one_received() {
    for_each_seed(20, |seed| {
        let network = NetworkConfig {
            loss: 0.05,
            duplication: 0.05,
            reorder: 0.05,
            extra_delay: Duration::from_micros(1)..=Duration::from_micros(300),
            ..NetworkConfig::default()
        };
        let mut world = World::new(seed, network);
        world.run(150);
        world.pair.network.set_config(NetworkConfig::default());
        world.recv();
        let bytes: Vec<u8> = (0..LEN).map(|i| (i as u64 * 7 + seed) as u8).collect();
        let op = SendOp::WriteWithImm(world.target.1, 1);
        world.pair.hosts[A].op(u64::MAX, op, &bytes);
        world.pair.run();
        let last = world.pair.hosts[B].completions.last().expect("received");
        assert_eq!(last.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
        assert_eq!(world.pair.hosts[B].memory.load(world.target.0, LEN), bytes);
    });
}
