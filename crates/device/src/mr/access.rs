//! Which access rights a region may be registered with, and which a window bound with.

use oarlock_transport::{AccessFlags, RemoteAccess};

use crate::error::Error;

/// Refuses rights that this device does not know or cannot give, and combinations that the specification forbids
/// (IBA Vol. 1 ch. 10: remote write and atomic access need local write access).
pub(super) fn check(access: AccessFlags) -> Result<(), Error> {
    for (bit, flag, reason) in REFUSED {
        if access.bits() & bit != 0 {
            return Err(Error::UnsupportedAccess {
                flag,
                bits: *bit,
                reason,
            });
        }
    }
    let unknown = access.bits() & !SUPPORTED.bits();
    if unknown != 0 {
        return Err(Error::UnsupportedAccess {
            flag: "of a later version",
            bits: unknown,
            reason: "its meaning is not known here",
        });
    }
    if !access.contains(AccessFlags::LOCAL_WRITE) {
        for (right, flag) in [
            (AccessFlags::REMOTE_WRITE, "REMOTE_WRITE"),
            (AccessFlags::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
        ] {
            if access.contains(right) {
                return Err(Error::LocalWriteMissing { flag });
            }
        }
    }
    Ok(())
}

/// The right that an operation of the peer needs.
pub(super) const fn right_for(access: RemoteAccess) -> AccessFlags {
    match access {
        RemoteAccess::Write => AccessFlags::REMOTE_WRITE,
        RemoteAccess::Read => AccessFlags::REMOTE_READ,
        RemoteAccess::Atomic => AccessFlags::REMOTE_ATOMIC,
    }
}

/// Whether peers may reach the memory, by the region's key or by a window's.
pub(super) const fn is_offered(access: AccessFlags) -> bool {
    access.intersects(REMOTE.union(AccessFlags::MW_BIND))
}

/// The rights of peers.
pub(super) const REMOTE: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// What a window may be bound with.
pub(super) const OF_WINDOWS: AccessFlags = REMOTE.union(AccessFlags::ZERO_BASED);

const SUPPORTED: AccessFlags = REMOTE
    .union(AccessFlags::LOCAL_WRITE)
    .union(AccessFlags::MW_BIND)
    .union(AccessFlags::ZERO_BASED)
    .union(AccessFlags::ON_DEMAND);

/// The other flags of Linux include/uapi/rdma/ib_user_ioctl_verbs.h (`enum ib_uverbs_access_flags`).
const REFUSED: &[(u32, &str, &str)] = &[
    (
        1 << 7,
        "HUGETLB",
        "pages are the operating system's affair here",
    ),
    (1 << 8, "FLUSH_GLOBAL", "the device has no FLUSH operation"),
    (
        1 << 9,
        "FLUSH_PERSISTENT",
        "the device has no FLUSH operation",
    ),
    (
        1 << 20,
        "RELAXED_ORDERING",
        "the device places data in order",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_known_or_refused_by_name() {
        for bit in 0..32 {
            let access = AccessFlags::from_bits_retain(1 << bit) | AccessFlags::LOCAL_WRITE;
            match check(access) {
                Ok(()) => assert!(bit <= 6, "bit {bit} was accepted"),
                Err(Error::UnsupportedAccess { flag, bits, .. }) => {
                    assert_eq!(bits, 1 << bit);
                    let name = match bit {
                        7 => "HUGETLB",
                        8 => "FLUSH_GLOBAL",
                        9 => "FLUSH_PERSISTENT",
                        20 => "RELAXED_ORDERING",
                        _ => "of a later version",
                    };
                    assert_eq!(flag, name, "bit {bit}");
                }
                Err(other) => panic!("bit {bit}: {other}"),
            }
        }
    }

    #[test]
    fn what_peers_may_write_the_device_must_be_allowed_to_write() {
        for (right, name) in [
            (AccessFlags::REMOTE_WRITE, "REMOTE_WRITE"),
            (AccessFlags::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
        ] {
            match check(right | AccessFlags::REMOTE_READ) {
                Err(Error::LocalWriteMissing { flag }) => assert_eq!(flag, name),
                other => panic!("{other:?}"),
            }
            check(right | AccessFlags::LOCAL_WRITE).expect("complete");
        }
        check(AccessFlags::REMOTE_READ).expect("reading needs no right to write");
        check(AccessFlags::MW_BIND).expect("a window for reading");
    }
}
