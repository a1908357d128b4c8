//! Requests put together call by call: extended queue pairs.
//!
//! A round goes from `wr_start` to `wr_complete` or `wr_abort`, and other threads that begin one wait meanwhile. What a call
//! finds wrong is told by `wr_complete`, and then none of the requests is posted.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::slice;

use oarlock_transport::{QpType, RemoteAddress, SendData, SendOp, SendWr, Sge, UdDestination};
use oarlock_wire::{RKey, Srqn};

use super::qp::Qp;
use super::turn::Turn;
use super::work::{self, Flags};
use crate::abi::*;
use crate::errno::{self, Refused, Result};

/// The rounds of a queue pair.
pub(super) struct Batch {
    turn: Turn,
    /// Belongs to whoever has the turn.
    round: UnsafeCell<Round>,
}

/// The requests of a round. What has been allocated once is used again.
struct Round {
    /// More than can be outstanding are refused at once.
    max: usize,
    requests: Vec<Request>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    /// The first thing that was wrong.
    refused: Option<Refused>,
    /// Empty, for its room.
    posted: Vec<SendWr<'static>>,
}

struct Request {
    wr_id: u64,
    op: SendOp,
    flags: Flags,
    data: Data,
    ud: Option<UdDestination>,
    xrc_srqn: Option<Srqn>,
}

enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Batch {
    pub(super) fn new(max_send_wr: u32) -> Self {
        Self {
            turn: Turn::default(),
            round: UnsafeCell::new(Round {
                max: max_send_wr as usize,
                requests: Vec::new(),
                sges: Vec::new(),
                bytes: Vec::new(),
                refused: None,
                posted: Vec::new(),
            }),
        }
    }
}

impl Round {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.refused = None;
    }

    fn refuse(&mut self, refused: Refused) {
        self.refused.get_or_insert(refused);
    }

    fn begin(&mut self, wr_id: u64, flags: u32, op: Result<SendOp>) {
        if self.requests.len() >= self.max {
            let sentence = format!("more than {} requests in one round", self.max);
            return self.refuse(Refused::new(libc::ENOMEM, sentence));
        }
        match (op, Flags::read(flags)) {
            (Ok(op), Ok(flags)) => self.requests.push(Request {
                wr_id,
                op,
                flags,
                data: Data::Sges(0..0),
                ud: None,
                xrc_srqn: None,
            }),
            (Err(refused), _) | (_, Err(refused)) => self.refuse(refused),
        }
    }

    /// Changes the request that was begun last. After a refusal nothing is to be changed.
    fn change(&mut self, change: impl FnOnce(&mut Request)) {
        if self.refused.is_some() {
            return;
        }
        match self.requests.last_mut() {
            Some(request) => change(request),
            None => self.refuse(Refused::new(libc::EINVAL, "no request has been begun")),
        }
    }

    fn set_sges<'a>(&mut self, list: impl Iterator<Item = &'a ibv_sge>) {
        let start = self.sges.len();
        self.sges.extend(list.map(work::sge_of));
        let range = start..self.sges.len();
        self.change(|request| request.data = Data::Sges(range));
    }

    fn set_inline<'a>(&mut self, max: u32, total: u64, pieces: impl Iterator<Item = &'a [u8]>) {
        if total > u64::from(max) {
            return self.refuse(work::inline_too_long(total, max));
        }
        let start = self.bytes.len();
        for piece in pieces {
            self.bytes.extend_from_slice(piece);
        }
        let range = start..self.bytes.len();
        self.change(|request| request.data = Data::Inline(range));
    }

    /// Posts all requests or none.
    fn post(&mut self, qp: &Qp) -> Result<()> {
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        let mut list: Vec<SendWr<'_>> = std::mem::take(&mut self.posted);
        list.extend(self.requests.iter().map(|request| {
            let mut to = SendWr {
                wr_id: request.wr_id,
                op: request.op,
                data: match &request.data {
                    Data::Sges(range) => SendData::Sges(&self.sges[range.clone()]),
                    Data::Inline(range) => SendData::Inline(&self.bytes[range.clone()]),
                },
                ud: request.ud,
                xrc_srqn: request.xrc_srqn,
                ..SendWr::default()
            };
            request.flags.apply(qp.reader.qp_type, &mut to);
            to
        }));
        let posted = qp.inner.post_send_all(&list);
        list.clear();
        // Empty, so that no reference goes along; the room stays the same, as the two types have one layout.
        self.posted = list
            .into_iter()
            .map(|_| SendWr::<'static>::default())
            .collect();
        posted.map_err(|(_, error)| error.into())
    }
}

/// The functions of a queue pair that was made for rounds. Those for operations that do not exist here are null.
pub(super) fn functions() -> ibv_qp_ex {
    // SAFETY: every field is an integer, a pointer or an optional function, for which zero is a value.
    let mut public: ibv_qp_ex = unsafe { std::mem::zeroed() };
    public.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    public.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    public.wr_bind_mw = Some(wr_bind_mw);
    public.wr_local_inv = Some(wr_local_inv);
    public.wr_rdma_read = Some(wr_rdma_read);
    public.wr_rdma_write = Some(wr_rdma_write);
    public.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    public.wr_send = Some(wr_send);
    public.wr_send_imm = Some(wr_send_imm);
    public.wr_send_inv = Some(wr_send_inv);
    public.wr_set_ud_addr = Some(wr_set_ud_addr);
    public.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    public.wr_set_inline_data = Some(wr_set_inline_data);
    public.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    public.wr_set_sge = Some(wr_set_sge);
    public.wr_set_sge_list = Some(wr_set_sge_list);
    public.wr_start = Some(wr_start);
    public.wr_complete = Some(wr_complete);
    public.wr_abort = Some(wr_abort);
    public
}

/// The operations that a type of queue pair has, as bits of `send_ops_flags`.
pub(super) fn operations(qp_type: QpType) -> u64 {
    const DATAGRAM: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const UNRELIABLE: u64 = DATAGRAM
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW;
    const RELIABLE: u64 = UNRELIABLE
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    match qp_type {
        QpType::Ud => DATAGRAM,
        QpType::Uc => UNRELIABLE,
        QpType::Rc | QpType::XrcInitiator => RELIABLE,
        // A target sends nothing.
        _ => 0,
    }
}

/// The queue pair and its rounds.
///
/// # Safety
/// `qp` is what `ibv_qp_to_qp_ex` gave.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> (&'a Qp, &'a Batch) {
    // SAFETY: the caller's promise.
    let pair = unsafe { Qp::of(qp.cast()) };
    let batch = pair.batch.as_ref().expect("it was made for rounds");
    (pair, batch)
}

/// The round that this thread has begun.
///
/// # Safety
/// As [`batch`], between `wr_start` and the end of the round.
unsafe fn round<'a>(qp: *mut ibv_qp_ex) -> &'a mut Round {
    // SAFETY: the caller's promise: this thread has the turn, and no other reference of it lives between two calls.
    unsafe { &mut *batch(qp).1.round.get() }
}

/// Begins a request, with the id and flags that the program has put into the public part.
///
/// # Safety
/// As [`round`].
unsafe fn begin(qp: *mut ibv_qp_ex, op: Result<SendOp>) {
    // SAFETY: the caller's promise.
    unsafe { round(qp).begin((*qp).wr_id, (*qp).wr_flags, op) };
}

const fn at(addr: u64, rkey: u32) -> RemoteAddress {
    RemoteAddress {
        addr,
        rkey: RKey(rkey),
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the program's promise.
    let (pair, batch) = unsafe { batch(qp) };
    // A forked child's turn may never come.
    let in_process = pair.birth.check();
    if in_process.is_ok() {
        batch.turn.take();
    }
    // SAFETY: this thread has the turn; a forked child has but one thread that can be here.
    let round = unsafe { &mut *batch.round.get() };
    round.clear();
    if let Err(refused) = in_process {
        round.refuse(refused);
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program's promise.
    let posted = unsafe { round(qp).post(batch(qp).0) };
    // SAFETY: as above.
    unsafe { wr_abort(qp) };
    errno::positive("ibv_wr_complete", posted)
}

/// Ends the round without posting anything.
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program's promise.
    let (pair, batch) = unsafe { batch(qp) };
    // SAFETY: as above.
    unsafe { round(qp).clear() };
    if pair.birth.check().is_ok() {
        batch.turn.give_back();
    }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the program's promise.
    unsafe { begin(qp, Ok(SendOp::Send)) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    // SAFETY: the program's promise.
    unsafe { begin(qp, Ok(SendOp::SendWithImm(u32::from_be(imm_data)))) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: the program's promise.
    unsafe { begin(qp, Ok(SendOp::SendWithInvalidate(RKey(invalidate_rkey)))) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: the program's promise.
    unsafe { begin(qp, Ok(SendOp::Write(at(remote_addr, rkey)))) };
}

unsafe extern "C" fn wr_rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    imm_data: u32,
) {
    let op = SendOp::WriteWithImm(at(remote_addr, rkey), u32::from_be(imm_data));
    // SAFETY: the program's promise.
    unsafe { begin(qp, Ok(op)) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: the program's promise.
    unsafe { begin(qp, Ok(SendOp::Read(at(remote_addr, rkey)))) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let op = SendOp::CompareSwap {
        remote: at(remote_addr, rkey),
        compare,
        swap,
    };
    // SAFETY: the program's promise.
    unsafe { begin(qp, Ok(op)) };
}

unsafe extern "C" fn wr_atomic_fetch_add(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    add: u64,
) {
    let op = SendOp::FetchAdd {
        remote: at(remote_addr, rkey),
        add,
    };
    // SAFETY: the program's promise.
    unsafe { begin(qp, Ok(op)) };
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: the program's promise.
    unsafe { begin(qp, Ok(SendOp::LocalInvalidate(RKey(invalidate_rkey)))) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: the program's promise.
    unsafe { begin(qp, work::binding(mw, rkey, &*bind_info)) };
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the program's promise.
    let (round, to) = unsafe { (round(qp), work::destination(ah, remote_qpn, remote_qkey)) };
    match to {
        Ok(to) => round.change(|request| request.ud = Some(to)),
        Err(refused) => round.refuse(refused),
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the program's promise.
    let round = unsafe { round(qp) };
    match work::srqn(remote_srqn) {
        Ok(srqn) => round.change(|request| request.xrc_srqn = Some(srqn)),
        Err(refused) => round.refuse(refused),
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let one = ibv_sge { addr, length, lkey };
    // SAFETY: the program's promise.
    unsafe { round(qp) }.set_sges([one].iter());
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: the program's promise.
    let (pair, round) = unsafe { (batch(qp).0, round(qp)) };
    let max = pair.cap.max_send_sge;
    if num_sge > max as usize {
        let sentence = format!("{num_sge} scatter/gather elements, at most {max}");
        return round.refuse(Refused::new(libc::EINVAL, sentence));
    }
    let list = if num_sge == 0 {
        &[]
    } else {
        // SAFETY: the program's promise.
        unsafe { slice::from_raw_parts(sg_list, num_sge) }
    };
    round.set_sges(list.iter());
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buf = ibv_data_buf { addr, length };
    // SAFETY: the program's promise.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buf) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: the program's promise.
    let (pair, round) = unsafe { (batch(qp).0, round(qp)) };
    let list = if num_buf == 0 {
        &[]
    } else {
        // SAFETY: the program's promise.
        unsafe { slice::from_raw_parts(buf_list, num_buf) }
    };
    let total = list
        .iter()
        .fold(0_u64, |sum, buf| sum.saturating_add(buf.length as u64));
    let pieces = list.iter().map(|buf| {
        let addr = buf.addr.expose_provenance() as u64;
        // SAFETY: the program's promise; looked at only if the total is within the limit.
        unsafe { work::program_bytes(addr, buf.length) }
    });
    round.set_inline(pair.cap.max_inline_data, total, pieces);
}
