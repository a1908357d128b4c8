//! Queue pairs of a program: the RC engine over a buffer of its own.

use std::sync::LazyLock;

use oarlock_transport::{
    AccessFlags, AttrMask, Memory, MemoryError, QpAttr, QpState, Rc, RcConfig, RecvWr, SendData,
    SendWr, Sge,
};
use oarlock_ucm::abi::UverbsQpAttr;
use oarlock_wire::{
    AddressVector, FlowLabel, Gid, IbTimeout, LKey, Mtu, Psn, Qpn, RetryCount, Time,
};

use crate::CONNECTIONS;

/// Messages each way.
pub(crate) const MESSAGES: usize = 10;
/// The longest message.
const LONGEST: usize = 3000;

/// One buffer per message: first those to be received, then those to be sent.
pub(crate) struct Buffers(Vec<u8>);

fn slot(index: usize) -> u64 {
    (index * LONGEST) as u64
}

impl Buffers {
    fn range(
        &self,
        sges: &[Sge],
        offset: u64,
        len: usize,
    ) -> Result<std::ops::Range<usize>, MemoryError> {
        // All work requests here have one element.
        let addr = sges[0].addr + offset;
        let out_of_bounds = MemoryError::OutOfBounds {
            addr,
            len: len as u64,
        };
        let start = usize::try_from(addr).map_err(|_| out_of_bounds)?;
        let end = start
            .checked_add(len)
            .filter(|&end| end <= self.0.len())
            .ok_or(out_of_bounds)?;
        Ok(start..end)
    }
}

impl Memory for Buffers {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let range = self.range(sges, offset, data.len())?;
        self.0[range].copy_from_slice(data);
        Ok(())
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let range = self.range(sges, offset, out.len())?;
        out.copy_from_slice(&self.0[range]);
        Ok(())
    }
}

/// A queue pair with its buffers, and which connection it belongs to.
pub(crate) struct Qp {
    pub(crate) rc: Rc,
    pub(crate) memory: Buffers,
    pub(crate) connection: usize,
    /// The deadline that the world has noted.
    pub(crate) noted: Option<Time>,
}

/// What one side sends as its message `index` on a connection: its own pattern and length.
pub(crate) fn message(connection: usize, side: usize, index: usize) -> &'static [u8] {
    // Made once: every storm sends the same, and half of its time would go into making it.
    static MESSAGES_OF_ALL: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let count = CONNECTIONS * 2 * MESSAGES;
        let pattern = |mix: usize| {
            let len = 1 + mix * 911 % LONGEST;
            (0..len)
                .map(|at| (at * 13 + mix * 5 + at / 256) as u8)
                .collect()
        };
        (0..count).map(pattern).collect()
    });
    &MESSAGES_OF_ALL[(connection * 2 + side) * MESSAGES + index]
}

impl Qp {
    pub(crate) fn new(qpn: u32, connection: usize) -> Self {
        let depth = MESSAGES as u32;
        let config = RcConfig {
            qpn: Qpn::truncate(qpn),
            max_send_wr: depth,
            max_recv_wr: depth,
            ..RcConfig::default()
        };
        Self {
            rc: Rc::new(config),
            memory: Buffers(vec![0; 2 * MESSAGES * LONGEST]),
            connection,
            noted: None,
        }
    }

    /// Follows a recipe out of the connection manager. Link-local addresses do not occur here.
    pub(crate) fn modify(&mut self, local: Gid, recipe: &UverbsQpAttr) -> Result<(), String> {
        self.rc
            .modify(&attr(local, recipe))
            .map_err(|error| format!("{:?}: {error}", self.rc.qpn()))
    }

    pub(crate) fn post_receives(&mut self) {
        for index in 0..MESSAGES {
            let sge = Sge {
                addr: slot(index),
                len: LONGEST as u32,
                lkey: LKey(1),
            };
            self.rc
                .post_recv(&RecvWr {
                    wr_id: index as u64,
                    sges: &[sge],
                })
                .expect("the queue is that deep");
        }
    }

    pub(crate) fn post_sends(&mut self, side: usize, flipped: bool) -> Result<(), String> {
        for index in 0..MESSAGES {
            let mut data = message(self.connection, side, index).to_vec();
            if flipped && index == MESSAGES - 1 {
                data[0] ^= 1;
            }
            let addr = slot(MESSAGES + index);
            self.memory.0[addr as usize..][..data.len()].copy_from_slice(&data);
            let sge = Sge {
                addr,
                len: data.len() as u32,
                lkey: LKey(1),
            };
            let wr = SendWr {
                wr_id: index as u64,
                data: SendData::Sges(&[sge]),
                ..SendWr::default()
            };
            self.rc.post_send(&wr).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub(crate) fn received(&self, index: usize, len: usize) -> &[u8] {
        &self.memory.0[slot(index) as usize..][..len]
    }

    pub(crate) fn fail(&mut self) {
        self.rc
            .modify(&QpAttr::to_state(QpState::Error))
            .expect("the error state is open to all");
    }
}

fn attr(local: Gid, raw: &UverbsQpAttr) -> QpAttr {
    let ah = &raw.ah_attr;
    QpAttr {
        mask: AttrMask::from_bits_retain(raw.qp_attr_mask),
        state: match raw.qp_state {
            1 => QpState::Init,
            2 => QpState::Rtr,
            _ => QpState::Rts,
        },
        access: AccessFlags::from_bits_retain(raw.qp_access_flags),
        port_num: raw.port_num.max(1),
        av: AddressVector {
            scope_id: 0,
            traffic_class: ah.traffic_class,
            hop_limit: ah.hop_limit,
            flow_label: FlowLabel::truncate(ah.flow_label),
            service_level: ah.sl,
            ..AddressVector::new(local, Gid(ah.dgid))
        },
        path_mtu: Mtu(raw.path_mtu as u8),
        dest_qpn: Qpn::truncate(raw.dest_qp_num),
        rq_psn: Psn::truncate(raw.rq_psn),
        sq_psn: Psn::truncate(raw.sq_psn),
        max_dest_rd_atomic: raw.max_dest_rd_atomic,
        max_rd_atomic: raw.max_rd_atomic,
        min_rnr_timer: raw.min_rnr_timer,
        timeout: IbTimeout::truncate(raw.timeout),
        retry_count: RetryCount::truncate(raw.retry_cnt),
        rnr_retry: RetryCount::truncate(raw.rnr_retry),
        ..QpAttr::default()
    }
}
