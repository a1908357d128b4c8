//! Queue pairs of a program: the RC engine over a buffer of its own.

use std::sync::LazyLock;

use oarlock_transport::{
    AccessFlags, AttrMask, Memory, MemoryError, PacketBuf, QpAttr, QpState, Rc, RcConfig, RecvWr,
    SendData, SendWr, Sge, Transmit, Ud, UdConfig, UdDestination,
};
use oarlock_ucm::abi::UverbsQpAttr;
use oarlock_wire::{
    AddressVector, FlowLabel, Gid, Grh, IbTimeout, LKey, Mtu, Psn, QKey, Qpn, RetryCount, Time,
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

/// A datagram queue pair with buffers for what it receives.
pub(crate) struct UdQp {
    pub(crate) ud: Ud,
    memory: Buffers,
}

/// A datagram that was received.
pub(crate) struct Received {
    pub(crate) from: Qpn,
    pub(crate) payload: Vec<u8>,
}

const DATAGRAMS: u32 = 32;
/// The longest datagram: what a request for inline data can hold.
const LONGEST_DATAGRAM: usize = 64;

impl UdQp {
    pub(crate) fn new(qpn: u32) -> Self {
        let config = UdConfig {
            qpn: Qpn::truncate(qpn),
            max_send_wr: DATAGRAMS,
            max_recv_wr: DATAGRAMS,
            max_inline: LONGEST_DATAGRAM as u32,
            ..UdConfig::default()
        };
        Self {
            ud: Ud::new(config),
            memory: Buffers(vec![0; DATAGRAMS as usize * Self::BUFFER]),
        }
    }

    const BUFFER: usize = Grh::LEN + LONGEST_DATAGRAM;

    /// Follows the recipes for INIT, RTR and RTS.
    pub(crate) fn modify(&mut self, local: Gid, recipes: &[UverbsQpAttr]) -> Result<(), String> {
        for recipe in recipes {
            self.ud
                .modify(&attr(local, recipe))
                .map_err(|error| format!("{:?}: {error}", self.ud.qpn()))?;
        }
        for index in 0..DATAGRAMS {
            self.post_receive(index.into());
        }
        Ok(())
    }

    fn post_receive(&mut self, index: u64) {
        let sge = Sge {
            addr: index * Self::BUFFER as u64,
            len: Self::BUFFER as u32,
            lkey: LKey(1),
        };
        let wr = RecvWr {
            wr_id: index,
            sges: &[sge],
        };
        self.ud.post_recv(&wr).expect("the queue is that deep");
    }

    pub(crate) fn send(&mut self, to: UdDestination, payload: &[u8]) -> Result<(), String> {
        let wr = SendWr {
            data: SendData::Inline(payload),
            ud: Some(to),
            ..SendWr::default()
        };
        self.ud.post_send(&wr).map_err(|error| error.to_string())
    }

    pub(crate) fn poll_transmit(&mut self, packet: &mut PacketBuf) -> Option<Transmit> {
        self.ud.poll_transmit(&mut self.memory, packet)
    }

    pub(crate) fn handle_datagram(&mut self, from: &AddressVector, bytes: &[u8]) {
        self.ud.handle_datagram(from, bytes, &mut self.memory);
    }

    /// The next datagram that was received; its buffer is posted again.
    pub(crate) fn received(&mut self) -> Result<Option<Received>, String> {
        while let Some(completion) = self.ud.poll_completion() {
            if !completion.status.is_success() {
                return Err(format!("{:?}: {completion:?}", self.ud.qpn()));
            }
            if completion.is_send {
                continue;
            }
            let start = completion.wr_id as usize * Self::BUFFER;
            let received = Received {
                from: completion.src_qp,
                payload: self.memory.0[start..][Grh::LEN..completion.byte_len as usize].to_vec(),
            };
            self.post_receive(completion.wr_id);
            return Ok(Some(received));
        }
        Ok(None)
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
        qkey: QKey(raw.qkey),
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
