//! How often and for how long: retry counts, receivers that are not ready, credits, limits of READs and atomics. Attempts are
//! counted, times are not.

use oarlock_device::{Access, AsyncEvent, QpInit};
use oarlock_transport::{
    Counter, Error, QpState, QpType, RemoteAddress, SendData, SendOp, SendWr, VendorError, WcStatus,
};

use crate::conn::{Conn, RELIABLE};
use crate::end::{EVERYTHING, End, content};
use crate::support::ends::Link;
use crate::support::{eventually, pattern};
use crate::{assert_same, cases};

cases! {
    /// A silent peer: the request goes out once, and again as often as the retry count says.
    retry_count: silent_from, silent_at;
    /// A peer without buffers: likewise by the RNR retry count; 7 never gives up.
    rnr_retry_count: rnr_from, rnr_at;
    /// Requests that get lost on the way are reported by the peer, each time one attempt less.
    sequence_naks: gap_from, gap_at;
    /// One answer makes all attempts good again.
    counts_begin_anew: anew_from, anew_at;
    /// A sender stops where the receiver's buffers end, and asks with one packet.
    credits: credits_from, credits_at;
    /// No more READs and atomics are outstanding than the peer takes.
    rd_atomic_limit: limited_from, limited_at;
    /// More than the peer takes: it refuses.
    rd_atomic_exceeded: exceeding_from, exceeding_at;
    /// Every operation arrives whole and once over a network that loses, doubles and delays.
    bad_network: bad_from, bad_at;
}

fn silent_from(end: &mut End) {
    for service in RELIABLE {
        for retries in [0, 1, 3] {
            let link = Link {
                timeout: 8,
                retries,
                ..Link::default()
            };
            let conn = end.open_with(service, QpInit::default(), &link);
            end.meet();
            let done = end.attempt(&conn, SendOp::Send, &[]);
            let seen = (done.status, done.vendor_err);
            assert_eq!(seen, (WcStatus::RETRY_EXC_ERR, VendorError::ACK_TIMEOUTS));
            assert_eq!(conn.count(Counter::RequestsSent), 1 + u64::from(retries));
            assert_eq!(conn.count(Counter::RequestsResent), u64::from(retries));
            assert_eq!(conn.count(Counter::AckTimeouts), 1 + u64::from(retries));
            assert_eq!(conn.qp.state(), QpState::Error);
            end.meet();
        }
    }
}

fn silent_at(end: &mut End) {
    for service in RELIABLE {
        for retries in [0, 1, 3] {
            let conn = end.open(service);
            conn.to_state(QpState::Reset);
            end.meet();
            end.meet();
            eventually("every attempt", || {
                conn.count(Counter::DroppedWrongState) == 1 + retries
            });
        }
    }
}

fn rnr_from(end: &mut End) {
    for service in RELIABLE {
        for rnr_retry in [0, 1, 3, 7] {
            let link = Link {
                rnr_retry,
                ..Link::default()
            };
            let conn = end.open_with(service, QpInit::default(), &link);
            conn.post(&conn.wr(SendOp::Send));
            if rnr_retry == 7 {
                // The other side posts a buffer after more refusals than could be counted.
                assert_eq!(end.next().status, WcStatus::SUCCESS);
                assert!(conn.count(Counter::RnrNaksReceived) >= 10);
            } else {
                let done = end.next();
                let seen = (done.status, done.vendor_err);
                assert_eq!(seen, (WcStatus::RNR_RETRY_EXC_ERR, VendorError::RNR_NAKS));
                let attempts = 1 + u64::from(rnr_retry);
                assert_eq!(conn.count(Counter::RequestsSent), attempts);
            }
            end.meet();
        }
    }
}

fn rnr_at(end: &mut End) {
    for service in RELIABLE {
        for rnr_retry in [0, 1, 3, 7] {
            let conn = end.open(service);
            let refused = if rnr_retry == 7 { 10 } else { 1 + rnr_retry };
            eventually("every refusal", || {
                conn.count(Counter::RnrNaksSent) >= refused
            });
            if rnr_retry == 7 {
                conn.recv(1, &[]);
                assert_eq!(end.next().status, WcStatus::SUCCESS);
            }
            end.meet();
            if rnr_retry != 7 {
                assert_eq!(conn.count(Counter::RnrNaksSent), refused);
            }
        }
    }
}

/// Nobody waits for time here: it is the peer that reports.
const TIMELESS: Link = Link {
    mtu: oarlock_wire::Mtu::MTU_1024,
    access: Access::LOCAL_WRITE,
    reads: 4,
    timeout: 0,
    retries: 0,
    rnr_timer: 1,
    rnr_retry: 7,
    first_psn: 0xff_fff0,
};

fn gap_from(end: &mut End) {
    for retries in [0, 1] {
        let link = Link {
            retries,
            ..TIMELESS
        };
        let conn = end.open_with(QpType::Rc, QpInit::default(), &link);
        end.meet();
        let lost = link.first_psn;
        end.strike(&format!("drop:psn={lost},direction=tx,count=1"));
        for wr_id in [1, 2] {
            conn.post(&SendWr {
                wr_id,
                ..conn.wr(SendOp::Send)
            });
        }
        let done = end.nexts(2);
        let seen = done.iter().map(|done| (done.status, done.vendor_err));
        let expected = if retries == 0 {
            [
                (WcStatus::RETRY_EXC_ERR, VendorError::SEQUENCE_NAKS),
                (WcStatus::WR_FLUSH_ERR, VendorError::FLUSHED_BY_SEND),
            ]
        } else {
            [(WcStatus::SUCCESS, VendorError::NONE); 2]
        };
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        assert_eq!(conn.count(Counter::SequenceNaksReceived), 1);
        end.heal();
        end.meet();
    }
}

fn gap_at(end: &mut End) {
    for retries in [0, 1] {
        let conn = end.open_with(QpType::Rc, QpInit::default(), &TIMELESS);
        conn.recv(1, &[]);
        conn.recv(2, &[]);
        end.meet();
        if retries == 1 {
            for (done, wr_id) in end.nexts(2).iter().zip(1..) {
                assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::SUCCESS));
            }
        }
        end.meet();
        // Once for one gap, whatever comes behind it.
        assert_eq!(conn.count(Counter::SequenceNaksSent), 1);
        end.nothing();
    }
}

fn anew_from(end: &mut End) {
    let link = Link {
        retries: 1,
        ..TIMELESS
    };
    let conn = end.open_with(QpType::Rc, QpInit::default(), &link);
    end.meet();
    for round in 0..4 {
        // Every attempt but the last is used up.
        let faults = end.strike("drop:opcode=send,direction=tx,count=1");
        for _ in 0..2 {
            conn.post(&conn.wr(SendOp::Send));
        }
        for done in end.nexts(2) {
            assert_eq!(done.status, WcStatus::SUCCESS, "round {round}");
        }
        assert_eq!(faults.counts()[0].struck, 1);
    }
    assert_eq!(conn.count(Counter::SequenceNaksReceived), 4);
    end.heal();
    end.meet();
}

fn anew_at(end: &mut End) {
    let conn = end.open_with(QpType::Rc, QpInit::default(), &TIMELESS);
    for wr_id in 0..8 {
        conn.recv(wr_id, &[]);
    }
    end.meet();
    end.nexts(8);
    end.meet();
}

const MESSAGES: u64 = 24;

fn credits_from(end: &mut End) {
    let conn = end.open(QpType::Rc);
    end.meet();
    for n in 0..MESSAGES {
        conn.post(&SendWr {
            wr_id: n,
            data: SendData::Inline(&n.to_le_bytes()),
            ..conn.wr(SendOp::Send)
        });
    }
    for n in 0..MESSAGES {
        let done = end.next();
        let counted: Vec<_> = conn
            .qp
            .counters()
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(|(name, n)| format!("{name}={n}"))
            .collect();
        let seen = (done.wr_id, done.status, done.vendor_err);
        assert_eq!(
            seen,
            (n, WcStatus::SUCCESS, VendorError::NONE),
            "{}",
            counted.join(" ")
        );
    }
    assert!(conn.count(Counter::CreditStalls) > 0, "never out of credit");
    end.meet();
}

fn credits_at(end: &mut End) {
    let conn = end.open(QpType::Rc);
    let first = end.ready(&conn, 0, 8);
    end.meet();
    let (_, message) = end.received(&conn, &first);
    assert_eq!(message, 0_u64.to_le_bytes());
    for n in 1..MESSAGES {
        // The sender has come to the end of the buffers; with no buffer it asks.
        eventually("a packet that asks", || {
            conn.count(Counter::RnrNaksSent) >= n
        });
        let buffer = end.ready(&conn, n, 8);
        let (done, message) = end.received(&conn, &buffer);
        assert_eq!((done.wr_id, message), (n, n.to_le_bytes().to_vec()));
    }
    end.meet();
}

fn limited_from(end: &mut End) {
    let link = Link {
        reads: 1,
        ..Link::default()
    };
    for service in RELIABLE {
        let conn = end.open_with(service, QpInit::default(), &link);
        let remote = end.offered();
        let target = end.region(20 * 3000, Access::LOCAL_WRITE);
        for n in 0..20 {
            let sges = [target.sge(n * 3000, if n % 3 == 2 { 8 } else { 3000 })];
            let op = if n % 3 == 2 {
                SendOp::FetchAdd { remote, add: 1 }
            } else {
                SendOp::Read(remote)
            };
            conn.post(&SendWr {
                wr_id: n,
                data: SendData::Sges(&sges),
                ..conn.wr(op)
            });
        }
        // The peer takes one at a time, and would end the connection.
        for (done, n) in end.nexts(20).iter().zip(0..) {
            assert_eq!((done.wr_id, done.status), (n, WcStatus::SUCCESS));
        }
        let added: Vec<u64> = (0..20)
            .filter(|n| n % 3 == 2)
            .map(|n| target.load_u64(n * 3000).expect("aligned"))
            .collect();
        assert_eq!(added, [0, 1, 2, 3, 4, 5]);
        end.meet();
        let none = Link { reads: 0, ..link };
        let conn = end.open_with(service, QpInit::default(), &none);
        for op in [
            SendOp::Read(remote),
            SendOp::FetchAdd { remote, add: 1 },
            SendOp::CompareSwap {
                remote,
                compare: 0,
                swap: 0,
            },
        ] {
            let sges = [target.sge(0, 8)];
            let refused = conn.refused(&SendWr {
                data: SendData::Sges(&sges),
                ..conn.wr(op)
            });
            let operation = op.name();
            assert_eq!(refused, Error::NoReadsAllowed { operation });
        }
        end.meet();
    }
}

fn limited_at(end: &mut End) {
    let link = Link {
        reads: 1,
        ..Link::default()
    };
    for service in RELIABLE {
        let _conn = end.open_with(service, QpInit::default(), &link);
        let memory = end.region(3000, EVERYTHING);
        end.offer(&memory);
        end.meet();
        assert_eq!(memory.load_u64(0).expect("aligned"), 6);
        let none = Link { reads: 0, ..link };
        let _conn = end.open_with(service, QpInit::default(), &none);
        end.meet();
    }
}

/// The peer takes none, the first one is too many.
fn exceeding_from(end: &mut End) {
    for service in RELIABLE {
        for is_read in [true, false] {
            let conn = end.open(service);
            let remote = end.offered();
            let target = end.region(8, Access::LOCAL_WRITE);
            let op = if is_read {
                SendOp::Read(remote)
            } else {
                SendOp::FetchAdd { remote, add: 1 }
            };
            let done = end.attempt(&conn, op, &[target.sge(0, 8)]);
            let seen = (done.status, done.vendor_err);
            let expected = (WcStatus::REM_INV_REQ_ERR, VendorError::NAK_INVALID_REQUEST);
            assert_eq!(seen, expected);
            assert_eq!(content(&target), [0; 8]);
            end.meet();
        }
    }
}

fn exceeding_at(end: &mut End) {
    for service in RELIABLE {
        for _ in 0..2 {
            let link = Link {
                reads: 0,
                ..Link::default()
            };
            let conn = end.open_with(service, QpInit::default(), &link);
            let memory = end.region(8, EVERYTHING);
            end.offer(&memory);
            end.event(AsyncEvent::QpRequestError(conn.qp.qpn()));
            end.meet();
            assert_eq!(content(&memory), [0; 8]);
        }
    }
}

const RULES: &str = "drop:p=0.03,seed=1;duplicate:p=0.03,seed=2;reorder:p=0.03,seed=3;delay:us=300,p=0.02,seed=4;corrupt:p=0.02,seed=5";

fn bad_from(end: &mut End) {
    for service in RELIABLE {
        let link = Link {
            timeout: 15,
            ..Link::default()
        };
        let conn = end.open_with(service, QpInit::default(), &link);
        let remote = end.offered();
        end.strike(RULES);
        for round in 0..10 {
            one_of_each(end, &conn, remote, round);
        }
        end.heal();
        end.meet();
    }
}

fn one_of_each(end: &mut End, conn: &Conn, remote: RemoteAddress, round: usize) {
    let bytes = pattern(round, 9001);
    let source = end.filled(&bytes);
    let whole = [source.sge(0, 9001)];
    end.run(conn, SendOp::Send, &whole);
    end.run(conn, SendOp::WriteWithImm(remote, round as u32), &whole);
    let back = end.region(9001, Access::LOCAL_WRITE);
    end.run(conn, SendOp::Read(remote), &[back.sge(0, 9001)]);
    assert_same!(content(&back), bytes);
    let word = crate::moving::at(remote, 9008);
    let add = SendOp::FetchAdd {
        remote: word,
        add: 1,
    };
    end.run(conn, add, &[back.sge(0, 8)]);
    assert_eq!(back.load_u64(0).expect("aligned"), round as u64);
    end.meet();
    // The other side has looked at its memory.
    end.meet();
}

fn bad_at(end: &mut End) {
    for service in RELIABLE {
        let link = Link {
            timeout: 15,
            ..Link::default()
        };
        let conn = end.open_with(service, QpInit::default(), &link);
        let memory = end.region(9016, EVERYTHING);
        let mut buffers = Vec::new();
        for _ in 0..10 {
            buffers.push(end.ready(&conn, 1, 9001));
            buffers.push(end.ready(&conn, 2, 0));
        }
        end.offer(&memory);
        end.strike(RULES);
        for round in 0..10 {
            let (_, message) = end.received(&conn, &buffers[2 * round]);
            assert_same!(message, pattern(round, 9001));
            let done = end.next();
            assert_eq!((done.wr_id, done.imm), (2, Some(round as u32)));
            end.meet();
            assert_same!(content(&memory)[..9001], pattern(round, 9001));
            let count = memory.load_u64(9008).expect("aligned");
            assert_eq!(count, round as u64 + 1);
            end.meet();
        }
        end.heal();
        end.meet();
    }
}
