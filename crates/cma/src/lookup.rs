//! Route lookups: questions to the outside world.
//!
//! `resolve_addr` asks one question; its answer gives the source address, the device, the hop limit and the MTU, and the
//! connection keeps to that answer: nothing is looked up again.

use crate::{Errno, Id};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// Names one question. An answer to a question that nobody waits for any more is dropped and counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LookupToken(u64);

/// A question: how does one get there?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// To be given back with the answer.
    pub token: LookupToken,
    /// The source, if it is bound.
    pub source: Option<IpAddr>,
    /// The destination.
    pub destination: IpAddr,
    /// The interface of a link-local address, else 0.
    pub scope_id: u32,
    /// The type of service.
    pub tos: u8,
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The source address to use.
    pub source: IpAddr,
    /// The interface that the way leads through; for a local destination, the interface that owns the address.
    pub ifindex: u32,
    /// The next hop, if the destination is not on the link.
    pub gateway: Option<IpAddr>,
    /// The hop limit; 0 if the route says nothing.
    pub hop_limit: u8,
    /// The MTU of the way in bytes; 0 if the route says nothing.
    pub mtu: u32,
    /// Whether the destination is an address of this host.
    pub is_local: bool,
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LookupError {
    /// The system says that the destination cannot be reached, with this error number.
    Unreachable(Errno),
    /// The lookup itself failed, with this error number.
    Failed(Errno),
}

impl LookupError {
    /// The error number.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::Unreachable(errno) | Self::Failed(errno) => errno,
        }
    }
}

/// The questions that are open. There is at most one for each identifier.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    next_token: u64,
    waiting: BTreeMap<LookupToken, Id>,
    to_ask: VecDeque<Lookup>,
}

impl Lookups {
    pub(crate) fn ask(
        &mut self,
        id: Id,
        source: Option<IpAddr>,
        destination: IpAddr,
        scope_id: u32,
        tos: u8,
    ) -> LookupToken {
        let token = LookupToken(self.next_token);
        self.next_token += 1;
        self.waiting.insert(token, id);
        self.to_ask.push_back(Lookup {
            token,
            source,
            destination,
            scope_id,
            tos,
        });
        token
    }

    pub(crate) fn poll(&mut self) -> Option<Lookup> {
        while let Some(lookup) = self.to_ask.pop_front() {
            if self.waiting.contains_key(&lookup.token) {
                return Some(lookup);
            }
        }
        None
    }

    pub(crate) fn take(&mut self, token: LookupToken) -> Option<Id> {
        self.waiting.remove(&token)
    }
}
