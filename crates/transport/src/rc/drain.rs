//! State Sqd: what was begun is finished, nothing new begins.
//!
//! ```text
//!   Rts ──modify──> Sqd, draining ──all that was begun has completed──> Sqd, drained ──modify──> Sqd with other attributes
//!    ^                                  (event SqDrained, if asked for)      │
//!    └─────────────────────────────────modify────────────────────────────────┘
//! ```
//! A request was begun when one of its packets has been sent. Posts are accepted and wait; local operations have not begun.
//! While the queue drains, only Error and Reset can be reached. IBA Vol. 1 ch. 10 "Send queue drain (SQD)".

use super::{QpEvent, Rc};
use crate::attr::{AttrMask, QpAttr, QpState};
use crate::error::Error;

/// How far the draining has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Drain {
    /// Not in state Sqd, or drained.
    #[default]
    Idle,
    /// Requests that were begun have not completed yet.
    Draining {
        /// Say so when they have.
        notify: bool,
    },
}

impl Rc {
    /// Whether the state can be left so: not while requests that were begun are on their way (as Linux has it).
    pub(super) fn check_draining(&self, to: QpState) -> Result<(), Error> {
        if self.is_draining() && !matches!(to, QpState::Reset | QpState::Error) {
            return Err(Error::StillDraining { to });
        }
        Ok(())
    }

    pub(super) fn begin_drain(&mut self, attr: &QpAttr) {
        self.requester.drain = Drain::Draining {
            notify: attr.mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) && attr.sqd_notify,
        };
        self.check_drained();
    }

    pub(super) fn is_draining(&self) -> bool {
        self.requester.drain != Drain::Idle
    }

    /// Called whenever a request has completed, and when draining begins.
    pub(super) fn check_drained(&mut self) {
        let Drain::Draining { notify } = self.requester.drain else {
            return;
        };
        if self.requester.in_flight.is_settled() && self.requester.packet == 0 {
            self.requester.drain = Drain::Idle;
            if notify {
                self.events.push_back(QpEvent::SqDrained);
            }
        }
    }
}
