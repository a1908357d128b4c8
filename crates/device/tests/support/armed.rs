//! A receiver whose completions are reported on a channel, and a sender.

use std::os::fd::AsFd;
use std::sync::Arc;

use oarlock_device::{CompChannel, Cq, Qp, QpInit};
use oarlock_transport::{SendData, SendWr, WcStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Side, collect, connect, pair, recv};

/// Two sides, connected; the receiver's completion queue is on a channel, and 32 receives are posted.
pub(crate) struct Armed {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) sender: Qp,
    pub(crate) receiver: Qp,
    pub(crate) cq: Arc<Cq>,
    pub(crate) channel: Arc<CompChannel>,
}

/// What the queue's events carry.
pub(crate) const COOKIE: u64 = 77;

impl Armed {
    pub(crate) fn new(capacity: u32) -> Self {
        let (a, b) = pair();
        let channel = CompChannel::new(&b.context).expect("channel");
        let cq = Cq::new(&b.context, capacity, Some(&channel), COOKIE).expect("cq");
        let cq = Arc::new(cq);
        let sender = a.qp(QpInit::default());
        let receiver = Qp::new(&b.pd, &b.cq, &cq, QpInit::default()).expect("qp");
        connect((&a, &sender), (&b, &receiver));
        for wr_id in 0..32 {
            recv(&receiver, wr_id, &[]);
        }
        Self {
            a,
            b,
            sender,
            receiver,
            cq,
            channel,
        }
    }

    /// One message, which has completed at the receiver when this returns.
    pub(crate) fn send(&self, solicited: bool) {
        self.sender
            .post_send(&SendWr {
                solicited,
                data: SendData::Inline(&[]),
                ..SendWr::default()
            })
            .expect("post");
        assert_eq!(self.a.collect(1)[0].completion.status, WcStatus::SUCCESS);
        // The acknowledgement leaves before the completion is visible, both under the lock that this takes: so now it is.
        self.receiver.state();
    }

    /// The `wr_id`s of the next completions.
    pub(crate) fn numbers(&self, count: usize) -> Vec<u64> {
        let all = collect(&self.cq, count);
        all.iter().map(|cqe| cqe.completion.wr_id).collect()
    }
}

/// Whether a descriptor is readable now.
pub(crate) fn is_readable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&at_once)).expect("poll") == 1
}
