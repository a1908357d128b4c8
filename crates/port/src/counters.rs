//! Named counters of one endpoint.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one endpoint sent, received and dropped, by name.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* $name: AtomicU64,)*
        }

        impl Counters {
            $($(#[$doc])* #[must_use]
            pub fn $name(&self) -> u64 {
                self.$name.load(Ordering::Relaxed)
            })*

            /// Every counter with its name, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($name), &self.$name),)*]
                    .into_iter()
                    .map(|(name, value)| (name, value.load(Ordering::Relaxed)))
            }
        }

        /// Names a counter to [`Counters::add`].
        #[allow(non_camel_case_types, reason = "the variants are the counters' names")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Counter { $($name,)* }

        impl Counters {
            pub(crate) fn add(&self, counter: Counter, n: u64) {
                match counter {
                    $(Counter::$name => &self.$name,)*
                }
                .fetch_add(n, Ordering::Relaxed);
            }

            pub(crate) fn set(&self, counter: Counter, n: u64) {
                match counter {
                    $(Counter::$name => &self.$name,)*
                }
                .store(n, Ordering::Relaxed);
            }
        }
    };
}

counters! {
    /// Packets given to the network.
    tx_packets,
    /// Packets that the system had no room for (`EAGAIN`, `ENOBUFS`) or that a filter refused.
    tx_dropped,
    /// Packets delivered to the caller.
    rx_packets,
    /// Packets whose ICRC was wrong.
    icrc_bad,
    /// Datagrams longer than the receive buffer.
    truncated,
    /// Datagrams that came without their destination address.
    no_address,
    /// Datagrams too short for a BTH and an ICRC.
    not_rocev2,
    /// Packets for a queue pair of another slot.
    foreign_qp,
    /// Those of `foreign_qp` that were handed on to their slot.
    forwarded,
    /// Packets that another slot handed on to this one.
    forward_received,
    /// Forwarded packets without the right token, or malformed.
    forward_bad,
    /// Packets to a group that name another queue pair than 0xFFFFFF, or to one address that name it.
    group_qp_bad,
    /// Packets to a group of which this slot is no member, on the interface they came by.
    group_not_joined,
    /// Datagrams that the receive queue had no room for, those dropped before this endpoint was made included.
    rxq_overflow,
    /// Packets to an address or slot that nobody holds, to a group without members, or by a link that is down (in-memory
    /// wire).
    no_receiver,
    /// Packets lost by an injected fault.
    fault_lost,
    /// Packets duplicated by an injected fault.
    fault_duplicated,
    /// Packets that an injected fault made wait until another had overtaken them.
    fault_reordered,
    /// Packets delayed by an injected fault.
    fault_delayed,
    /// Packets of which an injected fault changed a bit.
    fault_corrupted,
    /// Delayed and reordered packets that went before their time, because too many waited.
    fault_released_early,
    /// Captured packets that could not be written to the capture file.
    capture_failed,
}
