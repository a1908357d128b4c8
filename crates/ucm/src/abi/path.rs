//! Path records in the two forms of the ABI.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::layout;

/// The flags of the only kind of path record that is used: general management, primary, both directions.
pub const PATH_FLAGS_GMP_PRIMARY_BIDIRECTIONAL: u32 = 0x2B;

/// The form of QUERY_ROUTE (`struct ib_user_path_rec`); 16- and 32-bit fields are big endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IbUserPathRec {
    /// Remote GID.
    pub dgid: [u8; 16],
    /// Local GID.
    pub sgid: [u8; 16],
    /// Remote LID, big endian.
    pub dlid: [u8; 2],
    /// Local LID, big endian.
    pub slid: [u8; 2],
    /// Raw traffic.
    pub raw_traffic: u32,
    /// Flow label, big endian.
    pub flow_label: [u8; 4],
    /// Whether the path works both ways.
    pub reversible: u32,
    /// Path MTU, encoded.
    pub mtu: u32,
    /// Partition key, big endian.
    pub pkey: [u8; 2],
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Number of paths.
    pub numb_path: u8,
    /// Service level.
    pub sl: u8,
    /// How `mtu` is meant; 2: exactly.
    pub mtu_selector: u8,
    /// How `rate` is meant; 2: exactly.
    pub rate_selector: u8,
    /// Rate, encoded.
    pub rate: u8,
    /// How `packet_life_time` is meant; 2: exactly.
    pub packet_life_time_selector: u8,
    /// Packet life time, encoded.
    pub packet_life_time: u8,
    /// Preference.
    pub preference: u8,
}
layout!(IbUserPathRec, 64, {
    dgid: 0, sgid: 16, dlid: 32, slid: 34, raw_traffic: 36, flow_label: 40, reversible: 44, mtu: 48, pkey: 52,
    hop_limit: 54, traffic_class: 55, numb_path: 56, sl: 57, mtu_selector: 58, rate_selector: 59, rate: 60,
    packet_life_time_selector: 61, packet_life_time: 62, preference: 63,
});

/// The form of QUERY with option PATH and of option IB_PATH (`struct ib_path_rec_data`): flags, and 64 bytes laid out as
/// in a subnet administration datagram (IBA Vol. 1 ch. 15, PathRecord), all big endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IbPathRecData {
    /// What the record may be used for.
    pub flags: u32,
    /// Unused.
    pub reserved: u32,
    /// Service ID.
    pub service_id: [u8; 8],
    /// Remote GID.
    pub dgid: [u8; 16],
    /// Local GID.
    pub sgid: [u8; 16],
    /// Remote LID.
    pub dlid: [u8; 2],
    /// Local LID.
    pub slid: [u8; 2],
    /// Raw traffic (1 bit), flow label (20 bits from bit 4) and hop limit (8).
    pub flow_label_hop_limit: [u8; 4],
    /// Traffic class.
    pub traffic_class: u8,
    /// Reversible (1 bit) and number of paths (7).
    pub reversible_numb_path: u8,
    /// Partition key.
    pub pkey: [u8; 2],
    /// Quality of service class (12 bits) and service level (4).
    pub qos_class_sl: [u8; 2],
    /// Selector (2 bits) and path MTU (6).
    pub mtu: u8,
    /// Selector (2 bits) and rate (6).
    pub rate: u8,
    /// Selector (2 bits) and packet life time (6).
    pub packet_life_time: u8,
    /// Preference.
    pub preference: u8,
    /// Unused.
    pub reserved1: [u8; 6],
}
layout!(IbPathRecData, 72, {
    flags: 0, reserved: 4, service_id: 8, dgid: 16, sgid: 32, dlid: 48, slid: 50, flow_label_hop_limit: 52,
    traffic_class: 56, reversible_numb_path: 57, pkey: 58, qos_class_sl: 60, mtu: 62, rate: 63, packet_life_time: 64,
    preference: 65, reserved1: 66,
});
