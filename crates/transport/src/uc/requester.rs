//! The sending half: each request is packets, one after another, and then complete.
//!
//! IBA Vol. 1 ch. 9 "Unreliable connection".

use oarlock_wire::base::TransportClass;
use oarlock_wire::packet::padding;
use oarlock_wire::{Bth, ImmDt, PacketHeader, Reth, Time};

use super::Uc;
use crate::attr::QpState;
use crate::completion::WcStatus;
use crate::counters::Counter;
use crate::memory::Memory;
use crate::packet::{PacketBuf, emit, request_opcode};
use crate::queue::SendWqe;
use crate::vendor::VendorError;
use crate::work::SendOp;

impl Uc {
    /// Part of the oldest request has been sent, and part has not.
    pub(super) const fn is_within_request(&self) -> bool {
        self.packet > 0
    }

    /// What keeps the send queue from being drained in state Sqd.
    pub(super) fn is_draining(&self) -> bool {
        self.common.state == QpState::Sqd && self.is_within_request()
    }

    /// Whether there is something to be sent as soon as the pace allows.
    pub(super) fn has_request(&self) -> bool {
        match self.common.state {
            QpState::Rts => !self.common.sq.is_empty(),
            _ => self.is_draining(),
        }
    }

    /// Writes the next packet. Local operations that come before it are done on the way.
    pub(super) fn next_request(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<usize> {
        while self.has_request() {
            let wqe = *self.common.sq.get(self.common.sq.head());
            let done = match wqe.op {
                SendOp::LocalInvalidate(rkey) => memory.invalidate(rkey),
                SendOp::BindWindow(bind) => memory.bind(&bind),
                _ => return self.next_packet(now, &wqe, memory, out),
            };
            match done {
                Ok(()) => self.complete_head(&wqe),
                Err(error) => self.fail_head(WcStatus::MW_BIND_ERR, error.into()),
            }
        }
        None
    }

    fn next_packet(
        &mut self,
        now: Time,
        wqe: &SendWqe<()>,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<usize> {
        let offset = u64::from(self.packet) * u64::from(self.mtu);
        let rest = u64::from(wqe.length) - offset;
        let payload_len = rest.min(u64::from(self.mtu)) as usize;
        let is_last = rest <= u64::from(self.mtu);
        let header = self.header(wqe, is_last);
        let header_len = emit(&header, payload_len, out);
        let end = header_len + payload_len;
        let source = self.common.sq.source(self.common.sq.head());
        memory.announce(rest - payload_len as u64);
        if let Err(error) = source.read(memory, offset, &mut out[header_len..end]) {
            self.common.counters.count(Counter::LocalAccessErrors);
            self.fail_head(WcStatus::LOC_PROT_ERR, error.into());
            return None;
        }
        let len = end + padding(payload_len);
        out[end..len].fill(0);
        self.next_psn = self.next_psn.next();
        self.common.counters.count(Counter::RequestsSent);
        self.common.counters.count(Counter::PacketsSent);
        self.pace.count(now);
        if is_last {
            self.complete_head(wqe);
            if self.common.state == QpState::Sqd {
                self.note_drained();
            }
        } else {
            self.packet += 1;
        }
        if self.pace.until().is_some() && self.has_request() {
            self.common.counters.count(Counter::PaceWaits);
        }
        Some(len)
    }

    fn header(&self, wqe: &SendWqe<()>, is_last: bool) -> PacketHeader {
        let is_first = self.packet == 0;
        let opcode = request_opcode(&wqe.op, is_first, is_last).of(TransportClass::Uc);
        let bth = Bth {
            solicited: is_last && wqe.solicited,
            pkey: self.common.attr.pkey,
            ..Bth::new(opcode, self.common.attr.dest_qpn, self.next_psn)
        };
        let reth = wqe.op.remote().filter(|_| is_first).map(|remote| Reth {
            addr: remote.addr,
            rkey: remote.rkey,
            len: wqe.length,
        });
        PacketHeader {
            immdt: wqe.op.imm().filter(|_| is_last).map(ImmDt),
            reth,
            ..PacketHeader::new(bth)
        }
    }

    /// The oldest request has succeeded.
    fn complete_head(&mut self, wqe: &SendWqe<()>) {
        let _ = self.common.sq.pop();
        self.packet = 0;
        self.common.counters.count(match wqe.op {
            SendOp::LocalInvalidate(_) => Counter::InvalidatesCompleted,
            SendOp::BindWindow(_) => Counter::BindsCompleted,
            SendOp::Write(_) | SendOp::WriteWithImm(..) => Counter::WritesCompleted,
            _ => Counter::SendsCompleted,
        });
        self.common.complete_send(wqe);
    }

    /// The oldest request fails on this side, those behind it are flushed. The peer drops what has arrived of it when the
    /// next message begins.
    fn fail_head(&mut self, status: WcStatus, vendor_err: VendorError) {
        self.packet = 0;
        if let Some(wqe) = self.common.sq.pop() {
            self.common.enter_sqe(&wqe, status, vendor_err);
        }
    }
}
