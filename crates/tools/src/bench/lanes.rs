//! The queue pairs of one side, and how their completions are waited for.

use super::control::{Control, End, LaneEnd, foreign};
use super::plan::{Mode, Op, Plan, Refusal, Transport};
use crate::failure::{Failure, system};
use oarlock_hostd::Host;
use oarlock_verbs::{
    AccessFlags, AddressHandle, AttrMask, Buffer, Completion, CompletionChannel, CompletionQueue,
    Context, Counter, DeviceInfo, GRH_LEN, MemoryRegion, Notify, ProtectionDomain, QpAttr,
    QpInitAttr, QpState, QpType, QueuePair, SendRequest, WcStatus,
};
use oarlock_wire::{AddressVector, Gid, IbTimeout, Mtu, Psn, QKey, Qpn, RetryCount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A queue pair with the buffers that are not posted.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) queue_pair: QueuePair,
    pub(super) spare: Vec<Buffer>,
    /// With datagrams: where they go.
    to: Option<(AddressHandle, Qpn)>,
    psn: Psn,
}

/// One side.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) pd: ProtectionDomain,
    pub(super) lanes: Vec<Lane>,
    pub(super) waiter: Waiter,
    gid: Gid,
    mtu: Mtu,
}

/// Which device has an address.
pub(super) fn device_of(host: &Host, address: IpAddr) -> Result<DeviceInfo, Failure> {
    let gid = Gid::from_ip(address);
    let devices = Context::devices(host)?;
    let found = devices.iter().find(|device| device.gids.contains(&gid));
    found.cloned().ok_or_else(|| {
        let known: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        Failure::Protocol(format!(
            "no RDMA device has the address {address}; the devices are {}",
            known.join(", ")
        ))
    })
}

impl Lanes {
    /// Queue pairs on the device that has the address, in state Init.
    pub(super) fn new(host: &Host, plan: &Plan, address: IpAddr) -> Result<Self, Failure> {
        let device = device_of(host, address)?;
        let mtu = device.max_path_mtu();
        let packet = u32::from(mtu.bytes().unwrap_or(0));
        if plan.transport == Transport::Ud && plan.size > packet {
            let size = plan.size;
            let refusal = Refusal::DatagramSize { size, mtu: packet };
            return Err(Failure::Usage(refusal.to_string()));
        }
        let context = Context::open(host, device.index)?;
        let pd = context.default_pd();
        let (sends, receives) = (plan.window + 1, plan.receives() + 1);
        let capacity = plan.qps.saturating_mul(sends + receives);
        let waiter = Waiter::new(&context, plan.mode, capacity)?;
        let init = QpInitAttr {
            qp_type: match plan.transport {
                Transport::Rc => QpType::Rc,
                Transport::Uc => QpType::Uc,
                Transport::Ud => QpType::Ud,
            },
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpInitAttr::default()
        };
        let mut lanes = Vec::new();
        for _ in 0..plan.qps {
            let queue_pair = QueuePair::create(&pd, &waiter.cq, &waiter.cq, init)?;
            let mut attr = QpAttr {
                mask: AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT,
                state: QpState::Init,
                port_num: device.port_num,
                qkey: QKEY,
                access: match plan.op {
                    Op::Send => AccessFlags::empty(),
                    Op::Write => AccessFlags::REMOTE_WRITE,
                    Op::Read => AccessFlags::REMOTE_READ,
                    Op::Atomic => AccessFlags::REMOTE_ATOMIC,
                },
                ..QpAttr::default()
            };
            attr.mask |= match plan.transport {
                Transport::Ud => AttrMask::QKEY,
                Transport::Rc | Transport::Uc => AttrMask::ACCESS_FLAGS,
            };
            queue_pair.modify(&attr)?;
            lanes.push(Lane {
                queue_pair,
                spare: Vec::new(),
                to: None,
                psn: Psn::truncate(random() as u32),
            });
        }
        Ok(Self {
            pd,
            lanes,
            waiter,
            gid: Gid::from_ip(address),
            mtu,
        })
    }

    /// What the other side has to know.
    pub(super) fn end(&self) -> End {
        End {
            mtu: self.mtu.0,
            token: 0,
            lanes: self
                .lanes
                .iter()
                .map(|lane| LaneEnd {
                    qpn: lane.queue_pair.qpn().get(),
                    psn: lane.psn.get(),
                    ..LaneEnd::default()
                })
                .collect(),
        }
    }

    /// Brings the queue pairs to RTS with the other side's.
    pub(super) fn connect(&mut self, remote: IpAddr, end: &End) -> Result<(), Failure> {
        if end.lanes.len() != self.lanes.len() {
            return Err(foreign());
        }
        let context = self.pd.context().clone();
        let device = context.device();
        let path_mtu = Mtu(self.mtu.0.min(end.mtu));
        path_mtu.bytes().ok_or_else(foreign)?;
        let mut av = AddressVector::new(self.gid, Gid::from_ip(remote));
        if self.gid.is_link_local() {
            av.scope_id = device.ifindex;
        }
        for (lane, end) in self.lanes.iter_mut().zip(&end.lanes) {
            let dest_qpn = Qpn::new(end.qpn).ok_or_else(foreign)?;
            let connected =
                AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
            let (rtr, rts) = match lane.queue_pair.qp_type() {
                QpType::Ud => {
                    lane.to = Some((AddressHandle::along(&self.pd, av)?, dest_qpn));
                    (AttrMask::empty(), AttrMask::SQ_PSN)
                }
                QpType::Uc => (connected, AttrMask::SQ_PSN),
                _ => (
                    connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
                    AttrMask::SQ_PSN
                        | AttrMask::TIMEOUT
                        | AttrMask::RETRY_CNT
                        | AttrMask::RNR_RETRY
                        | AttrMask::MAX_QP_RD_ATOMIC,
                ),
            };
            let attr = QpAttr {
                av,
                path_mtu,
                dest_qpn,
                rq_psn: Psn::truncate(end.psn),
                sq_psn: lane.psn,
                max_dest_rd_atomic: device.limits.max_qp_rd_atom,
                max_rd_atomic: device.limits.max_qp_init_rd_atom,
                min_rnr_timer: MIN_RNR_TIMER,
                timeout: IbTimeout::truncate(TIMEOUT),
                retry_count: RetryCount::MAX,
                rnr_retry: RetryCount::MAX,
                ..QpAttr::default()
            };
            for (state, mask) in [(QpState::Rtr, rtr), (QpState::Rts, rts)] {
                let mask = mask | AttrMask::STATE;
                lane.queue_pair.modify(&QpAttr {
                    mask,
                    state,
                    ..attr
                })?;
            }
        }
        Ok(())
    }

    /// `count` buffers of `len` bytes for each queue pair, of one region each.
    pub(super) fn buffers(&self, count: u32, len: usize) -> Result<Vec<Buffer>, Failure> {
        let all = len.saturating_mul(count as usize);
        let region = MemoryRegion::new(&self.pd, all, oarlock_verbs::Access::LOCAL_WRITE)?;
        Ok(region.into_buffers(len))
    }

    /// Posts the receives of every queue pair.
    pub(super) fn post_receives(&self, plan: &Plan) -> Result<(), Failure> {
        let len = self.header(plan) + plan.size as usize;
        for (at, lane) in self.lanes.iter().enumerate() {
            for buffer in self.buffers(plan.receives(), len)? {
                lane.queue_pair.post_recv(at as u64, buffer)?;
            }
        }
        Ok(())
    }

    /// Bytes before each message that arrives.
    pub(super) fn header(&self, plan: &Plan) -> usize {
        match plan.transport {
            Transport::Ud => GRH_LEN,
            Transport::Rc | Transport::Uc => 0,
        }
    }

    /// Packets that were sent again.
    pub(super) fn retransmits(&self) -> u64 {
        let of_lane = |lane: &Lane| lane.queue_pair.counters().get(Counter::RequestsResent);
        self.lanes.iter().map(of_lane).sum()
    }
}

impl Lane {
    /// Addresses a request, where it takes an address.
    pub(super) fn addressed<'a>(&self, request: SendRequest<'a>) -> SendRequest<'a> {
        match &self.to {
            Some((ah, qpn)) => request.to(ah, *qpn, QKEY),
            None => request,
        }
    }
}

/// A completion that tells of success, else a failure that names what failed.
pub(super) fn succeeded(completion: Completion) -> Result<Completion, Failure> {
    if completion.status == WcStatus::SUCCESS {
        return Ok(completion);
    }
    Err(Failure::Completion {
        connection: (completion.wr_id >> LANE_SHIFT) as usize,
        operation: if completion.is_send {
            "a request"
        } else {
            "a receive"
        },
        status: completion.status.to_string(),
        hint: "",
    })
}

/// The queue pair's place stands above the message's number in a work request.
pub(super) const LANE_SHIFT: u32 = 48;

/// What a wait ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Completions,
    /// The other side has said something, or gone.
    News,
    Late,
}

/// Waits as the plan says.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) cq: CompletionQueue,
    channel: Option<CompletionChannel>,
}

impl Waiter {
    fn new(context: &Context, mode: Mode, capacity: u32) -> Result<Self, Failure> {
        Ok(match mode {
            Mode::Poll => Self {
                cq: CompletionQueue::new(context, capacity)?,
                channel: None,
            },
            Mode::Event => {
                let channel = CompletionChannel::new(context)?;
                Self {
                    cq: CompletionQueue::with_channel(context, capacity, &channel)?,
                    channel: Some(channel),
                }
            }
        })
    }

    /// Waits for completions, for the other side, or for a time.
    pub(super) fn next(
        &self,
        out: &mut Vec<Completion>,
        control: &Control,
        until: Option<Instant>,
    ) -> Result<Woken, Failure> {
        match &self.channel {
            None => self.look(out, control, until),
            Some(channel) => self.sleep(channel, out, control, until),
        }
    }

    fn look(
        &self,
        out: &mut Vec<Completion>,
        control: &Control,
        until: Option<Instant>,
    ) -> Result<Woken, Failure> {
        loop {
            for _ in 0..TURNS {
                if self.cq.poll(out)? > 0 {
                    return Ok(Woken::Completions);
                }
                std::hint::spin_loop();
            }
            if control.has_news()? {
                return Ok(Woken::News);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(Woken::Late);
            }
        }
    }

    fn sleep(
        &self,
        channel: &CompletionChannel,
        out: &mut Vec<Completion>,
        control: &Control,
        until: Option<Instant>,
    ) -> Result<Woken, Failure> {
        loop {
            if self.cq.poll(out)? > 0 {
                return Ok(Woken::Completions);
            }
            self.cq.req_notify(Notify::Any)?;
            // What completed before the arming gives no event.
            if self.cq.poll(out)? > 0 {
                return Ok(Woken::Completions);
            }
            if control.has_news()? {
                return Ok(Woken::News);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Woken::Late);
            }
            let limit = Timespec::try_from(left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY))
                .map_err(|error| waiting(std::io::Error::other(error)))?;
            let mut fds = [
                PollFd::new(channel, PollFlags::IN),
                PollFd::new(control, PollFlags::IN),
            ];
            match poll(&mut fds, Some(&limit)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(waiting(errno.into())),
            }
            while channel.try_next_event().is_some() {}
        }
    }
}

fn waiting(error: std::io::Error) -> Failure {
    system("waiting for completions")(error)
}

/// A number that nobody guesses, from what the standard library seeds its hash tables with.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The key of the datagram queue pairs.
const QKEY: QKey = QKey(0x1111_1111);
/// 67 ms, and 0.64 ms, as encoded.
const TIMEOUT: u8 = 14;
const MIN_RNR_TIMER: u8 = 12;
/// Polls of the completion queue before anything else is looked at.
const TURNS: u32 = 256;
/// How long a sleep lasts at most: the service may be gone.
const LOOK_EVERY: Duration = Duration::from_millis(500);
