//! The packet engine of a queue pair: one of the transport services, chosen when it is created; and what it reaches.

mod memory;

use oarlock_transport::{
    Completion, Counters, Error, Memory, PacketBuf, QpAttr, QpEvent, QpState, Rc, RecvWr, SendWr,
    Transmit, Uc, Ud, VendorError,
};
use oarlock_wire::{AddressVector, Packet, Time};

pub(crate) use memory::QpMemory;

/// One of the engines. A closed set, so that the calls of the data path are direct.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Also both halves of XRC.
    Rc(Rc),
    Uc(Uc),
    Ud(Ud),
}

impl Transport {
    pub(crate) fn state(&self) -> QpState {
        match self {
            Self::Rc(rc) => rc.state(),
            Self::Uc(uc) => uc.state(),
            Self::Ud(ud) => ud.state(),
        }
    }

    pub(crate) fn query(&self) -> QpAttr {
        match self {
            Self::Rc(rc) => rc.query(),
            Self::Uc(uc) => uc.query(),
            Self::Ud(ud) => ud.query(),
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        match self {
            Self::Rc(rc) => rc.counters(),
            Self::Uc(uc) => uc.counters(),
            Self::Ud(ud) => ud.counters(),
        }
    }

    pub(crate) fn modify(&mut self, attr: &QpAttr) -> Result<(), Error> {
        match self {
            Self::Rc(rc) => rc.modify(attr),
            Self::Uc(uc) => uc.modify(attr),
            Self::Ud(ud) => ud.modify(attr),
        }
    }

    pub(crate) fn post_send(&mut self, request: &SendWr<'_>) -> Result<(), Error> {
        match self {
            Self::Rc(rc) => rc.post_send(request),
            Self::Uc(uc) => uc.post_send(request),
            Self::Ud(ud) => ud.post_send(request),
        }
    }

    /// Whether all of them could be posted now.
    pub(crate) fn check_sends(&self, requests: &[SendWr<'_>]) -> Result<(), (usize, Error)> {
        match self {
            Self::Rc(rc) => rc.check_sends(requests),
            Self::Uc(uc) => uc.check_sends(requests),
            Self::Ud(ud) => ud.check_sends(requests),
        }
    }

    pub(crate) fn post_recv(&mut self, request: &RecvWr<'_>) -> Result<(), Error> {
        match self {
            Self::Rc(rc) => rc.post_recv(request),
            Self::Uc(uc) => uc.post_recv(request),
            Self::Ud(ud) => ud.post_recv(request),
        }
    }

    pub(crate) fn handle_packet(
        &mut self,
        now: Time,
        from: &AddressVector,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        match self {
            Self::Rc(rc) => rc.handle_packet(now, from, packet, memory),
            Self::Uc(uc) => uc.handle_packet(now, from, packet, memory),
            Self::Ud(ud) => ud.handle_packet(from, packet, memory),
        }
    }

    /// The error state by the fault of neither program.
    pub(crate) fn fail(&mut self, reason: VendorError) {
        match self {
            Self::Rc(rc) => rc.fail(reason),
            Self::Uc(uc) => uc.fail(reason),
            Self::Ud(ud) => ud.fail(reason),
        }
    }

    /// Answers the next request as if the receiver were not ready: a fault for tests, which only a reliable service can
    /// have.
    pub(crate) fn refuse_request(&mut self) {
        if let Self::Rc(rc) = self {
            rc.refuse_request();
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        match self {
            Self::Rc(rc) => rc.handle_timeout(now),
            Self::Uc(uc) => uc.handle_timeout(now),
            // Nobody answers, so there is nothing to wait for.
            Self::Ud(_) => {}
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match self {
            Self::Rc(rc) => rc.poll_timeout(),
            Self::Uc(uc) => uc.poll_timeout(),
            Self::Ud(_) => None,
        }
    }

    pub(crate) fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<Transmit> {
        match self {
            Self::Rc(rc) => rc.poll_transmit(now, memory, out),
            Self::Uc(uc) => uc.poll_transmit(now, memory, out),
            Self::Ud(ud) => ud.poll_transmit(memory, out),
        }
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        match self {
            Self::Rc(rc) => rc.poll_completion(),
            Self::Uc(uc) => uc.poll_completion(),
            Self::Ud(ud) => ud.poll_completion(),
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<QpEvent> {
        match self {
            Self::Rc(rc) => rc.poll_event(),
            Self::Uc(uc) => uc.poll_event(),
            Self::Ud(ud) => ud.poll_event(),
        }
    }

    /// Whether nothing needs to leave at once; see [`Rc::may_wait`]. Nobody acknowledges on the other services.
    pub(crate) fn may_wait(&self) -> bool {
        match self {
            Self::Rc(rc) => rc.may_wait(),
            Self::Uc(_) | Self::Ud(_) => false,
        }
    }

    pub(crate) const fn has_sent_all(&self) -> bool {
        match self {
            Self::Rc(rc) => rc.has_sent_all(),
            Self::Uc(uc) => uc.has_sent_all(),
            Self::Ud(ud) => ud.has_sent_all(),
        }
    }

    pub(crate) fn has_output(&self) -> bool {
        match self {
            Self::Rc(rc) => rc.has_output(),
            Self::Uc(uc) => uc.has_output(),
            Self::Ud(ud) => ud.has_output(),
        }
    }
}
