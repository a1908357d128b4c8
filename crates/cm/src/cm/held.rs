//! Requests that wait a moment for a listener that is expected back.
//!
//! Deviation: Linux rejects a request at once when nobody listens on its service ID (reason 8, or SIDR status 1). A server
//! that ends its listener to make another on the same port, as perftest does between its two connections, leaves a gap that
//! ends about when the peer's next request arrives; with a network card the peer happens to be slower. So a listener that its
//! owner ended by a call is [expected](Cm::expect_listener) back for [`RETURN_WINDOW`], and what asks for it meanwhile is held
//! for [`LONGEST_HOLD`].
//!
//! The peer sees nothing of it but the time: no message is made of a request that is held.

use std::collections::BTreeMap;
use std::time::Duration;

use oarlock_wire::Time;
use oarlock_wire::cm::{Rej, Req, SidrReq};
use oarlock_wire::units::{AddressVector, Guid, ServiceId, TransactionId};

use super::Cm;
use crate::{DropReason, MessageName};

/// How long after the end of a listener another one is expected. perftest goes on to its next connection after a second, on a
/// busy machine later.
pub(super) const RETURN_WINDOW: Duration = Duration::from_secs(10);

/// How long a request is held. Long enough for a program that was just about to listen and had to wait for a processor;
/// short beside the wait for an answer to a REQ (seconds), so that who asks in vain learns of it without delay to speak of.
pub(super) const LONGEST_HOLD: Duration = Duration::from_millis(500);

/// Requests that are held at a time. What comes beyond is rejected at once.
pub(super) const MAX_HELD: usize = 256;

/// Listeners that are expected at a time. An end beyond is the end.
pub(super) const MAX_EXPECTED: usize = 1024;

/// A request without a listener.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Req(Box<Req>),
    Sidr(Box<SidrReq>),
}

impl Request {
    fn service_id(&self) -> ServiceId {
        match self {
            Self::Req(req) => req.service_id,
            Self::Sidr(req) => req.service_id,
        }
    }

    const fn name(&self) -> MessageName {
        match self {
            Self::Req(_) => MessageName::Req,
            Self::Sidr(_) => MessageName::SidrReq,
        }
    }
}

/// A request with what it came with.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) av: AddressVector,
    pub(super) tid: TransactionId,
    pub(super) request: Request,
}

impl Held {
    /// Whether `av`, `tid` and `request` are this request again.
    fn is(&self, av: &AddressVector, tid: TransactionId, request: &Request) -> bool {
        self.av.peer() == av.peer()
            && match (&self.request, request) {
                (Request::Req(held), Request::Req(req)) => {
                    (held.local_comm_id, held.local_ca_guid)
                        == (req.local_comm_id, req.local_ca_guid)
                }
                (Request::Sidr(held), Request::Sidr(req)) => self.tid == tid && held == req,
                _ => false,
            }
    }
}

/// Who ended a listener, and until when another is expected.
#[derive(Clone, Copy, Debug)]
struct Expected {
    until: Time,
    from: u64,
}

/// What is held, in the order of the ends of the waits.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    expected: BTreeMap<ServiceId, Expected>,
    /// The number tells requests of one instant apart, in the order of their arrival.
    held: BTreeMap<(Time, u64), Held>,
    arrivals: u64,
}

impl Waiting {
    /// When the first wait is over.
    pub(super) fn earliest(&self) -> Option<Time> {
        self.held.first_key_value().map(|((until, _), _)| *until)
    }

    /// A request whose wait is over.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Held> {
        let first = self.held.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Ends the wait of those who ask for one of `services`: they are due, in the order of their arrival.
    fn end_waits(&mut self, is_over: impl Fn(ServiceId) -> bool) {
        let keys: Vec<_> = self
            .held
            .iter()
            .filter(|(_, held)| is_over(held.request.service_id()))
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            if let Some(held) = self.held.remove(&key) {
                self.held.insert((Time::default(), key.1), held);
            }
        }
    }

    /// A listener has come.
    pub(super) fn listener_came(&mut self, service_id: ServiceId) {
        self.expected.remove(&service_id);
        self.end_waits(|asked| asked == service_id);
    }
}

impl Cm {
    /// Says that a listener of `service_id`, which has ended, may come back soon: for 10 s, requests for it are held for up to
    /// half a second before they are rejected. If a listener comes, they reach it as if they had just arrived. At most 256
    /// requests are held, and 1024 listeners expected; what comes beyond is rejected as if there were no expectation.
    ///
    /// `from` is whoever is expected to listen, for [`expect_no_more`](Self::expect_no_more). Nothing happens while there is
    /// a listener.
    pub fn expect_listener(&mut self, now: Time, service_id: ServiceId, from: u64) {
        if self.listeners.contains_key(&service_id) {
            return;
        }
        let expected = &mut self.waiting.expected;
        if expected.len() >= MAX_EXPECTED {
            expected.retain(|_, expected| now < expected.until);
        }
        if expected.len() < MAX_EXPECTED || expected.contains_key(&service_id) {
            let until = now + RETURN_WINDOW;
            expected.insert(service_id, Expected { until, from });
        }
    }

    /// Says that `from` will not listen again, as it has ended: what waits for it is rejected at the next
    /// [`handle_timeout`](Self::handle_timeout), which is due at once.
    pub fn expect_no_more(&mut self, from: u64) {
        let mut gone = Vec::new();
        self.waiting.expected.retain(|service_id, expected| {
            let stays = expected.from != from;
            if !stays {
                gone.push(*service_id);
            }
            stays
        });
        if !gone.is_empty() {
            self.waiting.end_waits(|asked| gone.contains(&asked));
        }
    }

    /// Listeners that are expected, requests that are held.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.waiting.expected.len(), self.waiting.held.len())
    }

    /// Holds a request that nobody listens for, if somebody is expected to. `false`: it is to be rejected.
    pub(super) fn hold(
        &mut self,
        now: Time,
        av: &AddressVector,
        tid: TransactionId,
        request: Request,
    ) -> bool {
        let waiting = &mut self.waiting;
        let expected = waiting.expected.get(&request.service_id());
        if expected.is_none_or(|expected| expected.until <= now) {
            return false;
        }
        if waiting.held.values().any(|held| held.is(av, tid, &request)) {
            self.out.drop_duplicate(request.name());
            return true;
        }
        if waiting.held.len() >= MAX_HELD {
            return false;
        }
        waiting.arrivals += 1;
        waiting.held.insert(
            (now + LONGEST_HOLD, waiting.arrivals),
            Held {
                av: *av,
                tid,
                request,
            },
        );
        true
    }

    /// The peer gave up a request that is held, and says so. `false` if there is none.
    pub(super) fn withdraw_held(&mut self, av: &AddressVector, rej: &Rej, guid: Guid) -> bool {
        let before = self.waiting.held.len();
        self.waiting.held.retain(|_, held| {
            let Request::Req(req) = &held.request else {
                return true;
            };
            (req.local_comm_id, req.local_ca_guid) != (rej.local_comm_id, guid)
                || held.av.peer() != av.peer()
        });
        let found = self.waiting.held.len() < before;
        if found {
            self.out
                .drop_message(MessageName::Req, DropReason::Withdrawn);
        }
        found
    }
}
