//! Multicast groups of queue pairs.
