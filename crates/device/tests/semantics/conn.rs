//! Pairs of queue pairs of every transport service, so that a case can be one for all of them.

use std::sync::Arc;

use oarlock_device::{Error, Qp, QpInit, Region, Srq, SrqInit, SrqXrc, XrcDomain};
use oarlock_transport::{
    AttrMask, Completion, QpAttr, QpState, QpType, RecvWr, SendData, SendOp, SendWr, Sge,
    UdDestination, WcStatus,
};
use oarlock_wire::{AddressVector, Grh, Qpn, Srqn};

use crate::end::End;
use crate::support::KEY;
use crate::support::ends::{Link, steps};

/// Every transport service, XRC by the type of its sender.
pub(crate) const SERVICES: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcInitiator];

/// Those that acknowledge.
pub(crate) const RELIABLE: [QpType; 2] = [QpType::Rc, QpType::XrcInitiator];

/// Those that write into memory of the peer.
pub(crate) const WRITING: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::XrcInitiator];

/// A queue pair of one side, connected. The first side sends; with XRC it does nothing else, and the second only receives.
pub(crate) struct Conn {
    pub(crate) qp: Qp,
    pub(crate) to: Option<UdDestination>,
    pub(crate) srqn: Option<Srqn>,
    pub(crate) srq: Option<Arc<Srq>>,
}

impl End {
    /// Connects a pair for this service; both sides call it at the same point.
    pub(crate) fn open(&mut self, service: QpType) -> Conn {
        self.open_with(service, QpInit::default(), &Link::default())
    }

    /// As [`open`](Self::open), with these attributes; the type in `init` does not count.
    pub(crate) fn open_with(&mut self, service: QpType, init: QpInit, link: &Link) -> Conn {
        let mut conn = self.made(service, init);
        let numbers = [
            conn.qp.qpn().get().into(),
            conn.own_srqn().map_or(0, |number| number.get().into()),
        ];
        let [peer, srqn] = self.swap(numbers);
        let peer = Qpn::truncate(peer as u32);
        if service == QpType::XrcInitiator && self.is_first() {
            conn.srqn = Some(Srqn::truncate(srqn as u32));
        }
        if service == QpType::Ud {
            conn.to = Some(UdDestination {
                av: AddressVector::new(self.here, self.there),
                remote_qpn: peer,
                remote_qkey: KEY,
            });
        }
        for attr in self.way(conn.qp.qp_type(), peer, link) {
            conn.qp.modify(&attr).expect("modify");
        }
        // Both can receive now.
        self.meet();
        conn
    }

    /// The queue pair alone, in Reset.
    pub(crate) fn made(&mut self, service: QpType, init: QpInit) -> Conn {
        let is_target = service == QpType::XrcInitiator && !self.is_first();
        let qp_type = if is_target {
            QpType::XrcTarget
        } else {
            service
        };
        let domain = is_target.then(|| XrcDomain::open(&self.side.context, None).expect("domain"));
        let srq = domain.clone().map(|domain| {
            let init = SrqInit {
                xrc: Some(SrqXrc {
                    domain,
                    cq: Arc::clone(&self.side.cq),
                }),
                ..SrqInit::default()
            };
            Arc::new(Srq::new(&self.side.pd, init).expect("srq"))
        });
        let qp = self.side.qp(QpInit {
            qp_type,
            xrc_domain: domain,
            ..init
        });
        Conn {
            qp,
            to: None,
            srqn: None,
            srq,
        }
    }

    /// The modifications from Reset to RTS.
    pub(crate) fn way(&self, qp_type: QpType, peer: Qpn, link: &Link) -> Vec<QpAttr> {
        if qp_type != QpType::Ud {
            return steps(qp_type, self.here, self.there, peer, link);
        }
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        [
            (QpState::Init, init),
            (QpState::Rtr, AttrMask::STATE),
            (QpState::Rts, AttrMask::STATE | AttrMask::SQ_PSN),
        ]
        .map(|(state, mask)| QpAttr {
            mask,
            state,
            qkey: KEY,
            ..QpAttr::default()
        })
        .into()
    }

    /// Posts one request and waits for its success.
    pub(crate) fn run(&self, conn: &Conn, op: SendOp, sges: &[Sge]) -> Completion {
        let done = self.attempt(conn, op, sges);
        let status = done.status;
        assert_eq!(
            status,
            WcStatus::SUCCESS,
            "{}: {}",
            op.name(),
            done.vendor_err
        );
        assert_eq!(done.opcode, op.wc_opcode());
        done
    }

    /// Posts one request and waits for its end.
    pub(crate) fn attempt(&self, conn: &Conn, op: SendOp, sges: &[Sge]) -> Completion {
        conn.post(&SendWr {
            wr_id: 77,
            data: SendData::Sges(sges),
            ..conn.wr(op)
        });
        let done = self.next();
        assert_eq!((done.wr_id, done.is_send), (77, true));
        done
    }

    /// Posts one request of which it is known how it ends.
    pub(crate) fn inline(&self, conn: &Conn, bytes: &[u8]) {
        conn.post(&SendWr {
            data: SendData::Inline(bytes),
            ..conn.wr(SendOp::Send)
        });
        assert_eq!(self.next().status, WcStatus::SUCCESS);
    }

    /// A buffer for a message of `len` bytes, posted.
    pub(crate) fn ready(&self, conn: &Conn, wr_id: u64, len: usize) -> Region {
        let len = conn.header() + len;
        let region = self.region(len.max(1), oarlock_device::Access::LOCAL_WRITE);
        conn.recv(wr_id, &[region.sge(0, len as u32)]);
        region
    }

    /// Waits for a message in this buffer; gives the completion and the message.
    pub(crate) fn received(&self, conn: &Conn, buffer: &Region) -> (Completion, Vec<u8>) {
        let done = self.next();
        assert_eq!((done.status, done.is_send), (WcStatus::SUCCESS, false));
        let message = crate::end::content(buffer);
        let len = done.byte_len as usize;
        (done, message[conn.header()..len].to_vec())
    }
}

impl Conn {
    fn own_srqn(&self) -> Option<Srqn> {
        self.srq.as_ref().and_then(|srq| srq.number())
    }

    /// Bytes before each received message.
    pub(crate) fn header(&self) -> usize {
        match self.qp.qp_type() {
            QpType::Ud => Grh::LEN,
            _ => 0,
        }
    }

    /// A request without data, addressed.
    pub(crate) fn wr(&self, op: SendOp) -> SendWr<'static> {
        let is_local = matches!(op, SendOp::LocalInvalidate(_) | SendOp::BindWindow(_));
        SendWr {
            op,
            ud: self.to,
            xrc_srqn: self.srqn.filter(|_| !is_local),
            ..SendWr::default()
        }
    }

    pub(crate) fn post(&self, wr: &SendWr<'_>) {
        self.qp.post_send(wr).expect("post_send");
    }

    /// Why a request is refused.
    pub(crate) fn refused(&self, wr: &SendWr<'_>) -> oarlock_transport::Error {
        match self.qp.post_send(wr) {
            Err(Error::QueuePair(error)) => error,
            other => panic!("refused by no rule of the queue pair: {other:?}"),
        }
    }

    pub(crate) fn recv(&self, wr_id: u64, sges: &[Sge]) {
        let wr = RecvWr { wr_id, sges };
        match &self.srq {
            Some(srq) => srq.post_recv(&wr),
            None => self.qp.post_recv(&wr),
        }
        .expect("post_recv");
    }

    pub(crate) fn to_state(&self, state: QpState) {
        self.qp.modify(&QpAttr::to_state(state)).expect("modify");
    }

    pub(crate) fn count(&self, counter: oarlock_transport::Counter) -> u64 {
        self.qp.counters().get(counter)
    }
}
