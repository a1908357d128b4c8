//! Finding a connection: by our comm id, by the peer's, by the peer's queue pair; and a resolution by the peer's request id.
//!
//! All but the first are keyed by what a peer writes and by the address it writes from: a REQ that names the comm id, the queue
//! pair and the GUID of somebody else neither meets that other's connection nor stands in its way.
//!
//! As a peer writes the keys, the hash is keyed with secret bits: a peer cannot choose keys that collide. (The standard
//! library's keyed hasher would take its key from the system, which this crate never asks.)

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use oarlock_wire::units::{CommId, Guid, PeerAddress, Qpn};

use crate::conn::Peer;
use crate::random::Random;

/// The place of a connection in the connection table.
pub(crate) type Slot = u32;

pub(crate) struct Index {
    by_local_id: HashMap<CommId, Slot, Keyed>,
    by_remote_id: HashMap<(CommId, Guid, PeerAddress), Slot, Keyed>,
    by_remote_qpn: HashMap<(Qpn, Guid, PeerAddress), Slot, Keyed>,
    by_sidr_request: HashMap<(CommId, PeerAddress), Slot, Keyed>,
}

impl Index {
    pub(crate) fn new(random: &mut Random) -> Self {
        let keyed = Keyed {
            key: random.secret_u64(),
            start: random.secret_u64(),
        };
        Self {
            by_local_id: HashMap::with_hasher(keyed),
            by_remote_id: HashMap::with_hasher(keyed),
            by_remote_qpn: HashMap::with_hasher(keyed),
            by_sidr_request: HashMap::with_hasher(keyed),
        }
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.by_local_id.shrink_to_fit();
        self.by_remote_id.shrink_to_fit();
        self.by_remote_qpn.shrink_to_fit();
        self.by_sidr_request.shrink_to_fit();
    }

    pub(crate) fn local_id(&self, id: CommId) -> Option<Slot> {
        self.by_local_id.get(&id).copied()
    }

    pub(crate) fn remote_id(&self, id: CommId, ca_guid: Guid, from: PeerAddress) -> Option<Slot> {
        self.by_remote_id.get(&(id, ca_guid, from)).copied()
    }

    pub(crate) fn remote_qpn(&self, qpn: Qpn, ca_guid: Guid, from: PeerAddress) -> Option<Slot> {
        self.by_remote_qpn.get(&(qpn, ca_guid, from)).copied()
    }

    pub(crate) fn insert_local_id(&mut self, id: CommId, slot: Slot) {
        self.by_local_id.insert(id, slot);
    }

    pub(crate) fn remove_local_id(&mut self, id: CommId) {
        self.by_local_id.remove(&id);
    }

    pub(crate) fn insert_peer(&mut self, peer: &Peer, at: PeerAddress, slot: Slot) {
        self.by_remote_id
            .insert((peer.comm_id, peer.ca_guid, at), slot);
        self.by_remote_qpn
            .insert((peer.qpn, peer.ca_guid, at), slot);
    }

    pub(crate) fn remove_peer(&mut self, peer: &Peer, at: PeerAddress) {
        self.by_remote_id.remove(&(peer.comm_id, peer.ca_guid, at));
        self.by_remote_qpn.remove(&(peer.qpn, peer.ca_guid, at));
    }

    /// The resolution that a SIDR_REQ with this id from this address belongs to.
    pub(crate) fn sidr_request(&self, id: CommId, from: PeerAddress) -> Option<Slot> {
        self.by_sidr_request.get(&(id, from)).copied()
    }

    /// A peer that began anew may use an id again: the newest request has it.
    pub(crate) fn insert_sidr_request(&mut self, id: CommId, from: PeerAddress, slot: Slot) {
        self.by_sidr_request.insert((id, from), slot);
    }

    /// Forgets a request, unless a newer one has its id.
    pub(crate) fn remove_sidr_request(&mut self, id: CommId, from: PeerAddress, slot: Slot) {
        if self.sidr_request(id, from) == Some(slot) {
            self.by_sidr_request.remove(&(id, from));
        }
    }

    /// Entries of the four maps, for tests of leaks.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> [usize; 4] {
        [
            self.by_local_id.len(),
            self.by_remote_id.len(),
            self.by_remote_qpn.len(),
            self.by_sidr_request.len(),
        ]
    }
}

/// A keyed multiply-and-fold hash over the few integers of a key.
#[derive(Clone, Copy)]
struct Keyed {
    key: u64,
    start: u64,
}

impl BuildHasher for Keyed {
    type Hasher = Fold;

    fn build_hasher(&self) -> Fold {
        Fold {
            key: self.key | 1,
            state: self.start,
        }
    }
}

struct Fold {
    key: u64,
    state: u64,
}

impl Fold {
    fn mix(&mut self, value: u64) {
        let product = u128::from(self.state ^ value).wrapping_mul(u128::from(self.key));
        self.state = (product as u64) ^ ((product >> 64) as u64) ^ self.state.rotate_left(29);
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn finish(&self) -> u64 {
        let product =
            u128::from(self.state ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(u128::from(self.key));
        (product as u64) ^ ((product >> 64) as u64)
    }
}
