//! Path records in the two forms of the ABI.

use oarlock_cma::Path;
use oarlock_wire::{AddressVector, FlowLabel, Gid, IbTimeout, Mtu, PKey, Rate, ServiceId};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::layout;

/// The flags of the only kind of path record that is used: general management, primary, both directions.
pub const PATH_FLAGS_GMP_PRIMARY_BIDIRECTIONAL: u32 = 0x2B;

/// "Exactly": the selector of path record fields (IBA Vol. 1 ch. 15, PathRecord).
const EXACTLY: u8 = 2;
/// What a field leaves beside its selector.
const SIX_BITS: u8 = 0x3F;

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

impl From<&Path> for IbUserPathRec {
    fn from(path: &Path) -> Self {
        Self {
            dgid: path.av.remote.0,
            sgid: path.av.local.0,
            flow_label: path.av.flow_label.get().to_be_bytes(),
            reversible: 1,
            mtu: path.mtu.0.into(),
            pkey: path.pkey.0.to_be_bytes(),
            hop_limit: path.av.hop_limit,
            traffic_class: path.av.traffic_class,
            sl: path.av.service_level,
            mtu_selector: EXACTLY,
            rate_selector: EXACTLY,
            rate: path.rate.0,
            packet_life_time_selector: EXACTLY,
            packet_life_time: path.packet_life_time.get(),
            ..Self::new_zeroed()
        }
    }
}

impl From<&Path> for IbPathRecData {
    fn from(path: &Path) -> Self {
        let flow_label_hop_limit = path.av.flow_label.get() << 8 | u32::from(path.av.hop_limit);
        Self {
            flags: PATH_FLAGS_GMP_PRIMARY_BIDIRECTIONAL,
            dgid: path.av.remote.0,
            sgid: path.av.local.0,
            flow_label_hop_limit: flow_label_hop_limit.to_be_bytes(),
            traffic_class: path.av.traffic_class,
            reversible_numb_path: 0x80,
            pkey: path.pkey.0.to_be_bytes(),
            qos_class_sl: u16::from(path.av.service_level).to_be_bytes(),
            mtu: EXACTLY << 6 | path.mtu.0,
            rate: EXACTLY << 6 | path.rate.0,
            packet_life_time: EXACTLY << 6 | path.packet_life_time.get(),
            ..Self::new_zeroed()
        }
    }
}

impl From<&IbPathRecData> for Path {
    /// LIDs, the raw traffic bit, the selectors, the quality of service class and the preference have no meaning on RoCE
    /// and are left out.
    fn from(record: &IbPathRecData) -> Self {
        let flow_label_hop_limit = u32::from_be_bytes(record.flow_label_hop_limit);
        let [.., hop_limit] = record.flow_label_hop_limit;
        Self {
            av: AddressVector {
                scope_id: 0,
                traffic_class: record.traffic_class,
                hop_limit,
                flow_label: FlowLabel::truncate(flow_label_hop_limit >> 8),
                service_level: record.qos_class_sl[1] & 0x0F,
                ..AddressVector::new(Gid(record.sgid), Gid(record.dgid))
            },
            service_id: ServiceId(u64::from_be_bytes(record.service_id)),
            pkey: PKey(u16::from_be_bytes(record.pkey)),
            mtu: Mtu(record.mtu & SIX_BITS),
            rate: Rate(record.rate & SIX_BITS),
            packet_life_time: IbTimeout::truncate(record.packet_life_time & SIX_BITS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_its_record() {
        let path = Path {
            av: AddressVector {
                traffic_class: 0x28,
                hop_limit: 7,
                flow_label: FlowLabel::truncate(0xABCDE),
                service_level: 5,
                ..AddressVector::new(Gid([1; 16]), Gid([2; 16]))
            },
            service_id: ServiceId(0),
            pkey: PKey::DEFAULT,
            mtu: Mtu::MTU_1024,
            rate: Rate(3),
            packet_life_time: IbTimeout::truncate(18),
        };
        let record = IbPathRecData::from(&path);
        assert_eq!(Path::from(&record), path);
        let raw = IbPathRecData {
            flow_label_hop_limit: [0xFF, 0xFF, 0xFF, 0x40],
            qos_class_sl: [0xFF, 0xF3],
            ..record
        };
        let read = Path::from(&raw).av;
        assert_eq!(
            (read.flow_label.get(), read.hop_limit, read.service_level),
            (0xF_FFFF, 0x40, 3),
            "bits of other fields stay outside"
        );
    }
}
