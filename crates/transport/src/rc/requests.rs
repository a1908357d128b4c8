//! Request packets, built from the entry at the cursor.

use oarlock_wire::{AtomicEth, Bth, Ieth, ImmDt, Opcode, Reth, Time, XrcEth};

use super::Rc;
use super::headers::Headers;
use super::requester::Way;
use crate::counters::Counter;
use crate::memory::Memory;
use crate::packet::{PacketBuf, request_opcode};
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
        let (wqe, source) = self.sq.entry(serial);
        let index = self.requester.packet;
        let (is_first, is_last) = (index == 0, index + 1 == wqe.way.psns.count);
        let offset = u64::from(index) * u64::from(self.mtu);
        let payload_len = (u64::from(wqe.length) - offset).min(u64::from(self.mtu)) as usize;
        let is_probe = self.lacks_credit(wqe);
        let bth = Bth {
            solicited: is_last && wqe.solicited,
            ack_request: is_last
                || self.requester.packets_waiting() + 1 == self.config.window
                || (index + 1).is_multiple_of(self.config.ack_interval)
                || is_probe,
            ..self.request_bth(request_opcode(&wqe.op, is_first, is_last))
        };
        let mut headers = self.request_headers(wqe, bth, payload_len, out);
        if is_first || is_last {
            put_message_headers(&mut headers, wqe, is_first, is_last);
        }
        let behind = u64::from(wqe.length) - offset - payload_len as u64;
        let room = self.config.window - self.requester.packets_waiting() - 1;
        memory.announce(behind.min(u64::from(room) * u64::from(self.mtu)));
        if let Err(error) = source.read(memory, offset, headers.payload()) {
            self.requester.unreadable = Some((serial, error.into()));
            self.fail_unreadable();
            return None;
        }
        let len = headers.finish();
        if is_probe {
            self.counters.count(Counter::CreditStalls);
        }
        self.note_sent(now, 1, is_last);
        Some(len)
    }

    /// The request for one piece of a READ, or for what of it is missing.
    pub(super) fn read_packet(
        &mut self,
        now: Time,
        remote: RemoteAddress,
        out: &mut PacketBuf,
    ) -> usize {
        let wqe = self.sq.get(self.requester.cursor);
        let (start, end) = (self.requester.packet, self.piece_end(wqe));
        let is_last = end == wqe.way.psns.count;
        let offset = u64::from(start) * u64::from(self.mtu);
        let len = if is_last {
            (u64::from(wqe.length) - offset) as u32
        } else {
            (end - start) * self.mtu
        };
        let bth = Bth {
            ack_request: true,
            ..self.request_bth(Opcode::RC_RDMA_READ_REQUEST)
        };
        let mut headers = self.request_headers(wqe, bth, 0, out);
        headers.put(|out| reth(remote, offset, len).emit(out));
        if !start.is_multiple_of(self.config.piece()) {
            self.requester.asked_from = Some(bth.psn);
        }
        let len = headers.finish();
        self.note_asked(now, end - start, is_last);
        len
    }

    /// The request of an atomic operation.
    pub(super) fn atomic_packet(
        &mut self,
        now: Time,
        (opcode, operands): (Opcode, AtomicEth),
        out: &mut PacketBuf,
    ) -> usize {
        let wqe = self.sq.get(self.requester.cursor);
        let bth = Bth {
            ack_request: true,
            ..self.request_bth(opcode)
        };
        let mut headers = self.request_headers(wqe, bth, 0, out);
        headers.put(|out| operands.emit(out));
        let len = headers.finish();
        self.note_asked(now, 1, true);
        len
    }

    /// A READ request or atomic leaves, to be answered by `packets` packets.
    fn note_asked(&mut self, now: Time, packets: u32, is_last: bool) {
        self.requester.results_awaited += packets;
        self.requester.reads_outstanding += 1;
        self.note_sent(now, packets, is_last);
    }

    fn request_bth(&self, opcode: Opcode) -> Bth {
        let opcode = opcode.of(self.config.kind.class());
        let psn = self.requester.in_flight.next();
        Bth {
            pkey: self.attr.pkey,
            ..Bth::new(opcode, self.attr.dest_qpn, psn)
        }
    }

    fn request_headers<'a>(
        &self,
        wqe: &SendWqe<Way>,
        bth: Bth,
        payload_len: usize,
        out: &'a mut PacketBuf,
    ) -> Headers<'a> {
        let mut headers = Headers::of(bth, payload_len, out);
        if let Some(srqn) = wqe.way.srqn {
            headers.put(|out| XrcEth { srqn }.emit(out));
        }
        headers
    }
}

/// What the first and the last packet of a SEND or WRITE say of the message.
fn put_message_headers(
    headers: &mut Headers<'_>,
    wqe: &SendWqe<Way>,
    is_first: bool,
    is_last: bool,
) {
    match wqe.op {
        SendOp::Write(remote) | SendOp::WriteWithImm(remote, _) if is_first => {
            headers.put(|out| reth(remote, 0, wqe.length).emit(out));
        }
        _ => {}
    }
    if !is_last {
        return;
    }
    match wqe.op {
        SendOp::SendWithImm(imm) | SendOp::WriteWithImm(_, imm) => {
            headers.put(|out| ImmDt(imm).emit(out));
        }
        SendOp::SendWithInvalidate(rkey) => headers.put(|out| Ieth(rkey).emit(out)),
        _ => {}
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
