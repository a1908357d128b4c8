//! Work requests and completions: from C to the device, and back.
//!
//! Nothing here allocates: a list from C is taken in pieces of [`CHUNK`] requests, with their scatter/gather elements and
//! inline bytes on the stack.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::slice;

use oarlock_device::{Cqe, Qp, Srq};
use oarlock_transport::{
    BindWindow, QpType, RecvWr, RemoteAddress, SendData, SendOp, SendWr, Sge, UdDestination,
};
use oarlock_wire::{LKey, QKey, Qpn, RKey, Srqn};

use super::ah::AddressHandle;
use super::mr::rights_of_window;
use super::mw::Mw;
use crate::abi::*;
use crate::errno::{Refused, Result};

/// What of a request could not be posted: the request, and why.
pub(super) type Bad<W> = (*mut W, Refused);

/// What must be known of a queue pair to read requests for it.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    pub(super) qp_type: QpType,
    pub(super) max_inline_data: u32,
}

/// Posts a list of requests, in order, until one is refused.
///
/// # Safety
/// `list` is null, or a list of requests as ibv_post_send(3) asks for.
pub(super) unsafe fn post_send(
    qp: &Qp,
    reader: Reader,
    list: *mut ibv_send_wr,
) -> std::result::Result<(), Bad<ibv_send_wr>> {
    let mut next = list;
    while !next.is_null() {
        let mut room = Room::new();
        let mut parts = room.parts();
        let mut requests = Few::<_, CHUNK>::new();
        let mut places = Few::<_, CHUNK>::new();
        let mut refused = None;
        while !next.is_null() && !requests.is_full() {
            // SAFETY: the caller's promise.
            let wr = unsafe { &*next };
            // SAFETY: as above.
            match unsafe { reader.read(wr, &mut parts) } {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => break,
                Err(reason) => {
                    refused = Some(reason);
                    break;
                }
            }
            places.push(next);
            next = wr.next;
        }
        let posted = match requests.as_slice() {
            [] => Ok(()),
            [request] => qp.post_send(request).map_err(|error| (0, error)),
            requests => qp.post_send_list(requests),
        };
        posted.map_err(|(i, error)| (places.as_slice()[i], Refused::from(error)))?;
        if let Some(reason) = refused {
            return Err((next, reason));
        }
    }
    Ok(())
}

/// Posts a list of receives, in order, until one is refused, by `post`.
///
/// # Safety
/// `list` is null, or a list of requests as ibv_post_recv(3) asks for.
unsafe fn post_receives(
    list: *mut ibv_recv_wr,
    post: impl Fn(&[RecvWr<'_>]) -> std::result::Result<(), (usize, oarlock_device::Error)>,
) -> std::result::Result<(), Bad<ibv_recv_wr>> {
    let mut next = list;
    while !next.is_null() {
        let mut room = Room::new();
        let mut parts = room.parts();
        let mut requests = Few::<_, CHUNK>::new();
        let mut places = Few::<_, CHUNK>::new();
        let mut refused = None;
        while !next.is_null() && !requests.is_full() {
            // SAFETY: the caller's promise.
            let wr = unsafe { &*next };
            // SAFETY: as above.
            match unsafe { elements(wr.sg_list, wr.num_sge) } {
                Ok(list) => match parts.sges(list) {
                    Some(sges) => requests.push(RecvWr {
                        wr_id: wr.wr_id,
                        sges,
                    }),
                    None => break,
                },
                Err(reason) => {
                    refused = Some(reason);
                    break;
                }
            }
            places.push(next);
            next = wr.next;
        }
        post(requests.as_slice())
            .map_err(|(i, error)| (places.as_slice()[i], Refused::from(error)))?;
        if let Some(reason) = refused {
            return Err((next, reason));
        }
    }
    Ok(())
}

/// Posts a list of receives to a queue pair.
///
/// # Safety
/// As [`post_receives`].
pub(super) unsafe fn post_recv(
    qp: &Qp,
    list: *mut ibv_recv_wr,
) -> std::result::Result<(), Bad<ibv_recv_wr>> {
    // SAFETY: the caller's promise.
    unsafe { post_receives(list, |requests| qp.post_recv_list(requests)) }
}

/// Posts a list of receives to a shared receive queue.
///
/// # Safety
/// As [`post_receives`].
pub(super) unsafe fn post_srq_recv(
    srq: &Srq,
    list: *mut ibv_recv_wr,
) -> std::result::Result<(), Bad<ibv_recv_wr>> {
    // SAFETY: the caller's promise.
    unsafe { post_receives(list, |requests| srq.post_recv_list(requests)) }
}

impl Reader {
    /// The request that C means; `None` if the parts have no room for it.
    ///
    /// # Errors
    /// `EINVAL`: what no queue pair can do.
    ///
    /// # Safety
    /// As [`post_send`].
    unsafe fn read<'a>(
        &self,
        wr: &ibv_send_wr,
        parts: &mut Parts<'a>,
    ) -> Result<Option<SendWr<'a>>> {
        // SAFETY: the caller's promise.
        let op = unsafe { operation(wr)? };
        let flags = Flags::read(wr.send_flags)?;
        let data = if flags.inline && !is_local(&op) {
            // SAFETY: the caller's promise.
            let list = unsafe { elements(wr.sg_list, wr.num_sge)? };
            // SAFETY: as above.
            unsafe { self.inline(list, parts)? }
        } else if is_local(&op) {
            // Neither operation has data: the list means nothing, and many a program leaves it as it was.
            Some(SendData::Sges(&[]))
        } else {
            // SAFETY: the caller's promise.
            parts
                .sges(unsafe { elements(wr.sg_list, wr.num_sge)? })
                .map(SendData::Sges)
        };
        let Some(data) = data else {
            return Ok(None);
        };
        let mut request = SendWr {
            wr_id: wr.wr_id,
            op,
            data,
            ..SendWr::default()
        };
        flags.apply(self.qp_type, &mut request);
        match self.qp_type {
            QpType::Ud => {
                // SAFETY: the member that ibv_post_send(3) gives this type of queue pair.
                let ud = unsafe { wr.wr.ud };
                // SAFETY: the caller's promise.
                request.ud = Some(unsafe { destination(ud.ah, ud.remote_qpn, ud.remote_qkey)? });
            }
            QpType::XrcInitiator if !is_local(&op) => {
                // SAFETY: as for `ud`.
                request.xrc_srqn = Some(srqn(unsafe { wr.qp_type.xrc.remote_srqn })?);
            }
            _ => {}
        }
        Ok(Some(request))
    }

    /// The bytes themselves: where they are, if they are in one piece, else a copy.
    ///
    /// # Safety
    /// The elements name memory of the program by address.
    unsafe fn inline<'a>(
        &self,
        list: &[ibv_sge],
        parts: &mut Parts<'a>,
    ) -> Result<Option<SendData<'a>>> {
        let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
        if total > u64::from(self.max_inline_data) {
            return Err(inline_too_long(total, self.max_inline_data));
        }
        if let [one] = list {
            // SAFETY: the caller's promise.
            let bytes = unsafe { program_bytes(one.addr, one.length as usize) };
            return Ok(Some(SendData::Inline(bytes)));
        }
        // SAFETY: as above.
        let pieces = list
            .iter()
            .map(|sge| unsafe { program_bytes(sge.addr, sge.length as usize) });
        Ok(parts.bytes(pieces, total as usize).map(SendData::Inline))
    }
}

pub(super) fn inline_too_long(given: u64, max: u32) -> Refused {
    Refused::new(
        libc::EINVAL,
        format!("{given} bytes of inline data, at most {max}"),
    )
}

/// Bytes of the program.
///
/// # Safety
/// They are there, and nobody writes them while they are used, which is until the request is posted.
pub(super) unsafe fn program_bytes<'a>(addr: u64, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    let start = std::ptr::with_exposed_provenance(addr as usize);
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(start, len) }
}

/// The flags of a request.
pub(super) struct Flags {
    fence: bool,
    signaled: bool,
    solicited: bool,
    inline: bool,
}

impl Flags {
    /// # Errors
    /// `EINVAL`: checksums of IP packets, which there are none of here, or a bit that has no meaning.
    pub(super) fn read(flags: u32) -> Result<Self> {
        const KNOWN: u32 =
            IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
        if flags & !KNOWN != 0 {
            return Err(Refused::new(
                libc::EINVAL,
                format!("send flags {:#x} are not supported", flags & !KNOWN),
            ));
        }
        let has = |bit| flags & bit != 0;
        Ok(Self {
            fence: has(IBV_SEND_FENCE),
            signaled: has(IBV_SEND_SIGNALED),
            solicited: has(IBV_SEND_SOLICITED),
            inline: has(IBV_SEND_INLINE),
        })
    }

    /// Sets those that have a meaning for the request. Where READs and atomics do not exist there is nothing to wait for,
    /// so a fence is kept by itself; and where no receive completes at the peer no event can be asked for.
    pub(super) fn apply(&self, qp_type: QpType, request: &mut SendWr<'_>) {
        request.signaled = self.signaled;
        request.fence = self.fence && !matches!(qp_type, QpType::Uc | QpType::Ud);
        request.solicited = self.solicited
            && matches!(
                request.op,
                SendOp::Send
                    | SendOp::SendWithImm(_)
                    | SendOp::SendWithInvalidate(_)
                    | SendOp::WriteWithImm(..)
            );
    }
}

/// # Errors
/// `EINVAL`: an operation that there is not here.
///
/// # Safety
/// As [`post_send`].
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp> {
    // SAFETY: every bit pattern is a value; which member holds is what ibv_post_send(3) says of the operation.
    let (number, rdma, atomic) = unsafe { (wr.data.imm_data, wr.wr.rdma, wr.wr.atomic) };
    let remote = |addr, rkey| RemoteAddress {
        addr,
        rkey: RKey(rkey),
    };
    let at = remote(rdma.remote_addr, rdma.rkey);
    let word = remote(atomic.remote_addr, atomic.rkey);
    Ok(match wr.opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendWithImm(u32::from_be(number)),
        IBV_WR_SEND_WITH_INV => SendOp::SendWithInvalidate(RKey(number)),
        IBV_WR_RDMA_WRITE => SendOp::Write(at),
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteWithImm(at, u32::from_be(number)),
        IBV_WR_RDMA_READ => SendOp::Read(at),
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            remote: word,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
            remote: word,
            add: atomic.compare_add,
        },
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate(RKey(number)),
        IBV_WR_BIND_MW => {
            // SAFETY: the member of this operation.
            let bind = unsafe { wr.extra.bind_mw };
            // SAFETY: the caller's promise.
            unsafe { binding(bind.mw, bind.rkey, &bind.bind_info)? }
        }
        other => {
            return Err(Refused::new(
                libc::EINVAL,
                format!("operation {other} does not exist on this device"),
            ));
        }
    })
}

/// A binding of a window by a request.
///
/// # Errors
/// `EINVAL`: no window.
///
/// # Safety
/// `mw` and the region of `info` are null or what C got of this library.
pub(super) unsafe fn binding(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp> {
    if mw.is_null() {
        return Err(Refused::new(libc::EINVAL, "no memory window is given"));
    }
    // Without a region the binding ends one; key 0 is none.
    let region = if info.mr.is_null() {
        0
    } else {
        // SAFETY: the caller's promise.
        unsafe { (*info.mr).lkey }
    };
    Ok(SendOp::BindWindow(BindWindow {
        // SAFETY: the caller's promise.
        window: unsafe { Mw::of(mw) }.inner.rkey(),
        rkey: RKey(rkey),
        region: LKey(region),
        addr: info.addr,
        len: info.length,
        access: rights_of_window(info.mw_access_flags),
    }))
}

/// Where a datagram goes.
///
/// # Errors
/// `EINVAL`: no address handle, or a number beyond 24 bits.
///
/// # Safety
/// `ah` is null or what C got of this library.
pub(super) unsafe fn destination(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<UdDestination> {
    if ah.is_null() {
        return Err(Refused::new(libc::EINVAL, "no address handle is given"));
    }
    let remote_qpn = Qpn::new(qpn).ok_or_else(|| {
        Refused::new(
            libc::EINVAL,
            format!("queue pair number {qpn:#x} has more than 24 bits"),
        )
    })?;
    Ok(UdDestination {
        // SAFETY: the caller's promise.
        av: unsafe { AddressHandle::of(ah) }.vector(),
        remote_qpn,
        remote_qkey: QKey(qkey),
    })
}

/// # Errors
/// `EINVAL`: a number beyond 24 bits.
pub(super) fn srqn(number: u32) -> Result<Srqn> {
    Srqn::new(number).ok_or_else(|| {
        Refused::new(
            libc::EINVAL,
            format!("number {number:#x} of a shared receive queue has more than 24 bits"),
        )
    })
}

pub(super) fn is_local(op: &SendOp) -> bool {
    matches!(op, SendOp::LocalInvalidate(_) | SendOp::BindWindow(_))
}

/// A scatter/gather list of C.
///
/// # Errors
/// `EINVAL`: more elements than any queue takes, or fewer than none.
///
/// # Safety
/// The list has as many elements as is said.
unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise.
        Ok(count @ 1..=MAX_SGE) => Ok(unsafe { slice::from_raw_parts(list, count) }),
        _ => Err(Refused::new(
            libc::EINVAL,
            format!("{count} scatter/gather elements, at most {MAX_SGE}"),
        )),
    }
}

pub(super) fn sge_of(sge: &ibv_sge) -> Sge {
    Sge {
        addr: sge.addr,
        len: sge.length,
        lkey: LKey(sge.lkey),
    }
}

/// A completion as C has it.
pub(super) fn wc_of(cqe: &Cqe) -> ibv_wc {
    let completion = &cqe.completion;
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status.0,
        opcode: completion.opcode.0,
        vendor_err: completion.vendor_err.0,
        byte_len: completion.byte_len,
        data: ibv_wc_data {
            imm_data: number_of(cqe),
        },
        qp_num: cqe.qpn().get(),
        src_qp: completion.src_qp.get(),
        wc_flags: flags_of(cqe),
        pkey_index: completion.pkey_index,
        // Ethernet has no LIDs.
        slid: 0,
        sl: sl_of(cqe),
        dlid_path_bits: 0,
    }
}

/// Of a datagram: how it came. Ethernet has no service levels, and programs that read the header before the data have to know
/// which of the two it is, which mlx5's completions say in this place: bit 3 for UDP, below it 1 for IPv6 and 2 for IPv4.
pub(super) fn sl_of(cqe: &Cqe) -> u8 {
    const UDP: u8 = 1 << 3;
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    let completion = &cqe.completion;
    match (completion.has_grh, completion.is_ipv4) {
        (false, _) => completion.sl,
        (true, false) => UDP | IPV6,
        (true, true) => UDP | IPV4,
    }
}

/// The immediate value, in network order, or the key that was taken away, in the machine's.
pub(super) fn number_of(cqe: &Cqe) -> u32 {
    let completion = &cqe.completion;
    match (completion.imm, completion.invalidated) {
        (Some(imm), _) => imm.to_be(),
        (None, Some(rkey)) => rkey.get(),
        (None, None) => 0,
    }
}

pub(super) fn flags_of(cqe: &Cqe) -> ibv_wc_flags {
    let completion = &cqe.completion;
    let mut flags = 0;
    if completion.has_grh {
        flags |= IBV_WC_GRH;
    }
    if completion.imm.is_some() {
        flags |= IBV_WC_WITH_IMM;
    }
    if completion.invalidated.is_some() {
        flags |= IBV_WC_WITH_INV;
    }
    flags
}

/// A short list on the stack.
pub(super) struct Few<T: Copy, const N: usize> {
    items: [MaybeUninit<T>; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    pub(super) const fn new() -> Self {
        Self {
            items: [const { MaybeUninit::uninit() }; N],
            len: 0,
        }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.len == N
    }

    pub(super) fn push(&mut self, item: T) {
        self.items[self.len].write(item);
        self.len += 1;
    }

    pub(super) fn as_slice(&self) -> &[T] {
        // SAFETY: that many items have been written.
        unsafe { self.items[..self.len].assume_init_ref() }
    }
}

/// Space on the stack for what a chunk of requests points to.
struct Room {
    sges: [MaybeUninit<Sge>; ROOM_SGES],
    bytes: [MaybeUninit<u8>; ROOM_BYTES],
}

/// What is left of it.
struct Parts<'a> {
    sges: &'a mut [MaybeUninit<Sge>],
    bytes: &'a mut [MaybeUninit<u8>],
}

impl Room {
    const fn new() -> Self {
        Self {
            sges: [const { MaybeUninit::uninit() }; ROOM_SGES],
            bytes: [const { MaybeUninit::uninit() }; ROOM_BYTES],
        }
    }

    fn parts(&mut self) -> Parts<'_> {
        Parts {
            sges: &mut self.sges,
            bytes: &mut self.bytes,
        }
    }
}

impl<'a> Parts<'a> {
    /// The elements as the device has them.
    fn sges(&mut self, list: &[ibv_sge]) -> Option<&'a [Sge]> {
        let (mine, rest) = std::mem::take(&mut self.sges).split_at_mut_checked(list.len())?;
        self.sges = rest;
        for (to, from) in mine.iter_mut().zip(list) {
            to.write(sge_of(from));
        }
        // SAFETY: each has been written.
        Some(unsafe { mine.assume_init_ref() })
    }

    /// The pieces, `total` bytes together, in one.
    fn bytes<'p>(
        &mut self,
        pieces: impl Iterator<Item = &'p [u8]>,
        total: usize,
    ) -> Option<&'a [u8]> {
        let (mine, rest) = std::mem::take(&mut self.bytes).split_at_mut_checked(total)?;
        self.bytes = rest;
        let mut filled = 0;
        for piece in pieces {
            mine[filled..][..piece.len()].write_copy_of_slice(piece);
            filled += piece.len();
        }
        debug_assert_eq!(filled, total);
        // SAFETY: the pieces have filled it.
        Some(unsafe { mine.assume_init_ref() })
    }
}

/// Requests that go to the device in one call.
const CHUNK: usize = 16;
/// More elements than any queue of the device takes in one request; the device refuses what is beyond the queue's own limit.
const MAX_SGE: usize = 32;
/// Room for one request with all elements that there can be, and for a chunk of the usual ones.
const ROOM_SGES: usize = 4 * MAX_SGE;
/// Room for the inline data of one request at least: more than the device takes.
const ROOM_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use oarlock_device::DeviceLimits;

    use super::*;

    #[test]
    fn there_is_room_for_the_largest_request() {
        let limits = DeviceLimits::default();
        assert!(limits.max_sge as usize <= MAX_SGE);
        assert!(limits.max_srq_sge as usize <= MAX_SGE);
        assert!(limits.max_inline_data as usize <= ROOM_BYTES);
    }

    #[test]
    fn flags_without_a_meaning_are_left_out_and_unknown_ones_refused() {
        let all = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
        let at = RemoteAddress::default();
        for (qp_type, op, fence, solicited) in [
            (QpType::Rc, SendOp::Send, true, true),
            (QpType::Rc, SendOp::Write(at), true, false),
            (QpType::Rc, SendOp::WriteWithImm(at, 1), true, true),
            (QpType::XrcInitiator, SendOp::Read(at), true, false),
            (QpType::Uc, SendOp::Write(at), false, false),
            (QpType::Ud, SendOp::SendWithImm(1), false, true),
        ] {
            let mut request = SendWr {
                op,
                ..SendWr::default()
            };
            Flags::read(all)
                .expect("known")
                .apply(qp_type, &mut request);
            assert_eq!(
                (request.signaled, request.fence, request.solicited),
                (true, fence, solicited),
                "{op:?} on {qp_type}"
            );
        }
        for bit in [IBV_SEND_IP_CSUM, 1 << 5, 1 << 31] {
            assert_eq!(
                Flags::read(bit).err().map(|e| e.errno.0),
                Some(libc::EINVAL)
            );
        }
    }

    #[test]
    fn a_chunk_ends_where_the_room_does() {
        let mut room = Room::new();
        let mut parts = room.parts();
        let element = ibv_sge {
            addr: 1,
            length: 2,
            lkey: 3,
        };
        let list = [element; MAX_SGE];
        for _ in 0..ROOM_SGES / MAX_SGE {
            let sges = parts.sges(&list).expect("room");
            assert_eq!(sges.len(), MAX_SGE);
            assert_eq!(
                (sges[31].addr, sges[31].len, sges[31].lkey),
                (1, 2, LKey(3))
            );
        }
        assert!(parts.sges(&list).is_none());
        let pieces: [&[u8]; 3] = [b"one", b"", b"two"];
        let bytes = parts.bytes(pieces.into_iter(), 6).expect("room");
        assert_eq!(bytes, b"onetwo");
        assert!(parts.bytes([].into_iter(), ROOM_BYTES).is_none());
    }

    #[test]
    fn lists_of_elements_have_a_length_that_can_be() {
        // SAFETY: none of these lists is read.
        let refused = |count| unsafe { elements(std::ptr::null(), count) }.err();
        assert!(refused(0).is_none());
        for count in [-1, 33, c_int::MAX, c_int::MIN] {
            assert_eq!(refused(count).map(|e| e.errno.0), Some(libc::EINVAL));
        }
    }
}
