//! What happened, by number. Every drop has its name here or in the counters of the IB CM.

/// One thing that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Counter {
    /// Connection requests that became events.
    RequestsQueued,
    /// Connection requests dropped because the listener's backlog was full.
    RequestsDroppedBacklog,
    /// Connection requests answered with REJ 3 because the listener's backlog was full.
    RequestsRejectedBacklog,
    /// Connection requests dropped because no more identifiers may exist.
    RequestsDroppedIds,
    /// Connection requests dropped because the channel held too many events.
    RequestsDroppedChannel,
    /// Connection requests rejected because their IP CM header has another version.
    RequestsRejectedHeader,
    /// Connection requests rejected because they address by something other than IP.
    RequestsRejectedNotIp,
    /// Connection requests rejected because the address asked for is not one of the device that they came to, or because
    /// a loopback address came from another host.
    RequestsRejectedAddress,
    /// Connection requests rejected because no listener has the address asked for.
    RequestsRejectedNoListener,
    /// Connection requests rejected because they ask for a transport other than RC.
    RequestsRejectedTransport,
    /// Connection requests rejected because their primary path does not lead to the device that they came to.
    RequestsRejectedGid,
    /// Connection requests rejected because their path MTU is none, or larger than the link's.
    RequestsRejectedMtu,
    /// Events of children that were not accepted yet, dropped.
    EventsDroppedUnaccepted,
    /// Events of the IB CM that the identifier's state has no use for, dropped.
    EventsDroppedState,
    /// Events removed with the identifier that they belonged to.
    EventsDestroyed,
    /// Events handed out.
    EventsReported,
    /// Events that moved to another channel.
    EventsMigrated,
    /// Peers that offered more reads or atomics than possible here, and were clamped.
    OffersClamped,
    /// Route lookups asked for.
    Lookups,
    /// Route lookups that took longer than allowed.
    LookupsTimedOut,
    /// Answers to route lookups that nobody waited for any more, dropped.
    LookupsStale,
    /// Events that the user put into a channel.
    EventsInjected,
    /// Identifiers whose address went from its device, or whose device changed.
    AddressChanges,
    /// Multicast joins asked for.
    MulticastJoins,
    /// Multicast joins that failed.
    MulticastErrors,
    /// Outcomes of membership changes that nobody waited for any more, dropped.
    MembershipsStale,
    /// Alternate paths that peers offered and that were taken.
    AlternatePathsLoaded,
    /// Alternate paths that peers offered and that were refused.
    AlternatePathsRefused,
}

impl Counter {
    /// Every counter.
    pub const ALL: [Self; 28] = [
        Self::RequestsQueued,
        Self::RequestsDroppedBacklog,
        Self::RequestsRejectedBacklog,
        Self::RequestsDroppedIds,
        Self::RequestsDroppedChannel,
        Self::RequestsRejectedHeader,
        Self::RequestsRejectedNotIp,
        Self::RequestsRejectedAddress,
        Self::RequestsRejectedNoListener,
        Self::RequestsRejectedTransport,
        Self::RequestsRejectedGid,
        Self::RequestsRejectedMtu,
        Self::EventsDroppedUnaccepted,
        Self::EventsDroppedState,
        Self::EventsDestroyed,
        Self::EventsReported,
        Self::EventsMigrated,
        Self::OffersClamped,
        Self::Lookups,
        Self::LookupsTimedOut,
        Self::LookupsStale,
        Self::EventsInjected,
        Self::AddressChanges,
        Self::MulticastJoins,
        Self::MulticastErrors,
        Self::MembershipsStale,
        Self::AlternatePathsLoaded,
        Self::AlternatePathsRefused,
    ];

    /// A stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RequestsQueued => "cma_requests_queued",
            Self::RequestsDroppedBacklog => "cma_requests_dropped_backlog",
            Self::RequestsRejectedBacklog => "cma_requests_rejected_backlog",
            Self::RequestsDroppedIds => "cma_requests_dropped_ids",
            Self::RequestsDroppedChannel => "cma_requests_dropped_channel",
            Self::RequestsRejectedHeader => "cma_requests_rejected_header",
            Self::RequestsRejectedNotIp => "cma_requests_rejected_not_ip",
            Self::RequestsRejectedAddress => "cma_requests_rejected_address",
            Self::RequestsRejectedNoListener => "cma_requests_rejected_no_listener",
            Self::RequestsRejectedTransport => "cma_requests_rejected_transport",
            Self::RequestsRejectedGid => "cma_requests_rejected_gid",
            Self::RequestsRejectedMtu => "cma_requests_rejected_mtu",
            Self::EventsDroppedUnaccepted => "cma_events_dropped_unaccepted",
            Self::EventsDroppedState => "cma_events_dropped_state",
            Self::EventsDestroyed => "cma_events_destroyed",
            Self::EventsReported => "cma_events_reported",
            Self::EventsMigrated => "cma_events_migrated",
            Self::OffersClamped => "cma_offers_clamped",
            Self::Lookups => "cma_lookups",
            Self::LookupsTimedOut => "cma_lookups_timed_out",
            Self::LookupsStale => "cma_lookups_stale",
            Self::EventsInjected => "cma_events_injected",
            Self::AddressChanges => "cma_address_changes",
            Self::MulticastJoins => "cma_multicast_joins",
            Self::MulticastErrors => "cma_multicast_errors",
            Self::MembershipsStale => "cma_memberships_stale",
            Self::AlternatePathsLoaded => "cma_alternate_paths_loaded",
            Self::AlternatePathsRefused => "cma_alternate_paths_refused",
        }
    }
}

/// The counters of a [`Cma`](crate::Cma), beside those of the IB CM that it owns.
#[derive(Clone, Debug)]
pub struct Counters {
    values: [u64; Counter::ALL.len()],
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self {
            values: [0; Counter::ALL.len()],
        }
    }

    pub(crate) const fn count(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    pub(crate) const fn add(&mut self, counter: Counter, more: u64) {
        self.values[counter as usize] += more;
    }

    /// The value of one counter.
    #[must_use]
    pub const fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL
            .iter()
            .map(|counter| (counter.name(), self.get(*counter)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lists_every_counter_in_order() {
        for (index, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, index, "{}", counter.name());
        }
    }
}
