//! The queue by itself.

use std::collections::VecDeque;

use oarlock_sim::{Rng, for_each_seed};
use oarlock_transport::{Error, HeldReceive, RecvWr, Sge, Srq, SrqAttr, SrqConfig};
use oarlock_wire::{LKey, Srqn};

const SGE: Sge = Sge {
    addr: 0x1000,
    len: 64,
    lkey: LKey(7),
};

fn srq(max_wr: u32, max_sge: u32) -> Srq {
    Srq::new(SrqConfig { max_wr, max_sge })
}

fn post(srq: &mut Srq, wr_id: u64) -> Result<(), Error> {
    let addr = SGE.addr + wr_id;
    srq.post_recv(&RecvWr {
        wr_id,
        sges: &[Sge { addr, ..SGE }],
    })
}

fn take(srq: &mut Srq) -> Option<u64> {
    let mut held = HeldReceive::default();
    srq.take(&mut held).then(|| {
        let addr = SGE.addr + held.wr_id;
        assert_eq!(held.sges, [Sge { addr, ..SGE }]);
        held.wr_id
    })
}

#[test]
fn buffers_come_out_as_they_went_in() {
    let mut srq = srq(3, 2);
    assert!(srq.is_empty());
    assert_eq!(take(&mut srq), None);
    for round in 0..5 {
        for n in 0..3 {
            post(&mut srq, round * 3 + n).unwrap();
        }
        let (queue, depth) = ("shared receive", 3);
        assert_eq!(post(&mut srq, 99), Err(Error::QueueFull { queue, depth }));
        assert_eq!(srq.len(), 3);
        for n in 0..3 {
            assert_eq!(take(&mut srq), Some(round * 3 + n));
        }
    }
}

#[test]
fn lists_are_bounded_and_of_any_length_below() {
    let mut srq = srq(4, 2);
    let three = [SGE; 3];
    let wr = |sges| RecvWr { wr_id: 1, sges };
    let (given, max) = (3, 2);
    let answer = srq.post_recv(&wr(&three));
    assert_eq!(answer, Err(Error::TooManySges { given, max }));
    for len in 0..=2 {
        srq.post_recv(&wr(&three[..len])).unwrap();
    }
    let mut held = HeldReceive::default();
    for len in 0..=2 {
        assert!(srq.take(&mut held));
        assert_eq!(held.sges, three[..len]);
    }
}

/// What belongs to the implementation of `Memory` is left alone, and the list's memory is used again.
#[test]
fn taking_fills_in_the_request_only() {
    let mut srq = srq(2, 1);
    let mut held = HeldReceive {
        wr_id: 99,
        sges: Vec::with_capacity(8),
        domain: 5,
        srqn: Some(Srqn::truncate(6)),
    };
    assert!(!srq.take(&mut held));
    assert_eq!(held.wr_id, 99, "nothing was taken");
    post(&mut srq, 1).unwrap();
    assert!(srq.take(&mut held));
    assert_eq!((held.wr_id, held.domain), (1, 5));
    assert_eq!(held.srqn, Some(Srqn::truncate(6)));
    assert_eq!(held.sges.capacity(), 8);
}

/// IBA Vol. 1 ch. 11 "SRQ limit reached": once per arming, when fewer than the limit wait.
#[test]
fn the_limit_is_reported_once_per_arming() {
    let mut srq = srq(8, 1);
    for n in 0..5 {
        post(&mut srq, n).unwrap();
    }
    let _ = take(&mut srq);
    assert!(!srq.poll_limit_reached(), "nothing is armed");
    srq.set_limit(3).unwrap();
    assert_eq!(srq.query().limit, 3);
    let _ = take(&mut srq);
    assert!(!srq.poll_limit_reached(), "3 still wait");
    let _ = take(&mut srq);
    assert_eq!(srq.query().limit, 0, "disarmed");
    assert!(srq.poll_limit_reached());
    assert!(!srq.poll_limit_reached());
    let _ = take(&mut srq);
    assert!(!srq.poll_limit_reached(), "once");
    for n in 0..3 {
        post(&mut srq, n).unwrap();
    }
    srq.set_limit(4).unwrap();
    let _ = take(&mut srq);
    assert!(srq.poll_limit_reached(), "and once again");
}

/// Who arms too late is told at once: otherwise the event would wait for a message that may never come.
#[test]
fn a_limit_that_is_passed_already_is_reported_when_it_is_armed() {
    let mut srq = srq(8, 1);
    post(&mut srq, 1).unwrap();
    srq.set_limit(1).unwrap();
    assert!(!srq.poll_limit_reached());
    srq.set_limit(2).unwrap();
    assert!(srq.poll_limit_reached());
    assert_eq!(srq.query().limit, 0);
    // 0 is no limit.
    srq.set_limit(1).unwrap();
    srq.set_limit(0).unwrap();
    let _ = take(&mut srq);
    assert!(!srq.poll_limit_reached());
    let (attribute, given, max) = ("srq_limit", 9, 8);
    assert_eq!(
        srq.set_limit(9),
        Err(Error::AttributeTooLarge {
            attribute,
            given,
            max
        })
    );
}

#[test]
fn resizing_keeps_buffers_order_and_limit() {
    let mut srq = srq(4, 1);
    // Not at the beginning of the ring.
    for n in 0..3 {
        post(&mut srq, n).unwrap();
        assert_eq!(take(&mut srq), Some(n));
    }
    for n in 10..14 {
        post(&mut srq, n).unwrap();
    }
    srq.set_limit(2).unwrap();
    srq.resize(6).unwrap();
    let expected = SrqAttr {
        max_wr: 6,
        max_sge: 1,
        limit: 2,
    };
    assert_eq!(srq.query(), expected);
    for n in 14..16 {
        post(&mut srq, n).unwrap();
    }
    assert!(post(&mut srq, 16).is_err());
    let answer = srq.resize(5);
    let (queue, given, outstanding) = ("shared receive", 5, 6);
    let expected = Error::QueueInUse {
        queue,
        given,
        outstanding,
    };
    assert_eq!(answer, Err(expected));
    for n in 10..13 {
        assert_eq!(take(&mut srq), Some(n));
    }
    srq.resize(3).unwrap();
    for n in 13..15 {
        assert_eq!(take(&mut srq), Some(n));
    }
    assert!(srq.poll_limit_reached(), "the limit was kept");
    assert_eq!(take(&mut srq), Some(15));
    srq.set_limit(0).unwrap();
    srq.resize(0).unwrap();
    assert!(post(&mut srq, 1).is_err());
    srq.resize(1).unwrap();
    post(&mut srq, 2).unwrap();
    assert_eq!(take(&mut srq), Some(2));
}

/// Any calls in any order, against a plain list.
#[test]
fn the_queue_does_what_a_list_would() {
    for_each_seed(100, |seed| {
        let mut rng = Rng::new(seed);
        let mut depth = 1 + rng.below(6) as u32;
        let mut queue = srq(depth, 1);
        let mut list: VecDeque<u64> = VecDeque::new();
        let mut limit = 0;
        let mut told = false;
        for n in 0..300 {
            match rng.below(8) {
                0..=2 => {
                    let fits = list.len() < depth as usize;
                    assert_eq!(post(&mut queue, n).is_ok(), fits);
                    if fits {
                        list.push_back(n);
                    }
                }
                3..=5 => assert_eq!(take(&mut queue), list.pop_front()),
                6 => {
                    let asked = rng.below(8) as u32;
                    let allowed = asked <= depth;
                    assert_eq!(queue.set_limit(asked).is_ok(), allowed);
                    if allowed {
                        limit = asked;
                    }
                }
                _ => {
                    let asked = rng.below(8) as u32;
                    let allowed = list.len() <= asked as usize;
                    assert_eq!(queue.resize(asked).is_ok(), allowed);
                    if allowed {
                        depth = asked;
                    }
                }
            }
            if (list.len() as u32) < limit {
                limit = 0;
                told = true;
            }
            if rng.chance(0.5) {
                assert_eq!(queue.poll_limit_reached(), core::mem::take(&mut told));
            }
            assert_eq!(queue.len() as usize, list.len());
            assert_eq!((queue.query().max_wr, queue.query().limit), (depth, limit));
        }
    });
}
