//! The paths in a REQ and a LAP (IBA Vol. 1 ch. 12): the same fields, laid out differently after the GIDs.

use crate::layout::{Body, Field};
use crate::units::{FlowLabel, Gid, IbTimeout, Lid, Rate};

/// A path in a REQ or LAP: local is the sender's end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PathFields {
    /// The sender's LID; permissive on RoCE.
    pub local_lid: Lid,
    /// The receiver's LID; permissive on RoCE.
    pub remote_lid: Lid,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's GID.
    pub remote_gid: Gid,
    /// The flow label.
    pub flow_label: FlowLabel,
    /// The packet rate.
    pub packet_rate: Rate,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The service level, 4 bits.
    pub service_level: u8,
    /// Whether both ends are in one subnet.
    pub subnet_local: bool,
    /// How long the sender waits for an acknowledgement.
    pub local_ack_timeout: IbTimeout,
}

impl PathFields {
    /// Whether the path is absent: an alternate path that was not given is all zero.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        *self == Self::default()
    }
}

/// The path of a LAP, and the second path of a REQ.
pub type AlternatePath = PathFields;

/// The field table of a path that begins at some offset.
pub(super) struct PathTable {
    pub(super) local_lid: Field,
    pub(super) remote_lid: Field,
    pub(super) local_gid: Field,
    pub(super) remote_gid: Field,
    pub(super) flow_label: Field,
    pub(super) packet_rate: Field,
    pub(super) traffic_class: Field,
    pub(super) hop_limit: Field,
    pub(super) service_level: Field,
    pub(super) subnet_local: Field,
    pub(super) local_ack_timeout: Field,
}

impl PathTable {
    /// As a REQ has it: the packet rate shares a word with the flow label.
    pub(super) const fn in_req(at: usize) -> Self {
        Self::new(at, at + 39, at + 40, at + 41)
    }

    /// As a LAP has it: the traffic class shares a word with the flow label.
    pub(super) const fn in_lap(at: usize) -> Self {
        Self::new(at, at + 41, at + 39, at + 40)
    }

    const fn new(at: usize, packet_rate: usize, traffic_class: usize, hop_limit: usize) -> Self {
        Self {
            local_lid: Field::new("local LID", at, 0, 16),
            remote_lid: Field::new("remote LID", at + 2, 0, 16),
            local_gid: Field::new("local GID", at + 4, 0, 128),
            remote_gid: Field::new("remote GID", at + 20, 0, 128),
            flow_label: Field::new("flow label", at + 36, 0, 20),
            packet_rate: Field::new("packet rate", packet_rate, 2, 6),
            traffic_class: Field::new("traffic class", traffic_class, 0, 8),
            hop_limit: Field::new("hop limit", hop_limit, 0, 8),
            service_level: Field::new("SL", at + 42, 0, 4),
            subnet_local: Field::new("subnet local", at + 42, 4, 1),
            local_ack_timeout: Field::new("local ACK timeout", at + 43, 0, 5),
        }
    }

    pub(super) fn parse(&self, body: &Body) -> PathFields {
        PathFields {
            local_lid: Lid(self.local_lid.get_u16(body)),
            remote_lid: Lid(self.remote_lid.get_u16(body)),
            local_gid: self.local_gid.get_gid(body),
            remote_gid: self.remote_gid.get_gid(body),
            flow_label: FlowLabel::truncate(self.flow_label.get_u32(body)),
            packet_rate: Rate(self.packet_rate.get_u8(body)),
            traffic_class: self.traffic_class.get_u8(body),
            hop_limit: self.hop_limit.get_u8(body),
            service_level: self.service_level.get_u8(body),
            subnet_local: self.subnet_local.get_bool(body),
            local_ack_timeout: IbTimeout::truncate(self.local_ack_timeout.get_u8(body)),
        }
    }

    pub(super) fn emit(&self, path: &PathFields, body: &mut Body) {
        self.local_lid.put(body, path.local_lid.0);
        self.remote_lid.put(body, path.remote_lid.0);
        self.local_gid.put_gid(body, path.local_gid);
        self.remote_gid.put_gid(body, path.remote_gid);
        self.flow_label.put(body, path.flow_label.get());
        self.packet_rate.put(body, path.packet_rate.0);
        self.traffic_class.put(body, path.traffic_class);
        self.hop_limit.put(body, path.hop_limit);
        self.service_level.put(body, path.service_level);
        self.subnet_local.put(body, path.subnet_local);
        self.local_ack_timeout
            .put(body, path.local_ack_timeout.get());
    }
}
