//! One queue pair of any kind, behind one face.

use oarlock_sim::Rng;
use oarlock_transport::{
    AttrMask, Completion, Error, Memory, PacketBuf, QpAttr, QpEvent, QpState, Rc, RcConfig, RcKind,
    RecvWr, SendWr, Transmit, Uc, UcConfig, Ud, UdConfig,
};
use oarlock_wire::{AddressVector, Gid, Qpn, Time};

use crate::plan::{Kind, Setup};

#[derive(Debug)]
pub(crate) enum Engine {
    Rc(Box<Rc>),
    Uc(Box<Uc>),
    Ud(Box<Ud>),
}

macro_rules! each {
    ($engine:expr, $qp:ident => $call:expr) => {
        match $engine {
            Engine::Rc($qp) => $call,
            Engine::Uc($qp) => $call,
            Engine::Ud($qp) => $call,
        }
    };
}

impl Engine {
    pub(crate) fn state(&self) -> QpState {
        each!(self, qp => qp.state())
    }

    pub(crate) fn query(&self) -> QpAttr {
        each!(self, qp => qp.query())
    }

    pub(crate) fn modify(&mut self, attr: &QpAttr) -> Result<(), Error> {
        each!(self, qp => qp.modify(attr))
    }

    pub(crate) fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), Error> {
        each!(self, qp => qp.post_send(wr))
    }

    pub(crate) fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        each!(self, qp => qp.post_recv(wr))
    }

    pub(crate) fn handle_datagram(
        &mut self,
        now: Time,
        from: &AddressVector,
        bytes: &[u8],
        memory: &mut dyn Memory,
    ) {
        match self {
            Self::Rc(qp) => qp.handle_datagram(now, from, bytes, memory),
            Self::Uc(qp) => qp.handle_datagram(now, from, bytes, memory),
            Self::Ud(qp) => qp.handle_datagram(from, bytes, memory),
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        match self {
            Self::Rc(qp) => qp.handle_timeout(now),
            Self::Uc(qp) => qp.handle_timeout(now),
            Self::Ud(_) => {}
        }
    }

    pub(crate) fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<Transmit> {
        match self {
            Self::Rc(qp) => qp.poll_transmit(now, memory, out),
            Self::Uc(qp) => qp.poll_transmit(now, memory, out),
            Self::Ud(qp) => qp.poll_transmit(memory, out),
        }
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        each!(self, qp => qp.poll_completion())
    }

    pub(crate) fn poll_event(&mut self) -> Option<QpEvent> {
        each!(self, qp => qp.poll_event())
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match self {
            Self::Rc(qp) => qp.poll_timeout(),
            Self::Uc(qp) => qp.poll_timeout(),
            Self::Ud(_) => None,
        }
    }

    /// From Reset to Rts, with what each transition demands of this kind of queue pair.
    pub(crate) fn connect(&mut self, attr: &QpAttr) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let mask = AttrMask::STATE | self.required(state);
            self.modify(&QpAttr {
                mask,
                state,
                ..*attr
            })
            .expect("the recipe is complete");
        }
    }

    fn required(&self, to: QpState) -> AttrMask {
        use AttrMask as M;
        let is_ud = matches!(self, Self::Ud(_));
        let is_uc = matches!(self, Self::Uc(_));
        let kind = match self {
            Self::Rc(qp) => Some(qp.config().kind),
            _ => None,
        };
        let requests = kind.is_some_and(|kind| kind != RcKind::XrcTarget);
        let responds = kind.is_some_and(|kind| kind != RcKind::XrcInitiator);
        match to {
            QpState::Init if is_ud => M::PKEY_INDEX | M::PORT | M::QKEY,
            QpState::Init => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            QpState::Rtr if is_ud => M::empty(),
            QpState::Rtr => {
                let mut mask = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
                if responds {
                    mask |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
                }
                mask
            }
            _ if is_ud || is_uc => M::SQ_PSN,
            _ => {
                let mut mask = M::SQ_PSN | M::TIMEOUT;
                if requests {
                    mask |= M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
                }
                mask
            }
        }
    }
}

pub(crate) fn gid(side: usize) -> Gid {
    Gid::from_ip([10, 0, 0, 1 + side as u8].into())
}

/// The number of a queue pair.
pub(crate) fn qpn(link: usize, side: usize) -> Qpn {
    Qpn::truncate((0x10 + 2 * link + side) as u32)
}

/// Queue pairs of the kind, in state Reset.
pub(crate) fn engines(rng: &mut Rng, kind: Kind, setup: &Setup) -> Vec<[Engine; 2]> {
    let depths = [1 + rng.below(16) as u32, 1 + rng.below(16) as u32];
    let links = if kind == Kind::Xrc { 2 } else { 1 };
    let windows = [(); 2].map(|()| {
        (
            1 + rng.below(70) as u32,
            1 + rng.below(70) as u32,
            1 + rng.below(70) as u32,
            rng.chance(0.5),
            rng.chance(0.1),
        )
    });
    let engine = |link: usize, side: usize| {
        let qpn = qpn(link, side);
        let shared_receives = kind.is_shared();
        let (max_send_wr, max_recv_wr) = (depths[side], depths[1 - side]);
        let (window, read_window, ack_interval, flow_control, sq_sig_all) = windows[side];
        if kind.is_reliable() {
            let kind = match kind {
                Kind::Xrc if link == side => RcKind::XrcInitiator,
                Kind::Xrc => RcKind::XrcTarget,
                _ => RcKind::Rc,
            };
            Engine::Rc(Box::new(Rc::new(RcConfig {
                kind,
                qpn,
                max_send_wr,
                max_recv_wr,
                shared_receives,
                window,
                read_window,
                ack_interval,
                flow_control,
                sq_sig_all,
                ..RcConfig::default()
            })))
        } else if kind.is_uc() {
            Engine::Uc(Box::new(Uc::new(UcConfig {
                qpn,
                max_send_wr,
                max_recv_wr,
                shared_receives,
                sq_sig_all,
                ..UcConfig::default()
            })))
        } else {
            Engine::Ud(Box::new(Ud::new(UdConfig {
                qpn,
                max_send_wr,
                max_recv_wr,
                shared_receives,
                sq_sig_all,
                mtu: setup.mtu,
                ..UdConfig::default()
            })))
        }
    };
    (0..links)
        .map(|link| [engine(link, 0), engine(link, 1)])
        .collect()
}
