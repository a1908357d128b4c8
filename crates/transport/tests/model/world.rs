//! Two hosts, the network between them, and one life of their pair of queue pairs.

use std::collections::BTreeMap;

use oarlock_sim::{Clock, Network, Rng};
use oarlock_transport::{
    AttrMask, Completion, Error, MAX_PACKET_LEN, QpAttr, QpEvent, QpState, RcKind, RecvWr,
    SendData, SendOp, SendWr, UdDestination,
};
use oarlock_wire::{AddressVector, IbTimeout, Packet, Psn, QKey, RetryCount, Srqn, Time, earliest};

use crate::director::{Buffers, Director};
use crate::engine::{Engine, gid, qpn};
use crate::memory::{Plant, Ram};
use crate::plan::{
    Flaw, Keys, Kill, Kind, Op, RECV, REMOTE, RESULT, Recv, SOURCE, Setup, Win, WinState,
};
use crate::tally::Tally;

/// What a judge finds wrong.
pub(crate) type Verdict = Result<(), String>;

const QKEY: QKey = QKey(0x1234);

/// One queue pair in its life.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) engine: Engine,
    pub(crate) events: Vec<QpEvent>,
    pub(crate) killed: Option<Kill>,
    /// It was in the error state, or gone, before the end.
    pub(crate) had_failed: bool,
    /// A response to it was mangled.
    pub(crate) was_mangled: bool,
    /// It was told to answer a request with an RNR NAK.
    pub(crate) has_refused: bool,
    /// Drains of its send queue that were begun.
    drains: usize,
    /// While it drains or has drained: the requests from here on have to wait.
    waits_from: Option<usize>,
}

/// What one host asks of the other.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    /// Requests that were accepted, in order.
    pub(crate) ops: Vec<Op>,
    pub(crate) send_wcs: Vec<Completion>,
    /// Receive buffers at the other host, by queue, in order.
    pub(crate) recvs: BTreeMap<u32, Vec<Recv>>,
    pub(crate) recv_wcs: Vec<Completion>,
    /// Chosen, and not accepted yet.
    pending: Option<Op>,
    chosen: usize,
    /// A message may have found no buffer.
    pub(crate) starved: bool,
}

/// One life of a pair.
#[derive(Debug)]
pub(crate) struct World<'a> {
    pub(crate) setup: Setup,
    rng: &'a mut Rng,
    pub(crate) rams: [Ram; 2],
    /// The memory as it was at the beginning.
    pub(crate) initial: [Vec<u8>; 2],
    pub(crate) keys: [Keys; 2],
    wins: [Vec<Win>; 2],
    pub(crate) dirs: [Direction; 2],
    directors: [Director; 2],
    buffers: [Buffers; 2],
    pub(crate) links: Vec<[Endpoint; 2]>,
    network: Network<(usize, Vec<u8>)>,
    clock: Clock,
    steps: usize,
    plant: Option<Plant>,
    /// Everything was done, and nothing failed.
    pub(crate) is_clean: bool,
    pub(crate) tally: &'a mut Tally,
}

impl<'a> World<'a> {
    /// Connects the queue pairs, with fresh memory.
    pub(crate) fn new(
        setup: Setup,
        engines: Vec<[Engine; 2]>,
        rng: &'a mut Rng,
        plant: Option<Plant>,
        tally: &'a mut Tally,
    ) -> Self {
        let kind = setup.kind;
        let mut rams = [(); 2].map(|()| Ram::new(RECV.end, plant));
        let mut wins = [Vec::new(), Vec::new()];
        let keys = [0, 1].map(|side| {
            let ram: &mut Ram = &mut rams[side];
            for arena in [REMOTE, SOURCE] {
                rng.fill(&mut ram.bytes[arena]);
            }
            // The words of atomic operations begin small.
            ram.bytes[..64].fill(0);
            ram.bytes[RESULT].fill(0x33);
            ram.bytes[RECV].fill(0xEE);
            let iova = [0, 0x1000, 0xFFFF_FFFF_0000_0000][rng.index(3)];
            let keys = Keys::register(ram, iova);
            for is_type_2 in [true, true, false] {
                let key = ram.window(is_type_2);
                let state = WinState::Free;
                wins[side].push(Win {
                    is_type_2,
                    key,
                    state,
                });
            }
            for queue in kind.queues().iter().filter(|queue| **queue != 0) {
                ram.add_srq(*queue, 20);
            }
            keys
        });
        let initial = [0, 1].map(|side| rams[side].bytes.clone());
        let network = Network::new(setup.network.clone(), rng.next_u64());
        let endpoint = |engine| Endpoint {
            engine,
            events: Vec::new(),
            killed: None,
            had_failed: false,
            was_mangled: false,
            has_refused: false,
            drains: 0,
            waits_from: None,
        };
        let first = rng.next_u64() >> 8;
        let mut world = Self {
            directors: [Director::new(0, first), Director::new(1, first + (1 << 20))],
            buffers: [
                Buffers::new(first + (1 << 30)),
                Buffers::new(first + (1 << 31)),
            ],
            setup,
            rng,
            rams,
            initial,
            keys,
            wins,
            dirs: <[Direction; 2]>::default(),
            links: engines.into_iter().map(|pair| pair.map(endpoint)).collect(),
            network,
            clock: Clock::new(),
            steps: 0,
            plant,
            is_clean: false,
            tally,
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        let setup = &self.setup;
        for (link, pair) in self.links.iter_mut().enumerate() {
            for (side, endpoint) in pair.iter_mut().enumerate() {
                let attr = QpAttr {
                    av: AddressVector::new(gid(side), gid(1 - side)),
                    access: setup.access[side],
                    qkey: QKEY,
                    path_mtu: setup.mtu,
                    dest_qpn: qpn(link, 1 - side),
                    sq_psn: Psn::truncate(setup.psns[side]),
                    rq_psn: Psn::truncate(setup.psns[1 - side]),
                    max_rd_atomic: setup.max_rd[side],
                    max_dest_rd_atomic: setup.max_dest_rd[side],
                    min_rnr_timer: setup.min_rnr_timer,
                    timeout: IbTimeout::truncate(setup.timeout),
                    retry_count: RetryCount::truncate(setup.retry),
                    rnr_retry: RetryCount::truncate(setup.rnr_retry),
                    ..QpAttr::default()
                };
                endpoint.engine.connect(&attr);
            }
        }
    }

    /// Lives this life to its end.
    pub(crate) fn run(&mut self) -> Verdict {
        let mut grace = None;
        for _ in 0..100_000 {
            self.steps += 1;
            self.strike();
            for side in self.sides() {
                self.post(side)?;
            }
            let moved = self.turn()?;
            self.watch();
            if grace.is_none() && self.links.iter().flatten().any(|e| e.had_failed) {
                grace = Some(self.steps + self.rng.index(60));
            }
            let is_done = self.is_all_posted() && !self.is_draining();
            if !moved && is_done || grace.is_some_and(|end| self.steps > end) {
                self.is_clean = grace.is_none();
                return self.tear_down();
            }
        }
        Err("never at rest".to_owned())
    }

    fn sides(&mut self) -> [usize; 2] {
        if self.rng.chance(0.5) { [0, 1] } else { [1, 0] }
    }

    fn is_all_posted(&self) -> bool {
        let all = |side: usize| {
            let dir = &self.dirs[side];
            dir.chosen == self.setup.count[side] && dir.pending.is_none()
        };
        all(0) && all(1)
    }

    fn is_draining(&self) -> bool {
        let mut endpoints = self.links.iter().flatten();
        endpoints.any(|e| matches!(e.engine.state(), QpState::Sqd | QpState::Sqe))
    }

    /// Faults that come at a certain step, and drains.
    fn strike(&mut self) {
        if let Some((step, side, kill)) = self.setup.kill
            && step == self.steps
        {
            let link = self.rng.index(self.links.len());
            let endpoint = &mut self.links[link][side];
            let state = match kill {
                Kill::Error => QpState::Error,
                Kill::Reset => QpState::Reset,
            };
            endpoint
                .engine
                .modify(&QpAttr::to_state(state))
                .expect("any state leads there");
            endpoint.killed = Some(kill);
            self.tally.fault(match kill {
                Kill::Error => "qp_error",
                Kill::Reset => "qp_reset",
            });
        }
        match self.setup.cut {
            Some(step) if step == self.steps => {
                self.network.partition(0, 1);
                self.tally.fault("partition");
            }
            Some(step) if step + 40 == self.steps => self.network.heal(0, 1),
            _ => {}
        }
        if self.setup.refuses && self.rng.chance(0.05) {
            let link = self.rng.index(self.links.len());
            let side = self.rng.index(2);
            let endpoint = &mut self.links[link][side];
            if let Engine::Rc(rc) = &mut endpoint.engine
                && rc.config().kind != RcKind::XrcInitiator
                && matches!(rc.state(), QpState::Rts)
            {
                rc.refuse_request();
                endpoint.has_refused = true;
                self.tally.fault("rnr");
            }
        }
        for link in 0..self.links.len() {
            for side in 0..2 {
                self.drain_queue(link, side);
            }
        }
    }

    /// To Sqd and back; from Sqe to Rts.
    fn drain_queue(&mut self, link: usize, side: usize) {
        let wants = self.rng.chance(self.setup.drains);
        let resumes = self.rng.chance(0.3);
        let kind = self.setup.kind;
        let posted = self.dirs[side].ops.len();
        let endpoint = &mut self.links[link][side];
        let engine = &mut endpoint.engine;
        let mask = AttrMask::STATE;
        match engine.state() {
            QpState::Rts if wants && !(kind == Kind::Xrc && link != side) => {
                let mask = mask | AttrMask::EN_SQD_ASYNC_NOTIFY;
                let attr = QpAttr {
                    mask,
                    sqd_notify: true,
                    ..QpAttr::to_state(QpState::Sqd)
                };
                engine.modify(&attr).expect("Rts leads to Sqd");
                endpoint.drains += 1;
                endpoint.waits_from = Some(posted);
                self.tally.fault("sqd");
            }
            QpState::Sqd if resumes && !engine.query().sq_draining => {
                engine
                    .modify(&QpAttr::to_state(QpState::Rts))
                    .expect("a drained queue goes on");
                endpoint.waits_from = None;
            }
            QpState::Sqe if resumes => {
                engine
                    .modify(&QpAttr::to_state(QpState::Rts))
                    .expect("Sqe leads to Rts");
                self.tally.fault("sqe");
            }
            _ => {}
        }
    }

    /// Notes which queue pairs have failed.
    fn watch(&mut self) {
        for endpoint in self.links.iter_mut().flatten() {
            let state = endpoint.engine.state();
            endpoint.had_failed |= matches!(state, QpState::Error | QpState::Reset);
        }
    }

    fn post(&mut self, side: usize) -> Verdict {
        let late = self.setup.late;
        for queue in self.setup.kind.queues() {
            if !late || self.rng.chance(0.1) {
                self.post_recvs(side, *queue)?;
            }
        }
        while self.rng.chance(0.6) {
            if !self.post_op(side)? {
                break;
            }
        }
        Ok(())
    }

    /// Buffers for what `side` sends: as many as messages, and a few more.
    fn post_recvs(&mut self, side: usize, queue: u32) -> Verdict {
        let link = self.setup.kind.link(side);
        let target = 1 - side;
        let dir = &self.dirs[side];
        let posted_ops = dir.ops.iter().chain(&dir.pending);
        let needed = posted_ops
            .filter(|op| op.consumes() && op.queue == queue)
            .count();
        let mut have = dir.recvs.get(&queue).map_or(0, Vec::len);
        let ahead = if self.setup.late { 1 } else { 3 };
        while have < needed + ahead {
            if queue == 0 && self.links[link][target].engine.state() == QpState::Reset {
                break;
            }
            let saved = self.rng.clone();
            let before = self.buffers[target].position();
            let keys = &self.keys[target];
            let Some(recv) = self.buffers[target].next(self.rng, &self.setup, keys) else {
                break;
            };
            let wr = RecvWr {
                wr_id: recv.wr_id,
                sges: &recv.sges,
            };
            let posted = if queue == 0 {
                self.links[link][target].engine.post_recv(&wr)
            } else {
                let srq = self.rams[target].srqs.get_mut(&queue);
                srq.expect("a queue of the kind").post_recv(&wr)
            };
            match posted {
                Ok(()) => {
                    self.dirs[side].recvs.entry(queue).or_default().push(recv);
                    have += 1;
                }
                Err(Error::QueueFull { .. }) => {
                    *self.rng = saved;
                    self.buffers[target].back_to(before);
                    break;
                }
                Err(other) => return Err(format!("a receive is refused: {other}")),
            }
        }
        if have < needed {
            self.dirs[side].starved = true;
        }
        Ok(())
    }

    /// Posts the next request of `side`. False when there is none, or it has to wait.
    fn post_op(&mut self, side: usize) -> Result<bool, String> {
        let link = self.setup.kind.link(side);
        if self.links[link][side].engine.state() == QpState::Reset {
            self.dirs[side].pending = None;
            self.dirs[side].chosen = self.setup.count[side];
            return Ok(false);
        }
        if self.dirs[side].pending.is_none() {
            if self.dirs[side].chosen == self.setup.count[side] {
                return Ok(false);
            }
            let is_quiet = self.is_quiet(1 - side);
            let [first, second] = &mut self.wins;
            let (own, peer) = if side == 0 {
                (first, second)
            } else {
                (second, first)
            };
            let op = self.directors[side].next(
                self.rng,
                &self.setup,
                (&self.keys[side], own),
                (&self.keys[1 - side], peer),
                is_quiet,
            );
            self.dirs[side].chosen += 1;
            self.dirs[side].pending = Some(op);
        }
        let Some(op) = self.dirs[side].pending.take() else {
            return Ok(false);
        };
        if op.consumes() && op.flaw != Some(Flaw::NoSuchQueue) && !self.setup.late {
            let queue = op.queue;
            self.dirs[side].pending = Some(op.clone());
            self.post_recvs(side, queue)?;
            self.dirs[side].pending = None;
        } else if op.consumes() {
            self.dirs[side].starved = true;
        }
        match self.submit(link, side, &op) {
            Ok(()) => {
                self.tally.op(self.setup.kind, &op);
                self.dirs[side].ops.push(op);
                Ok(true)
            }
            Err(Error::QueueFull { .. }) => {
                self.dirs[side].pending = Some(op);
                Ok(false)
            }
            Err(Error::NoReadsAllowed { .. }) if op.brings() && self.setup.max_rd[side] == 0 => {
                self.tally.fault("no_reads_allowed");
                Ok(true)
            }
            Err(other) => Err(format!("{op:?} is refused: {other}")),
        }
    }

    fn submit(&mut self, link: usize, side: usize, op: &Op) -> Result<(), Error> {
        let remote_qkey = match op.flaw {
            Some(Flaw::WrongQkey) => QKey(QKEY.0 + 1),
            _ => QKEY,
        };
        let ud = UdDestination {
            av: AddressVector::new(gid(side), gid(1 - side)),
            remote_qpn: qpn(link, 1 - side),
            remote_qkey,
        };
        let is_xrc = self.setup.kind == Kind::Xrc;
        let wr = SendWr {
            wr_id: op.wr_id,
            op: op.op,
            data: match &op.inline {
                Some(bytes) => SendData::Inline(bytes),
                None => SendData::Sges(&op.sges),
            },
            signaled: op.signaled,
            solicited: op.solicited,
            fence: op.fence,
            ud: self.setup.kind.is_ud().then_some(ud),
            xrc_srqn: (is_xrc && !op.is_local()).then(|| Srqn::truncate(op.queue)),
        };
        self.links[link][side].engine.post_send(&wr)
    }

    /// Nothing of what `side` asked for is on its way.
    fn is_quiet(&self, side: usize) -> bool {
        let dir = &self.dirs[side];
        let is_done = dir.ops.last().is_none_or(|op| {
            let last = dir.send_wcs.last();
            last.is_some_and(|wc| wc.wr_id == op.wr_id)
        });
        is_done && dir.pending.is_none() && self.network.in_flight() == 0
    }

    /// One moment: everything that is to be said now, then on to the next. False when nothing will happen any more.
    fn turn(&mut self) -> Result<bool, String> {
        let mut order: Vec<_> = (0..self.links.len())
            .flat_map(|link| [(link, 0), (link, 1)])
            .collect();
        let start = self.rng.index(order.len());
        order.rotate_left(start);
        for (link, side) in order {
            self.drain(link, side)?;
        }
        let timeouts = self
            .links
            .iter()
            .flatten()
            .filter_map(|endpoint| endpoint.engine.poll_timeout());
        let Some(next) = earliest(self.network.next_delivery(), timeouts.min()) else {
            return Ok(false);
        };
        let now = self.clock.advance_to(next);
        while let Some(delivery) = self.network.deliver(now) {
            let (link, bytes) = delivery.datagram;
            let from = AddressVector::new(gid(delivery.to), gid(delivery.from));
            let queue = self.setup.kind.queues()[0];
            let mut view = self.rams[delivery.to].view(Some(queue));
            self.links[link][delivery.to]
                .engine
                .handle_datagram(now, &from, &bytes, &mut view);
        }
        for endpoint in self.links.iter_mut().flatten() {
            endpoint.engine.handle_timeout(now);
        }
        Ok(true)
    }

    fn drain(&mut self, link: usize, side: usize) -> Verdict {
        let now = self.clock.now();
        let mut out = [0; MAX_PACKET_LEN];
        let queue = self.setup.kind.queues()[0];
        loop {
            let mut view = self.rams[side].view(Some(queue));
            let engine = &mut self.links[link][side].engine;
            let Some(sent) = engine.poll_transmit(now, &mut view, &mut out) else {
                break;
            };
            if sent.av.remote != gid(1 - side) {
                return Err(format!("sent to {}", sent.av.remote));
            }
            self.send(now, link, side, &out[..sent.len]);
        }
        while let Some(wc) = self.links[link][side].engine.poll_completion() {
            self.complete(link, side, wc)?;
        }
        while let Some(event) = self.links[link][side].engine.poll_event() {
            self.tally.event(event);
            self.links[link][side].events.push(event);
        }
        Ok(())
    }

    fn send(&mut self, now: Time, link: usize, side: usize, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("what we send can be parsed");
        let is_result = packet.bth.opcode.is_response()
            && (packet.atomic_ack_eth.is_some() || !packet.payload.is_empty());
        if self.rng.chance(self.setup.corruption) {
            return self.tally.fault("corrupt");
        }
        let peer = &mut self.links[link][1 - side];
        if self.setup.mangles && is_result && !peer.was_mangled && self.rng.chance(0.3) {
            // Four bytes too many.
            let payload = [packet.payload, &[0; 4]].concat();
            let mut longer = vec![0; bytes.len() + 4];
            let len = packet
                .header()
                .emit_packet(&payload, &mut longer)
                .expect("there is room");
            longer.truncate(len);
            peer.was_mangled = true;
            self.tally.fault("mangled");
            return self.network.send(now, side, 1 - side, (link, longer));
        }
        self.network
            .send(now, side, 1 - side, (link, bytes.to_vec()));
    }

    /// Keeps a completion where it belongs, and what it says about windows.
    fn complete(&mut self, link: usize, side: usize, mut wc: Completion) -> Verdict {
        self.tally.status(&wc);
        let waits_from = self.links[link][side].waits_from;
        if let Some(waiting) = waits_from.and_then(|from| self.dirs[side].ops.get(from..))
            && wc.status.is_success()
            && waiting.iter().any(|op| wc.is_send && op.wr_id == wc.wr_id)
        {
            return Err(format!("done although the send queue was drained: {wc:?}"));
        }
        if let Some(key) = wc.invalidated {
            self.settle_window(side, key.0, WinState::Free);
        }
        if wc.is_send {
            let op = self.dirs[side].ops.iter().find(|op| op.wr_id == wc.wr_id);
            match op.map(|op| op.op) {
                Some(SendOp::BindWindow(bind)) if wc.status.is_success() => {
                    let start = (bind.addr - self.keys[side].iova) as usize;
                    let (len, access) = (bind.len as usize, bind.access);
                    let state = WinState::Bound { start, len, access };
                    self.settle_window(side, bind.rkey.0, state);
                    // What a window of type 1 was bound to before.
                    self.directors[1 - side].outdate(bind.window.0);
                }
                Some(SendOp::LocalInvalidate(key)) if wc.status.is_success() => {
                    self.settle_window(side, key.0, WinState::Free);
                    self.directors[1 - side].outdate(key.0);
                }
                _ => {}
            }
        }
        let wcs = if wc.is_send {
            &mut self.dirs[side].send_wcs
        } else {
            &mut self.dirs[1 - side].recv_wcs
        };
        match self.plant {
            Some(Plant::LostCompletion) if wcs.len() == 1 => self.plant = None,
            Some(Plant::DoubleCompletion) if wcs.len() == 1 => {
                wcs.push(wc);
                wcs.push(wc);
                self.plant = None;
            }
            Some(Plant::SwappedCompletions) if wcs.len() == 1 => {
                wcs.insert(0, wc);
                self.plant = None;
            }
            Some(Plant::WrongImmediate) if wc.imm.is_some() => {
                wc.imm = wc.imm.map(|imm| imm ^ 0x100);
                wcs.push(wc);
                self.plant = None;
            }
            _ => wcs.push(wc),
        }
        Ok(())
    }

    fn settle_window(&mut self, side: usize, key: u32, state: WinState) {
        if let Some(win) = self.wins[side].iter_mut().find(|win| win.key == key) {
            win.state = state;
        }
    }

    /// What programs do at the end: both sides to the error state, and everything that is still to be heard.
    fn tear_down(&mut self) -> Verdict {
        for (link, pair) in self.links.iter_mut().enumerate() {
            for (side, endpoint) in pair.iter_mut().enumerate() {
                let drained = endpoint
                    .events
                    .iter()
                    .filter(|event| **event == QpEvent::SqDrained)
                    .count();
                let drains = endpoint.drains;
                if drained > drains || self.is_clean && drained != drains {
                    return Err(format!(
                        "link {link} side {side}: {drained} of {drains} drains"
                    ));
                }
                if endpoint.engine.state() != QpState::Reset {
                    endpoint
                        .engine
                        .modify(&QpAttr::to_state(QpState::Error))
                        .expect("any state leads to Error");
                }
            }
        }
        for _ in 0..100_000 {
            if !self.turn()? {
                self.tally.network(&self.network.counters());
                return Ok(());
            }
        }
        Err("an error state that never comes to rest".to_owned())
    }

    /// The queue pairs, in Reset again.
    pub(crate) fn into_engines(self) -> Vec<[Engine; 2]> {
        let reset = |endpoint: Endpoint| {
            let mut engine = endpoint.engine;
            engine
                .modify(&QpAttr::to_state(QpState::Reset))
                .expect("any state leads to Reset");
            engine
        };
        self.links.into_iter().map(|pair| pair.map(reset)).collect()
    }
}
