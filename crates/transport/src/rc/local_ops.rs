//! Requests that no peer sees: local invalidate, bind of a memory window.
//!
//! They take no PSN. Each is executed once, when it is the oldest request of the queue, so that everything before it has
//! completed, and nothing behind it begins before: an implicit fence on both sides, stronger than the specification demands
//! (IBA Vol. 1 ch. 10 "Ordering of work requests"). A request that fails is a memory management operation error
//! ([`WcStatus::MW_BIND_ERR`]; IBA Vol. 1 ch. 11 "Completion return status") and ends the queue pair.

use super::Rc;
use crate::completion::WcStatus;
use crate::memory::MemoryError;

impl Rc {
    /// The oldest request is a local operation, and has been executed.
    pub(super) fn finish_local(&mut self, executed: Result<(), MemoryError>) {
        match executed {
            Ok(()) => {
                let Some(wqe) = self.sq.pop() else { return };
                self.requester.cursor = self.sq.head();
                self.complete_send(&wqe);
            }
            Err(error) => self.fail_oldest(WcStatus::MW_BIND_ERR, error.into()),
        }
    }
}
