//! What the sides of rping(1) send each other between the transfers.
//!
//! ```text
//!  byte
//!     0  address (64)
//!     8  remote key (32)
//!    12  bytes (32)
//! ```
//! Numbers are in network byte order. A client names its memory with it; a server says that it is done, with a message of the same
//! length whose content is of no meaning.

use oarlock_verbs::RemoteAddress;
use oarlock_wire::RKey;

/// Memory of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) memory: RemoteAddress,
    pub(super) len: u32,
}

/// Bytes of an [`Info`].
pub(super) const INFO_LEN: usize = 16;

impl Info {
    pub(super) fn emit(self) -> [u8; INFO_LEN] {
        let mut field = [0; INFO_LEN];
        field[..8].copy_from_slice(&self.memory.addr.to_be_bytes());
        field[8..12].copy_from_slice(&self.memory.rkey.0.to_be_bytes());
        field[12..].copy_from_slice(&self.len.to_be_bytes());
        field
    }

    pub(super) fn parse(field: &[u8; INFO_LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *field;
        let [i, j, k, l, m, n, o, p] = rest;
        Self {
            memory: RemoteAddress {
                addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
                rkey: RKey(u32::from_be_bytes([i, j, k, l])),
            },
            len: u32::from_be_bytes([m, n, o, p]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of the first SEND between two kernels' rping programs (Linux 6.1, rdma-core 44).
    #[test]
    fn an_info_is_that_of_rping() {
        let bytes = [
            0x00, 0x00, 0x55, 0xf0, 0xe1, 0xb1, 0xd3, 0x70, 0x00, 0x00, 0x05, 0xdd, 0x00, 0x00,
            0x00, 0x40,
        ];
        let info = Info {
            memory: RemoteAddress {
                addr: 0x55f0_e1b1_d370,
                rkey: RKey(0x05dd),
            },
            len: 64,
        };
        assert_eq!(Info::parse(&bytes), info);
        assert_eq!(info.emit(), bytes);
    }
}
