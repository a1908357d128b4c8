//! Polling completions one by one: extended completion queues.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::time::UNIX_EPOCH;

use oarlock_device::Cqe;

use super::context::Context;
use super::cq::{Cq, Init};
use super::turn::Turn;
use super::work;
use crate::abi::*;
use crate::errno::{self, Refused, Result};

/// A round of polling, from start to end: other threads that begin one wait meanwhile.
#[derive(Default)]
pub(super) struct Polling {
    turn: Turn,
    /// The completion that is being read; belongs to whoever has the turn.
    current: UnsafeCell<Option<Cqe>>,
}

/// The functions of every queue. Those for what completions here do not have (VLAN tags, flow tags, tag matching) are null,
/// and a queue that is to have them is refused.
pub(super) fn functions() -> ibv_cq_ex {
    // SAFETY: every field is an integer, a pointer or an optional function, for which zero is a value.
    let mut public: ibv_cq_ex = unsafe { std::mem::zeroed() };
    public.start_poll = Some(start_poll);
    public.next_poll = Some(next_poll);
    public.end_poll = Some(end_poll);
    public.read_opcode = Some(read_opcode);
    public.read_vendor_err = Some(read_vendor_err);
    public.read_byte_len = Some(read_byte_len);
    public.read_imm_data = Some(read_imm_data);
    public.read_qp_num = Some(read_qp_num);
    public.read_src_qp = Some(read_src_qp);
    public.read_wc_flags = Some(read_wc_flags);
    public.read_slid = Some(read_slid);
    public.read_sl = Some(read_sl);
    public.read_dlid_path_bits = Some(read_dlid_path_bits);
    public.read_completion_ts = Some(read_completion_ts);
    public.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    public
}

/// `ibv_create_cq_ex(3)`.
pub(super) unsafe extern "C" fn create(
    context: *mut ibv_context,
    init_attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the program's promise.
    let (context, attr) = unsafe { (Context::share(context), &*init_attr) };
    let created = check(attr).and_then(|()| {
        let init = Init {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
        };
        // SAFETY: the program's promise.
        unsafe { Cq::create(context, &init) }
    });
    errno::object("ibv_create_cq_ex", created)
}

/// What may be asked for. A queue of one thread only is made like any other, and so is one in a parent domain, whose
/// allocator a library need not use.
fn check(attr: &ibv_cq_init_attr_ex) -> Result<()> {
    let not_supported = |what: &str, bits: u64| {
        Err(Refused::new(
            libc::EOPNOTSUPP,
            format!("{what} {bits:#x} of a completion queue"),
        ))
    };
    let extra = attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD);
    if extra != 0 {
        return not_supported("attributes", extra.into());
    }
    let extra = attr.wc_flags & !WC_FLAGS;
    if extra != 0 {
        return not_supported("fields", extra);
    }
    let has_flags = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
    let extra = attr.flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    if has_flags && extra != 0 {
        return not_supported("flags", extra.into());
    }
    Ok(())
}

/// The fields that completions here have.
const WC_FLAGS: u64 = (IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// # Safety
/// `cq` is what C got of this library.
unsafe fn queue<'a>(cq: *mut ibv_cq_ex) -> &'a Cq {
    // SAFETY: the caller's promise.
    unsafe { Cq::of(cq.cast()) }
}

/// The completion that is being read.
///
/// # Safety
/// As [`queue`], in a round of polling.
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Cqe {
    // SAFETY: the caller's promise: this thread has the turn.
    let current = unsafe { &*queue(cq).polling.current.get() };
    current
        .as_ref()
        .expect("read between start and end of polling")
}

/// Makes `cqe` the one that is being read.
///
/// # Safety
/// This thread has the turn.
unsafe fn show(cq: &Cq, cqe: Cqe) {
    // SAFETY: the two fields are this library's to change, and the completion belongs to who has the turn.
    unsafe {
        (*cq.public()).wr_id = cqe.completion.wr_id;
        (*cq.public()).status = cqe.completion.status.0;
        *cq.polling.current.get() = Some(cqe);
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program's promise.
    let (cq, comp_mask) = unsafe { (queue(cq), attr.as_ref().map_or(0, |attr| attr.comp_mask)) };
    if comp_mask != 0 {
        return libc::EINVAL;
    }
    if let Err(refused) = cq.check_process() {
        return refused.errno.0;
    }
    cq.polling.turn.take();
    let error = match cq.inner.poll_one() {
        Ok(Some(cqe)) => {
            // SAFETY: the turn has just been taken.
            unsafe { show(cq, cqe) };
            return 0;
        }
        Ok(None) => libc::ENOENT,
        Err(error) => Refused::from(error).errno.0,
    };
    cq.polling.turn.give_back();
    error
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program's promise.
    let cq = unsafe { queue(cq) };
    match cq.inner.take_one() {
        Some(cqe) => {
            // SAFETY: the program has begun a round.
            unsafe { show(cq, cqe) };
            0
        }
        None => libc::ENOENT,
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program's promise.
    let polling = unsafe { &queue(cq).polling };
    // SAFETY: this thread has the turn.
    drop(unsafe { (*polling.current.get()).take() });
    polling.turn.give_back();
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: the program's promise.
    unsafe { current(cq) }.completion.opcode.0
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program's promise.
    unsafe { current(cq) }.completion.vendor_err.0
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program's promise.
    unsafe { current(cq) }.completion.byte_len
}

/// Also the key that was taken away.
unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program's promise.
    work::number_of(unsafe { current(cq) })
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program's promise.
    unsafe { current(cq) }.qpn().get()
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program's promise.
    unsafe { current(cq) }.completion.src_qp.get()
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> ibv_wc_flags {
    // SAFETY: the program's promise.
    work::flags_of(unsafe { current(cq) })
}

/// Ethernet has no LIDs.
unsafe extern "C" fn read_slid(_: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the program's promise.
    work::sl_of(unsafe { current(cq) })
}

/// Ethernet has no LIDs.
unsafe extern "C" fn read_dlid_path_bits(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// On the device's clock, whose unit is the nanosecond.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program's promise.
    unsafe { current(cq) }.timestamp().as_nanos()
}

/// In nanoseconds since 1970.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program's promise.
    let (queue, cqe) = unsafe { (queue(cq), current(cq)) };
    let wall = queue.context.device.wall_clock(cqe.timestamp());
    let since = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
