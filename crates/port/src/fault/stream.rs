//! Streams of packets, each packet's place in its own, and dice that depend on nothing else.

use super::Direction;
use super::pattern::Head;
use std::collections::HashMap;

/// Where a packet stands: it is the same in every run in which a queue pair sends and receives the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) direction: Direction,
    /// The destination queue pair's number in the order of appearance, from 1.
    pub(super) qp: u32,
    /// Whether it is an answer.
    pub(super) is_response: bool,
    /// How many of the stream came before.
    pub(super) index: u64,
}

/// The streams that there have been.
#[derive(Debug, Default)]
pub(super) struct Streams {
    qps: HashMap<(Direction, u32), Qp>,
    seen: [u32; 2],
}

#[derive(Debug, Default)]
struct Qp {
    number: u32,
    requests: u64,
    responses: u64,
}

impl Streams {
    /// Gives a packet its place.
    pub(super) fn place(&mut self, direction: Direction, head: &Head) -> Place {
        let mut key = (direction, head.dest_qpn);
        // Strangers may name any number of queue pairs: those beyond the bound are one stream.
        if self.qps.len() >= MAX_QPS && !self.qps.contains_key(&key) {
            key.1 = u32::MAX;
        }
        let seen = &mut self.seen[usize::from(direction == Direction::Rx)];
        let qp = self.qps.entry(key).or_insert_with(|| {
            *seen += 1;
            Qp {
                number: *seen,
                ..Qp::default()
            }
        });
        let is_response = head.opcode.is_response();
        let next = if is_response {
            &mut qp.responses
        } else {
            &mut qp.requests
        };
        let index = *next;
        *next += 1;
        Place {
            direction,
            qp: qp.number,
            is_response,
            index,
        }
    }
}

impl Place {
    /// Random bits of a rule for the packet: the same seed, the same bits. `turn` tells several throws for one packet apart.
    pub(super) fn bits(&self, seed: u64, rule: usize, turn: u64) -> u64 {
        let kind = u64::from(self.direction == Direction::Rx) << 1 | u64::from(self.is_response);
        [rule as u64, kind, self.qp.into(), self.index, turn]
            .into_iter()
            .fold(mix(seed), |state, part| mix(state ^ mix(part)))
    }

    /// The same, from 0 to below 1.
    pub(super) fn unit(&self, seed: u64, rule: usize) -> f64 {
        (self.bits(seed, rule, 0) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

const MAX_QPS: usize = 4096;
