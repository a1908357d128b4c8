use std::ffi::CStr;
use std::mem::{self, MaybeUninit};
use std::ptr;

use super::{Opened, last};
use crate::abi::*;
use crate::verbs::context::{ibv_close_device, ibv_open_device};
use crate::verbs::device::*;
use crate::verbs::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::verbs::query::*;

/// The table before a context, as the headers reach it.
fn table(context: *mut ibv_context) -> verbs_context {
    let offset = mem::offset_of!(verbs_context, context);
    // SAFETY: every context of this library has one.
    unsafe { *context.byte_sub(offset).cast::<verbs_context>() }
}

#[test]
fn a_device_keeps_its_address_and_is_told_by_name_guid_and_number() {
    let mut count = -1;
    // SAFETY: lists of this library.
    unsafe {
        let (first, second) = (
            ibv_get_device_list(&raw mut count),
            ibv_get_device_list(ptr::null_mut()),
        );
        assert!(count > 0);
        for index in 0..count as usize {
            let device = *first.add(index);
            assert_eq!(device, *second.add(index));
            let name = CStr::from_ptr(ibv_get_device_name(device))
                .to_str()
                .expect("ASCII");
            assert!(name.starts_with("soft_"), "{name}");
            assert_ne!(ibv_get_device_guid(device), 0);
            let number = ibv_get_device_index(device);
            let verbs = CStr::from_ptr((&raw const (*device).dev_name).cast());
            assert_eq!(verbs.to_str().expect("ASCII"), format!("uverbs{number}"));
            let path = CStr::from_ptr((&raw const (*device).ibdev_path).cast());
            assert!(
                path.to_str()
                    .expect("ASCII")
                    .ends_with(&format!("/class/infiniband/{name}"))
            );
            assert_eq!((*device).node_type, IBV_NODE_CA);
        }
        assert!(
            (*first.add(count as usize)).is_null(),
            "the end of the list"
        );
        ibv_free_device_list(first);
        ibv_free_device_list(second);
    }
}

#[test]
fn a_context_is_extended_and_what_is_not_there_is_null() {
    let opened = Opened::new();
    let table = table(opened.context);
    assert_eq!(table.sz, size_of::<verbs_context>());
    let public = &table.context;
    assert_eq!(public.abi_compat.addr(), usize::MAX);
    assert!(public.async_fd >= 0);
    assert_eq!(public.num_comp_vectors, 1);
    assert!(public.ops.post_send.is_some() && public.ops.post_recv.is_some());
    assert!(public.ops.poll_cq.is_some() && public.ops.req_notify_cq.is_some());
    assert!(table.ibv_create_flow.is_none() && table.alloc_dm.is_none());
    assert!(table.create_wq.is_none() && table.create_counters.is_none());
}

#[test]
fn closing_a_context_leaves_its_objects_whole() {
    // SAFETY: objects of this library, each freed once.
    unsafe {
        let list = ibv_get_device_list(ptr::null_mut());
        let context = ibv_open_device(*list);
        ibv_free_device_list(list);
        let pd = ibv_alloc_pd(context);
        assert_eq!(ibv_close_device(context), 0);
        assert_eq!((*pd).context, context);
        let mut attr = MaybeUninit::<ibv_device_attr>::uninit();
        assert_eq!(ibv_query_device((*pd).context, attr.as_mut_ptr()), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
}

#[test]
fn every_release_gets_as_much_as_its_structure_holds() {
    let opened = Opened::new();
    let table = table(opened.context);
    let ask = table.query_device_ex.expect("there is one");
    let mut room = [0xaa_u8; size_of::<ibv_device_attr_ex>() + 24];
    for len in [
        size_of::<ibv_device_attr>(),
        size_of::<ibv_device_attr_ex>() - 8,
        room.len() - 8,
    ] {
        room.fill(0xaa);
        // SAFETY: there is room for `len` bytes; nothing is read through the pointer.
        let answer = unsafe { ask(opened.context, ptr::null(), room.as_mut_ptr().cast(), len) };
        assert_eq!(answer, 0);
        assert!(
            room[len..].iter().all(|byte| *byte == 0xaa),
            "written beyond {len}"
        );
        if len > size_of::<ibv_device_attr_ex>() {
            assert!(
                room[size_of::<ibv_device_attr_ex>()..len]
                    .iter()
                    .all(|byte| *byte == 0)
            );
        }
    }
    // SAFETY: refused before anything is written.
    unsafe {
        assert_eq!(
            ask(opened.context, ptr::null(), room.as_mut_ptr().cast(), 100),
            libc::EINVAL
        );
        let input = ibv_query_device_ex_input { comp_mask: 1 };
        let answer = ask(
            opened.context,
            &raw const input,
            room.as_mut_ptr().cast(),
            400,
        );
        assert_eq!(answer, libc::EINVAL);
    }
}

#[test]
fn a_port_is_told_in_both_lengths() {
    let opened = Opened::new();
    let table = table(opened.context);
    let ask = table.query_port.expect("there is one");
    let mut attr = MaybeUninit::<ibv_port_attr>::uninit();
    // SAFETY: there is room for the structure.
    let attr = unsafe {
        assert_eq!(
            ask(
                opened.context,
                1,
                attr.as_mut_ptr(),
                size_of::<ibv_port_attr>()
            ),
            0
        );
        attr.assume_init()
    };
    assert_eq!(attr.state, IBV_PORT_ACTIVE);
    assert_eq!(u32::from(attr.link_layer), IBV_LINK_LAYER_ETHERNET);
    assert_eq!(
        (attr.gid_tbl_len, attr.pkey_tbl_len, attr.flags),
        (256, 1, 1)
    );
    let mut old = [0xaa_u8; size_of::<ibv_port_attr>()];
    // SAFETY: there is room for the old structure, and more.
    unsafe {
        assert_eq!(
            ibv_query_port(opened.context, 1, old.as_mut_ptr().cast()),
            0
        );
    }
    assert_eq!(
        old[48..],
        [0xaa; 4],
        "what the old structure has not is not written"
    );
    assert_eq!(old[46], IBV_LINK_LAYER_ETHERNET as u8);
    for port in [0, 2] {
        // SAFETY: refused.
        unsafe {
            assert_eq!(
                ibv_query_port(opened.context, port, old.as_mut_ptr().cast()),
                libc::EINVAL
            );
        }
    }
    let mut speed = 0;
    // SAFETY: there is room.
    unsafe {
        assert_eq!(ibv_query_port_speed(opened.context, 1, &raw mut speed), 0);
        assert!(speed >= 25, "{speed}");
        assert_eq!(
            ibv_query_port_speed(opened.context, 2, &raw mut speed),
            libc::EINVAL
        );
    }
}

#[test]
fn addresses_are_told_by_index_and_as_a_table() {
    let opened = Opened::new();
    // SAFETY: objects of this library, and room for what is asked.
    unsafe {
        let mut gid = ibv_gid { raw: [0xaa; 16] };
        assert_eq!(ibv_query_gid(opened.context, 1, 0, &raw mut gid), 0);
        assert_eq!(
            gid.raw,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]
        );
        assert_eq!(ibv_query_gid(opened.context, 1, 255, &raw mut gid), 0);
        assert_eq!(gid.raw, [0; 16], "an index without an address");
        for index in [-1, 256] {
            assert_eq!(ibv_query_gid(opened.context, 1, index, &raw mut gid), -1);
            assert_eq!(last(), libc::EINVAL);
        }
        assert_eq!(ibv_query_gid(opened.context, 2, 0, &raw mut gid), -1);

        let mut entries = [MaybeUninit::<ibv_gid_entry>::uninit(); 8];
        let size = size_of::<ibv_gid_entry>();
        let start = entries.as_mut_ptr().cast::<ibv_gid_entry>();
        let count = _ibv_query_gid_table(opened.context, start, 8, 0, size);
        assert!(count >= 2, "{count}");
        let last_one = *start.add(count as usize - 1);
        assert_eq!(last_one.gid_index as isize, count - 1);
        assert_eq!(
            (last_one.gid_type, last_one.port_num),
            (IBV_GID_TYPE_ROCE_V2, 1)
        );
        assert_eq!(
            _ibv_query_gid_table(opened.context, start, 1, 0, size),
            -libc::EINVAL as isize
        );
        assert_eq!(
            _ibv_query_gid_table(opened.context, start, 8, 1, size),
            -libc::EINVAL as isize
        );

        let mut one = MaybeUninit::<ibv_gid_entry>::uninit();
        let place = one.as_mut_ptr();
        assert_eq!(_ibv_query_gid_ex(opened.context, 1, 1, place, 0, size), 0);
        assert_eq!(
            (*place).gid.raw,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
        );
        assert_eq!(
            _ibv_query_gid_ex(opened.context, 1, 200, place, 0, size),
            libc::ENODATA
        );
        assert_eq!(
            _ibv_query_gid_ex(opened.context, 1, 256, place, 0, size),
            libc::EINVAL
        );
        assert_eq!(
            _ibv_query_gid_ex(opened.context, 1, 0, place, 1, size),
            libc::EINVAL
        );

        let mut gid_type = 7;
        assert_eq!(
            gid_type_of_sysfs(opened.context, 1, 0, &raw mut gid_type),
            0
        );
        assert_eq!(gid_type, 1);
        assert_eq!(
            gid_type_of_sysfs(opened.context, 1, 255, &raw mut gid_type),
            0
        );
        assert_eq!(gid_type, 0);
        assert_eq!(
            gid_type_of_sysfs(opened.context, 1, 256, &raw mut gid_type),
            -1
        );
    }
}

#[test]
fn the_only_partition_key_is_the_default_one() {
    let opened = Opened::new();
    let mut pkey = 0;
    // SAFETY: objects of this library, and room for what is asked.
    unsafe {
        assert_eq!(ibv_query_pkey(opened.context, 1, 0, &raw mut pkey), 0);
        assert_eq!(pkey, 0xffff);
        assert_eq!(ibv_query_pkey(opened.context, 1, 1, &raw mut pkey), -1);
        assert_eq!(last(), libc::ENOENT);
        assert_eq!(ibv_get_pkey_index(opened.context, 1, 0xffff), 0);
        assert_eq!(ibv_get_pkey_index(opened.context, 1, 0x7fff), -1);
        assert_eq!(ibv_get_pkey_index(opened.context, 2, 0xffff), -1);
    }
}

#[test]
fn the_clock_only_goes_forward() {
    let opened = Opened::new();
    let ask = table(opened.context).query_rt_values.expect("there is one");
    let read = || {
        let mut values = ibv_values_ex {
            comp_mask: IBV_VALUES_MASK_RAW_CLOCK,
            raw_clock: libc::timespec {
                tv_sec: -1,
                tv_nsec: -1,
            },
        };
        // SAFETY: there is room.
        assert_eq!(unsafe { ask(opened.context, &raw mut values) }, 0);
        assert_eq!(values.raw_clock.tv_sec, 0);
        values.raw_clock.tv_nsec
    };
    let first = read();
    assert!(first >= 0 && read() >= first);
    let mut later = ibv_values_ex {
        comp_mask: IBV_VALUES_MASK_RESERVED,
        raw_clock: libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
    };
    // SAFETY: there is room.
    assert_eq!(unsafe { ask(opened.context, &raw mut later) }, libc::EINVAL);
}
