//! What a device and its port say of themselves.

use std::ffi::{c_char, c_int};
use std::ptr;

use oarlock_device::{AtomicCapability, DeviceInfo};
use oarlock_transport::MAX_MESSAGE_LEN;
use oarlock_wire::Gid;

use super::context::Context;
use super::speed::{self, Speed};
use crate::abi::*;
use crate::errno::{self, Refused, Result};

/// What `ibv_query_device` says.
fn device_attr(info: &DeviceInfo) -> ibv_device_attr {
    let limits = &info.limits;
    // SAFETY: every field is an integer, for which zero is a value: what the device does not have.
    let none: ibv_device_attr = unsafe { std::mem::zeroed() };
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(FIRMWARE.bytes()) {
        *to = from as c_char;
    }
    let guid = info.guid.get().to_be();
    ibv_device_attr {
        fw_ver,
        node_guid: guid,
        sys_image_guid: guid,
        vendor_id: NO_VENDOR,
        max_mr_size: limits.max_mr_size,
        page_size_cap: PAGE_SIZES,
        max_qp: int(limits.max_qp),
        max_qp_wr: int(limits.max_qp_wr),
        device_cap_flags: limits.capabilities.bits(),
        max_sge: int(limits.max_sge),
        max_sge_rd: int(limits.max_sge),
        max_cq: int(limits.max_cq),
        max_cqe: int(limits.max_cqe),
        max_mr: int(limits.max_mr),
        max_pd: int(limits.max_pd),
        max_qp_rd_atom: limits.max_qp_rd_atom.into(),
        max_res_rd_atom: int(limits.max_res_rd_atom()),
        max_qp_init_rd_atom: limits.max_qp_init_rd_atom.into(),
        atomic_cap: match limits.atomic {
            AtomicCapability::None => IBV_ATOMIC_NONE,
            AtomicCapability::Device => IBV_ATOMIC_HCA,
            AtomicCapability::Global => IBV_ATOMIC_GLOB,
        },
        max_mw: int(limits.max_mw),
        max_mcast_grp: int(limits.max_mcast_grp),
        max_mcast_qp_attach: int(limits.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(limits.max_total_mcast_qp_attach()),
        max_ah: int(limits.max_ah),
        max_srq: int(limits.max_srq),
        max_srq_wr: int(limits.max_srq_wr),
        max_srq_sge: int(limits.max_srq_sge),
        max_pkeys: limits.max_pkeys,
        local_ca_ack_delay: limits.local_ca_ack_delay.get(),
        phys_port_cnt: 1,
        ..none
    }
}

/// What `ibv_query_device_ex` says.
fn device_attr_ex(info: &DeviceInfo) -> ibv_device_attr_ex {
    // SAFETY: every field is an integer, for which zero is a value: what the device does not have.
    let none: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    let two_sided = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let one_sided = IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    ibv_device_attr_ex {
        orig_attr: device_attr(info),
        odp_caps: ibv_odp_caps {
            general_caps: IBV_ODP_SUPPORT.into(),
            per_transport_caps: ibv_odp_per_transport_caps {
                rc_odp_caps: two_sided | one_sided,
                uc_odp_caps: two_sided | IBV_ODP_SUPPORT_WRITE,
                ud_odp_caps: two_sided,
            },
        },
        xrc_odp_caps: two_sided | one_sided,
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: CLOCK_KHZ,
        device_cap_flags_ex: info.limits.capabilities.bits().into(),
        cq_mod_caps: ibv_cq_moderation_caps {
            max_cq_count: u16::MAX,
            max_cq_period: u16::MAX,
        },
        phys_port_cnt_ex: 1,
        ..none
    }
}

/// `ibv_query_device`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { attr.write(device_attr(Context::of(context).device.device())) };
    0
}

/// `ibv_query_device_ex`: `attr_size` says which release's structure is meant.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let asks_more = !input.is_null() && unsafe { (*input).comp_mask } != 0;
    let answer = if asks_more || attr_size < size_of::<ibv_device_attr>() {
        Err(invalid("a question of a later version, or no room"))
    } else {
        // SAFETY: the caller's promise.
        let device = &unsafe { Context::of(context) }.device;
        let full = device_attr_ex(device.device());
        // SAFETY: the caller's promise: there is room for as much as it says.
        unsafe { give(&full, attr, attr_size) };
        Ok(())
    };
    errno::positive("ibv_query_device_ex", answer)
}

/// Writes as much of `full` as the caller's release knows of, and zeros for what only that knows.
///
/// # Safety
/// `to` has room for `len` bytes.
unsafe fn give<T: Copy>(full: &T, to: *mut T, len: usize) {
    let known = len.min(size_of::<T>());
    // SAFETY: the caller's promise, and no more than there is of `full`.
    unsafe {
        to.cast::<u8>().write_bytes(0, len);
        ptr::copy_nonoverlapping(ptr::from_ref(full).cast::<u8>(), to.cast(), known);
    }
}

/// `ibv_query_rt_values_ex`: the device's clock counts nanoseconds.
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller's promise.
    let (context, asked) = unsafe { (Context::of(context), (*values).comp_mask) };
    if asked & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        let refused = invalid(format!("comp_mask {asked:#x} has bits of a later version"));
        return errno::positive("ibv_query_rt_values_ex", Err(refused));
    }
    if asked & IBV_VALUES_MASK_RAW_CLOCK != 0 {
        let now = context.device.now().as_nanos();
        // As the timestamps of completions: a plain count, not split at the second.
        let raw_clock = libc::timespec {
            tv_sec: 0,
            tv_nsec: now.cast_signed(),
        };
        // SAFETY: the caller's promise.
        unsafe { (*values).raw_clock = raw_clock };
    }
    0
}

/// What `ibv_query_port` says, with the speed of the interface.
fn port_attr(context: &Context, port_num: u8) -> Result<(ibv_port_attr, Speed)> {
    let info = context.device.device();
    check_port(context, port_num.into())?;
    context.birth.check()?;
    let is_active = context.device.is_port_active();
    let speed = speed::of(info.ifindex);
    let statistics = context.device.statistics();
    let counter = |name: &str| {
        let found = statistics.iter().find(|(known, _)| *known == name);
        found.map_or(0, |(_, count)| u32::try_from(*count).unwrap_or(u32::MAX))
    };
    let attr = ibv_port_attr {
        state: if is_active {
            IBV_PORT_ACTIVE
        } else {
            IBV_PORT_DOWN
        },
        max_mtu: IBV_MTU_4096,
        active_mtu: info.max_path_mtu().0.into(),
        gid_tbl_len: GID_TABLE_LEN as c_int,
        port_cap_flags: PORT_CAPABILITIES,
        max_msg_sz: MAX_MESSAGE_LEN,
        bad_pkey_cntr: counter("bad_pkey_cntr"),
        qkey_viol_cntr: counter("qkey_viol_cntr"),
        pkey_tbl_len: info.limits.max_pkeys,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: speed.width,
        active_speed: speed.lane,
        phys_state: if is_active { LINK_UP } else { DISABLED },
        link_layer: IBV_LINK_LAYER_ETHERNET as u8,
        flags: GRH_REQUIRED,
        port_cap_flags2: 0,
    };
    Ok((attr, speed))
}

/// `ibv_query_port` of programs that were built with a header of before release 25: the structure ends with `flags`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { query_port(context, port_num, attr.cast(), OLD_PORT_ATTR) }
}

/// What the macro `ibv_query_port` calls: `len` says which release's structure is meant.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let asked = port_attr(unsafe { Context::of(context) }, port_num);
    let told = asked.map(|(full, _)| {
        // SAFETY: the caller's promise: there is room for as much as it says.
        unsafe { give(&full, attr, len) };
    });
    errno::positive("ibv_query_port", told)
}

/// `ibv_query_port_speed`: in units of 100 Mb/s.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port_num: u32,
    port_speed: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let context = unsafe { Context::of(context) };
    let told = check_port(context, port_num).map(|()| {
        let speed = speed::of(context.device.device().ifindex);
        // SAFETY: the caller's promise.
        unsafe { port_speed.write(speed.hundreds()) };
    });
    errno::positive("ibv_query_port_speed", told)
}

/// `ibv_query_gid`: zero for an index that has no address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the caller's promise.
    let found = entry(unsafe { Context::of(context) }, port_num.into(), index);
    let told = found.map(|entry| {
        let raw = entry.map_or([0; 16], |entry| entry.0);
        // SAFETY: the caller's promise. The union may be at any address that its bytes may be at.
        unsafe { gid.write_unaligned(ibv_gid { raw }) };
    });
    errno::minus_one("ibv_query_gid", told)
}

/// `ibv_query_gid_type`, which tools of rdma-core call: 1 for RoCEv2 in the numbers of sysfs, 0 for an index that has no
/// address; -1 with `errno` beyond the table.
///
/// # Safety
/// As [`Context::of`]; `gid_type` has room.
pub(crate) unsafe fn gid_type_of_sysfs(
    context: *mut ibv_context,
    port_num: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    let index = index.try_into().unwrap_or(c_int::MAX);
    // SAFETY: the caller's promise.
    let found = entry(unsafe { Context::of(context) }, port_num.into(), index);
    let told = found.map(|entry| {
        // SAFETY: the caller's promise.
        unsafe { gid_type.write(entry.is_some().into()) };
    });
    errno::minus_one("ibv_query_gid_type", told)
}

/// The address at an index of the table; `None` if there is none.
fn entry(context: &Context, port_num: u32, index: c_int) -> Result<Option<Gid>> {
    check_port(context, port_num)?;
    let index = usize::try_from(index).ok();
    let index = index
        .filter(|index| *index < GID_TABLE_LEN)
        .ok_or_else(|| {
            invalid(format!(
                "the table of addresses has indices 0 to {}",
                GID_TABLE_LEN - 1
            ))
        })?;
    Ok(context.device.gids().get(index).copied())
}

/// `ibv_query_gid_ex`: `ENODATA` for an index that has no address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let context = unsafe { Context::of(context) };
    let index = gid_index.try_into().unwrap_or(c_int::MAX);
    let told = check_flags(flags, entry_size)
        .and_then(|()| self::entry(context, port_num, index))
        .and_then(|gid| {
            gid.ok_or_else(|| Refused::new(libc::ENODATA, format!("no address has index {index}")))
        })
        .map(|gid| {
            let full = gid_entry(context, gid, gid_index);
            // SAFETY: the caller's promise: there is room for as much as it says.
            unsafe { give(&full, entry, entry_size) };
        });
    errno::positive("ibv_query_gid_ex", told)
}

/// `ibv_query_gid_table`: how many entries there are, or a negative error number: `EINVAL` if there are more than fit.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    // SAFETY: the caller's promise.
    let context = unsafe { Context::of(context) };
    let gids = context.device.gids();
    let count = gids.len().min(GID_TABLE_LEN);
    let told = check_flags(flags, entry_size).and_then(|()| {
        if count > max_entries {
            return Err(invalid(format!(
                "{count} entries do not fit into {max_entries}"
            )));
        }
        for (index, gid) in gids.iter().take(count).enumerate() {
            let full = gid_entry(context, *gid, index as u32);
            // SAFETY: the caller's promise: there is room for so many of that size.
            unsafe { give(&full, entries.byte_add(index * entry_size), entry_size) };
        }
        Ok(())
    });
    match errno::positive("ibv_query_gid_table", told) {
        0 => count as isize,
        errno => -(errno as isize),
    }
}

fn check_flags(flags: u32, entry_size: usize) -> Result<()> {
    if flags != 0 || entry_size == 0 {
        return Err(invalid("flags of a later version, or no room"));
    }
    Ok(())
}

fn gid_entry(context: &Context, gid: Gid, gid_index: u32) -> ibv_gid_entry {
    let info = context.device.device();
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.0 },
        gid_index,
        port_num: info.port_num.into(),
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: info.ifindex,
    }
}

/// `ibv_query_pkey`: a RoCE port has one partition key, the default one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the caller's promise.
    let context = unsafe { Context::of(context) };
    let told = check_pkey_port(context, port_num).and_then(|()| {
        if index != 0 {
            return Err(absent(format!(
                "no partition key has index {index}: the port has one"
            )));
        }
        // SAFETY: the caller's promise.
        unsafe { pkey.write(DEFAULT_PKEY.to_be()) };
        Ok(())
    });
    errno::minus_one("ibv_query_pkey", told)
}

/// `ibv_get_pkey_index`: the index of a partition key (in the order of the network), or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port_num: u8,
    pkey: u16,
) -> c_int {
    // SAFETY: the caller's promise.
    let context = unsafe { Context::of(context) };
    let found = check_pkey_port(context, port_num).and_then(|()| {
        if u16::from_be(pkey) == DEFAULT_PKEY {
            return Ok(());
        }
        let given = u16::from_be(pkey);
        Err(absent(format!(
            "the port has no partition key {given:#06x}"
        )))
    });
    // The only one is at index 0.
    errno::minus_one("ibv_get_pkey_index", found)
}

/// Partition keys are files of sysfs: what is not there is `ENOENT`.
fn absent(sentence: String) -> Refused {
    Refused::new(libc::ENOENT, sentence)
}

fn check_pkey_port(context: &Context, port_num: u8) -> Result<()> {
    check_port(context, port_num.into()).map_err(|refused| absent(refused.to_string()))
}

fn check_port(context: &Context, port_num: u32) -> Result<()> {
    if port_num == u32::from(context.device.device().port_num) {
        return Ok(());
    }
    Err(invalid(format!("the device has no port {port_num}")))
}

fn invalid(sentence: impl Into<String>) -> Refused {
    Refused::new(libc::EINVAL, sentence)
}

/// A limit as C can be told.
fn int(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

/// Length of the table of addresses. An interface may have any number of them; an address vector names one by 8 bits.
pub(super) const GID_TABLE_LEN: usize = 256;

/// What stands for the firmware's version.
pub(super) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// No manufacturer's number, which Linux soft RoCE shows, too. Programs take 0 for a device that could not be asked.
const NO_VENDOR: u32 = 0x00ff_ffff;

/// One bit for each size of page that memory may have: all from 4 KiB on, since regions are of bytes.
const PAGE_SIZES: u64 = 0xffff_f000;

/// The device's clock counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// `IBV_PORT_CM_SUP`, and that addresses are those of IP.
pub(super) const PORT_CAPABILITIES: u32 = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;

/// `IBV_QPF_GRH_REQUIRED` of `infiniband/verbs.h`.
const GRH_REQUIRED: u8 = 1;

/// Physical states of a port (IBA Vol. 1 ch. 14, PortInfo: PortPhysicalState).
const DISABLED: u8 = 3;
const LINK_UP: u8 = 5;

/// IBA Vol. 1 ch. 10: the default partition, full member.
pub(super) const DEFAULT_PKEY: u16 = 0xffff;

/// Up to `flags`, as before release 25.
const OLD_PORT_ATTR: usize = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
