//! XRC domains: which shared receive queues the targets of a process may be asked for (IBA Vol. 1 Annex A14).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock, Weak};

use oarlock_wire::{Qpn, Srqn};

use crate::context::Context;
use crate::error::Error;
use crate::locks::{read, write};
use crate::qp::{Owner, Qp};
use crate::srq::SrqShared;

/// An XRC domain: its targets take buffers of its shared receive queues, and of no others.
///
/// Clones are the same domain. It exists while a clone, a shared receive queue or a target of it does.
#[doc(alias = "ibv_xrcd")]
#[derive(Clone)]
pub struct XrcDomain {
    inner: Arc<Inner>,
}

struct Inner {
    context: Arc<Context>,
    next_srqn: AtomicU32,
    srqs: RwLock<HashMap<Srqn, Weak<SrqShared>>>,
    targets: RwLock<HashMap<Qpn, Weak<Owner>>>,
}

impl XrcDomain {
    /// Opens a domain of its own, for this process.
    ///
    /// `file` would name a domain that several processes share. Targets and shared receive queues live in the process that
    /// made them, which alone receives for them, so there is no such domain.
    ///
    /// # Errors
    /// `XrcDomainOfFile`: a file was given. `TooManyXrcDomains`. `Forked`.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open(context: &Arc<Context>, file: Option<BorrowedFd<'_>>) -> Result<Self, Error> {
        let core = context.endpoint().core();
        core.check_not_forked()?;
        if file.is_some() {
            return Err(Error::XrcDomainOfFile);
        }
        core.enter_xrc_domain(context.device().limits.max_xrcd)?;
        Ok(Self {
            inner: Arc::new(Inner {
                context: Arc::clone(context),
                // Random, so that a peer of an earlier life does not name a queue of this one.
                next_srqn: AtomicU32::new(RandomState::new().hash_one(0_u8) as u32),
                srqs: RwLock::default(),
                targets: RwLock::default(),
            }),
        })
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    /// Another handle of a target of this domain: it exists until the last handle is dropped.
    ///
    /// # Errors
    /// `NoSuchXrcTarget`: no target of this domain has the number.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_target(&self, qpn: Qpn) -> Result<Qp, Error> {
        let owner = read(&self.inner.targets).get(&qpn).and_then(Weak::upgrade);
        owner.map(Qp::of).ok_or(Error::NoSuchXrcTarget(qpn))
    }

    pub(crate) fn next_srqn(&self) -> Srqn {
        let srqs = read(&self.inner.srqs);
        loop {
            let number = Srqn::truncate(self.inner.next_srqn.fetch_add(1, Ordering::Relaxed));
            // Ends: the device has fewer queues than there are numbers. Zero is left out, since programs take it for none.
            if number.get() != 0 && !srqs.contains_key(&number) {
                return number;
            }
        }
    }

    pub(crate) fn enter_srq(&self, number: Srqn, srq: &Arc<SrqShared>) {
        write(&self.inner.srqs).insert(number, Arc::downgrade(srq));
    }

    pub(crate) fn forget_srq(&self, number: Srqn) {
        write(&self.inner.srqs).remove(&number);
    }

    /// The shared receive queue with this number.
    pub(crate) fn srq(&self, number: Srqn) -> Option<Arc<SrqShared>> {
        read(&self.inner.srqs).get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn enter_target(&self, qpn: Qpn, target: &Arc<Owner>) {
        write(&self.inner.targets).insert(qpn, Arc::downgrade(target));
    }

    pub(crate) fn forget_target(&self, qpn: Qpn) {
        write(&self.inner.targets).remove(&qpn);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.context.endpoint().core().forget_xrc_domain();
    }
}

impl PartialEq for XrcDomain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for XrcDomain {}

impl std::fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XrcDomain")
            .field("device", &self.inner.context.device().name)
            .field("shared_receive_queues", &read(&self.inner.srqs).len())
            .finish_non_exhaustive()
    }
}
