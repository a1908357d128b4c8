//! Joining and leaving multicast groups.
