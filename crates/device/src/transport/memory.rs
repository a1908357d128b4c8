//! What a packet engine reaches outside of itself: the memory of its protection domain, and shared receive queues.

use std::sync::Arc;

use oarlock_transport::{
    AtomicOp, BindWindow, HeldReceive, Memory, MemoryError, RemoteAccess, Sge, SharedReceive,
};
use oarlock_wire::{Packet, RKey, Srqn};

use crate::counters::Counters;
use crate::mr::{PdMemory, Probe, Ways};
use crate::qp::QpShared;
use crate::srq::SrqShared;

/// Memory and shared receive queues as one queue pair sees them.
pub(crate) struct QpMemory<'a> {
    qp: &'a QpShared,
    counters: &'a Counters,
    own: PdMemory<'a>,
    held: &'a mut Option<Arc<SrqShared>>,
}

impl<'a> QpMemory<'a> {
    pub(crate) fn new(
        qp: &'a QpShared,
        counters: &'a Counters,
        held: &'a mut Option<Arc<SrqShared>>,
        probe: &'a Probe,
        ways: Ways<'a>,
    ) -> Self {
        let regions = qp.pd().context().regions();
        Self {
            qp,
            counters,
            own: PdMemory::new(regions, qp.pd().id(), qp.qpn(), counters, probe, ways),
            held,
        }
    }

    /// The packet in hand is followed by these; see [`PdMemory::go_on`].
    pub(crate) fn go_on(&mut self, following: &'a [Packet<'a>]) {
        self.own.go_on(following);
    }

    /// See [`PdMemory::begin_burst`].
    pub(crate) fn begin_burst(&mut self, buffer: &[u8]) {
        self.own.begin_burst(buffer);
    }

    /// See [`PdMemory::settle`].
    pub(crate) fn settle(&mut self, buffer: &mut [u8]) -> bool {
        self.own.settle(buffer)
    }

    /// See [`PdMemory::end_burst`].
    pub(crate) fn end_burst(&mut self, buffer: &mut [u8]) {
        self.own.end_burst(buffer);
    }
}

impl Memory for QpMemory<'_> {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.own.scatter(sges, offset, data)
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.own.gather(sges, offset, out)
    }

    fn announce(&mut self, more: u64) {
        self.own.announce(more);
    }

    fn check_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        self.own.check_remote(rkey, addr, len, access)
    }

    fn write_remote(&mut self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.own.write_remote(rkey, addr, data)?;
        self.counters.writes_placed.add(1);
        Ok(())
    }

    fn read_remote(&mut self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.own.read_remote(rkey, addr, out)
    }

    fn atomic(&mut self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        self.own.atomic(rkey, addr, op)
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        self.own.invalidate(rkey)
    }

    fn bind(&mut self, bind: &BindWindow) -> Result<(), MemoryError> {
        self.own.bind(bind)
    }

    fn scatter_held(
        &mut self,
        held: &HeldReceive,
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        self.own.scatter_held(held, offset, data)
    }

    fn select_shared(&mut self, srqn: Srqn) -> bool {
        let named = self.qp.shared_receives(Some(srqn));
        if let Some(srq) = &named {
            self.own.set_remote_domain(srq.pd().id());
        }
        named.is_some()
    }

    fn take_shared_receive(&mut self, srqn: Option<Srqn>, into: &mut HeldReceive) -> SharedReceive {
        let Some(srq) = self.qp.shared_receives(srqn) else {
            return SharedReceive::NoSuchQueue;
        };
        if !srq.take(into) {
            return SharedReceive::Empty;
        }
        if srqn.is_some() {
            *self.held = Some(srq);
        }
        SharedReceive::Taken
    }
}
