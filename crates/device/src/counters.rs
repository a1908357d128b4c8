//! What the device did and dropped, by name.

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters of an endpoint and the contexts on it.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[doc = $doc])* pub(crate) $name: Counter,)*
        }

        impl Counters {
            /// Every counter with its name.
            pub(crate) fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    /// Packets dropped: no packet of a kind that we know.
    malformed,
    /// Packets dropped: the queue pair number is of our slot, but no such queue pair exists.
    no_such_qp,
    /// Packets dropped: sent to a multicast group that no queue pair is attached to.
    no_such_group,
    /// Packets dropped: the queue pair number is of another slot.
    foreign_slot,
    /// Datagrams dropped: sent to an address that is not one of the device of the queue pair.
    wrong_interface,
    /// Congestion notifications received. There is no rate to lower: the system paces what we send.
    congestion_notifications,
    /// Packets that the port did not take for sending.
    send_failed,
    /// Packets not sent because the host service, and with it our slot, is gone.
    send_without_port,
    /// Failed attempts to receive from the port.
    receive_failed,
    /// Packets of peers' WRITEs that were placed.
    writes_placed,
    /// Received bytes that could not be placed.
    scatter_failed,
    /// Bytes to send that could not be read.
    gather_failed,
    /// Completions lost because the completion queue was full.
    completions_lost,
    /// Wake-ups of the engine thread.
    engine_wakeups,
    /// Turns of queue pairs that had more to send than one turn allows.
    turns,
    /// Deadlines handled.
    timeouts,
}
