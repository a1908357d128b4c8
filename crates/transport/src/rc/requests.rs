//! Request packets, built from the entry at the cursor.

use oarlock_wire::packet::padding;
use oarlock_wire::{AtomicEth, Bth, Ieth, ImmDt, Opcode, PacketHeader, Reth, Time, XrcEth};

use super::Rc;
use super::requester::Way;
use crate::counters::Counter;
use crate::memory::Memory;
use crate::packet::{PacketBuf, emit, request_opcode};
use crate::queue::SendWqe;
use crate::work::{RemoteAddress, SendOp};

impl Rc {
    /// One packet of a SEND or WRITE. `None` when its memory cannot be read.
    pub(super) fn message_packet(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<usize> {
        let serial = self.requester.cursor;
        let wqe = self.sq.get(serial);
        let index = self.requester.packet;
        let (is_first, is_last) = (index == 0, index + 1 == wqe.way.psns.count);
        let offset = u64::from(index) * u64::from(self.mtu);
        let payload_len = (u64::from(wqe.length) - offset).min(u64::from(self.mtu)) as usize;
        let opcode = request_opcode(&wqe.op, is_first, is_last);
        let is_probe = self.lacks_credit(wqe);
        let asks = is_last
            || self.requester.packets_waiting() + 1 == self.config.window
            || (index + 1).is_multiple_of(self.config.ack_interval)
            || is_probe;
        let mut header = self.request_header(wqe, opcode, asks);
        header.bth.solicited = is_last && wqe.solicited;
        match wqe.op {
            SendOp::Write(remote) | SendOp::WriteWithImm(remote, _) if is_first => {
                header.reth = Some(reth(remote, 0, wqe.length));
            }
            _ => {}
        }
        match wqe.op {
            SendOp::SendWithImm(imm) | SendOp::WriteWithImm(_, imm) if is_last => {
                header.immdt = Some(ImmDt(imm));
            }
            SendOp::SendWithInvalidate(rkey) if is_last => header.ieth = Some(Ieth(rkey)),
            _ => {}
        }
        let mut len = emit(&header, payload_len, out);
        let payload = &mut out[len..len + payload_len];
        if let Err(error) = self.sq.source(serial).read(memory, offset, payload) {
            self.requester.unreadable = Some((serial, error.into()));
            self.fail_unreadable();
            return None;
        }
        len += payload_len;
        let pad = padding(payload_len);
        out[len..len + pad].fill(0);
        if is_probe {
            self.counters.count(Counter::CreditStalls);
        }
        self.note_sent(now, 1, is_last);
        Some(len + pad)
    }

    /// The request for one piece of a READ, or for what of it is missing.
    pub(super) fn read_packet(&mut self, now: Time, out: &mut PacketBuf) -> usize {
        let wqe = self.sq.get(self.requester.cursor);
        let (start, end) = (self.requester.packet, self.piece_end(wqe));
        let is_last = end == wqe.way.psns.count;
        let offset = u64::from(start) * u64::from(self.mtu);
        let len = if is_last {
            (u64::from(wqe.length) - offset) as u32
        } else {
            (end - start) * self.mtu
        };
        let mut header = self.request_header(wqe, Opcode::RC_RDMA_READ_REQUEST, true);
        if let SendOp::Read(remote) = wqe.op {
            header.reth = Some(reth(remote, offset, len));
        }
        if !start.is_multiple_of(self.config.piece()) {
            self.requester.asked_from = Some(header.bth.psn);
        }
        self.note_asked(now, end - start, is_last);
        emit(&header, 0, out)
    }

    pub(super) fn atomic_packet(&mut self, now: Time, out: &mut PacketBuf) -> usize {
        let wqe = self.sq.get(self.requester.cursor);
        let (opcode, remote, swap_add, compare) = match wqe.op {
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } => (Opcode::RC_COMPARE_SWAP, remote, swap, compare),
            SendOp::FetchAdd { remote, add } => (Opcode::RC_FETCH_ADD, remote, add, 0),
            ref other => unreachable!("{} is no atomic operation", other.name()),
        };
        let RemoteAddress { addr, rkey } = remote;
        let header = self
            .request_header(wqe, opcode, true)
            .with_atomic_eth(AtomicEth {
                addr,
                rkey,
                swap_add,
                compare,
            });
        self.note_asked(now, 1, true);
        emit(&header, 0, out)
    }

    /// A READ request or atomic leaves, to be answered by `packets` packets.
    fn note_asked(&mut self, now: Time, packets: u32, is_last: bool) {
        self.requester.results_awaited += packets;
        self.requester.reads_outstanding += 1;
        self.note_sent(now, packets, is_last);
    }

    fn request_header(
        &self,
        wqe: &SendWqe<Way>,
        opcode: Opcode,
        ack_request: bool,
    ) -> PacketHeader {
        let opcode = opcode.of(self.config.kind.class());
        let psn = self.requester.in_flight.next();
        let bth = Bth {
            pkey: self.attr.pkey,
            ack_request,
            ..Bth::new(opcode, self.attr.dest_qpn, psn)
        };
        PacketHeader {
            xrceth: wqe.way.srqn.map(|srqn| XrcEth { srqn }),
            ..PacketHeader::new(bth)
        }
    }
}

/// `len` bytes of the peer's memory, from `offset` on.
const fn reth(remote: RemoteAddress, offset: u64, len: u32) -> Reth {
    Reth {
        // The range was checked when the request was posted; nothing is read or written beyond it.
        addr: remote.addr.wrapping_add(offset),
        rkey: remote.rkey,
        len,
    }
}
