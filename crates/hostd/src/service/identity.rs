//! What a host is recognised by: its GUIDs, and the seed of its numbers.

use crate::{Error, sys};
use oarlock_cm::Seed;
use oarlock_wire::Guid;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;

/// A fresh seed.
pub(super) fn seed() -> Result<Seed, Error> {
    sys::random()
        .map(Seed)
        .map_err(Error::system("get random bytes"))
}

/// The GUID of the host in this network namespace: the same as long as the namespace exists, so that a peer recognises
/// stale connections of an earlier service.
pub(super) fn namespace_guid() -> Guid {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |metadata| metadata.ino());
    guid((boot, namespace))
}

/// A GUID that no other host has.
pub(super) fn random_guid() -> Result<Guid, Error> {
    sys::random::<8>()
        .map(guid)
        .map_err(Error::system("get random bytes"))
}

/// The GUID of a device of the host.
pub(super) fn device_guid(host: Guid, interface: &str) -> Guid {
    guid((host, interface))
}

/// A locally administered EUI-64 out of anything.
fn guid(value: impl Hash) -> Guid {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    Guid(hasher.finish() & 0x00FF_FFFF_FFFF_FFFF | 0x0200_0000_0000_0000)
}
