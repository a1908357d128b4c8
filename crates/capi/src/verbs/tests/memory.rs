use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

use super::{Opened, last};
use crate::abi::*;
use crate::verbs::mr::*;
use crate::verbs::mw::{alloc_mw, dealloc_mw};
use crate::verbs::pd::{alloc_parent_domain, alloc_td, dealloc_td, ibv_alloc_pd, ibv_dealloc_pd};
use crate::verbs::xrc::{ibv_close_xrcd, ibv_open_xrcd};

const WRITE: i32 = IBV_ACCESS_LOCAL_WRITE as i32;

fn place(bytes: &mut [u8]) -> *mut c_void {
    bytes.as_mut_ptr().cast()
}

#[test]
fn a_region_is_registered_anew_and_freed() {
    let opened = Opened::new();
    let (mut first, mut second) = (vec![0_u8; 64], vec![0_u8; 128]);
    // SAFETY: objects of this library, each freed once; the memory is there and not referred to meanwhile.
    unsafe {
        let mr = ibv_reg_mr(opened.pd, place(&mut first), 64, WRITE);
        assert!(!mr.is_null());
        let public = *mr;
        assert_eq!((public.context, public.pd), (opened.context, opened.pd));
        assert_eq!((public.addr, public.length), (place(&mut first), 64));
        assert_eq!(public.lkey, public.rkey);

        let moved = IBV_REREG_MR_CHANGE_TRANSLATION as i32;
        assert_eq!(
            ibv_rereg_mr(mr, moved, ptr::null_mut(), place(&mut second), 128, 0),
            0
        );
        let public = *mr;
        assert_eq!((public.addr, public.length), (place(&mut second), 128));
        assert_ne!(public.lkey, 0);

        let other = ibv_alloc_pd(opened.context);
        let changed = (IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS) as i32;
        assert_eq!(
            ibv_rereg_mr(mr, changed, other, ptr::null_mut(), 0, WRITE),
            0
        );
        assert_eq!((*mr).pd, other);
        assert_eq!(
            ibv_dealloc_pd(other),
            libc::EBUSY,
            "the region is in it now"
        );

        for (flags, addr, len, access) in [
            (8, ptr::null_mut(), 0, 0),
            (moved, ptr::null_mut(), 64, 0),
            (moved, place(&mut first), 0, 0),
            (moved, place(&mut first), 64, WRITE),
            (IBV_REREG_MR_CHANGE_PD as i32, ptr::null_mut(), 0, 0),
        ] {
            let answer = ibv_rereg_mr(mr, flags, ptr::null_mut(), addr, len, access);
            assert_eq!(
                (answer, last()),
                (IBV_REREG_MR_ERR_INPUT, libc::EINVAL),
                "{flags}"
            );
        }
        let unmapped = ptr::without_provenance_mut(0x1000);
        let answer = ibv_rereg_mr(mr, moved, ptr::null_mut(), unmapped, 64, 0);
        assert_eq!((answer, last()), (IBV_REREG_MR_ERR_CMD, libc::EFAULT));
        assert_eq!((*mr).length, 128, "as it was");

        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(other), 0);
    }
}

#[test]
fn what_cannot_be_registered_is_refused_with_the_errno_of_the_kernel() {
    let opened = Opened::new();
    let mut memory = vec![0_u8; 64];
    let start = place(&mut memory);
    let remote_write = IBV_ACCESS_REMOTE_WRITE as i32;
    for (addr, len, access, errno) in [
        (ptr::without_provenance_mut(0x1000), 64, WRITE, libc::EFAULT),
        (start, 0, WRITE, libc::EINVAL),
        (start, 64, remote_write, libc::EINVAL),
        (start, 64, WRITE | 1 << 8, libc::EOPNOTSUPP),
        (
            ptr::without_provenance_mut(usize::MAX - 10),
            64,
            WRITE,
            libc::EFAULT,
        ),
    ] {
        // SAFETY: refused.
        let mr = unsafe { ibv_reg_mr(opened.pd, addr, len, access) };
        assert!(mr.is_null());
        assert_eq!(last(), errno, "{addr:p} {len} {access:#x}");
    }
}

#[test]
fn flags_that_only_permit_are_not_asked_for() {
    let opened = Opened::new();
    let mut memory = vec![0_u8; 64];
    let access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB | 1 << 29;
    let start = place(&mut memory);
    // SAFETY: objects of this library, each freed once; the memory is there and not referred to meanwhile.
    unsafe {
        let mr = ibv_reg_mr_iova2(opened.pd, start, 64, start.addr() as u64, access);
        assert!(!mr.is_null());
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}

#[test]
fn an_iova_is_at_the_same_place_of_a_page() {
    let opened = Opened::new();
    let mut memory = vec![0_u8; 64];
    let start = place(&mut memory);
    let in_page = start.addr() as u64 % 4096;
    // SAFETY: objects of this library, each freed once; the memory is there and not referred to meanwhile.
    unsafe {
        let mr = ibv_reg_mr_iova(opened.pd, start, 64, 0x10_0000 + in_page, WRITE);
        assert!(!mr.is_null());
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert!(ibv_reg_mr_iova(opened.pd, start, 64, 0x10_0001 + in_page, WRITE).is_null());
        assert_eq!(last(), libc::EINVAL);
        // Counted from 0, by the macro, which gives the address as iova.
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED;
        let mr = ibv_reg_mr_iova2(opened.pd, start, 64, start.addr() as u64, access);
        assert!(!mr.is_null());
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}

#[test]
fn a_domain_is_busy_while_something_is_in_it() {
    let opened = Opened::new();
    let mut memory = vec![0_u8; 64];
    // SAFETY: objects of this library, each freed once; the memory is there and not referred to meanwhile.
    unsafe {
        let pd = ibv_alloc_pd(opened.context);
        let mr = ibv_reg_mr(pd, place(&mut memory), 64, WRITE);
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!(ibv_dereg_mr(mr), 0);
        for window_type in [IBV_MW_TYPE_1, IBV_MW_TYPE_2] {
            let mw = alloc_mw(pd, window_type);
            assert_eq!(((*mw).type_, (*mw).pd), (window_type, pd));
            assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
            assert_eq!(dealloc_mw(mw), 0);
        }
        assert!(alloc_mw(pd, 3).is_null());
        assert_eq!(last(), libc::EINVAL);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
}

#[test]
fn a_parent_domain_holds_what_it_is_made_of() {
    let opened = Opened::new();
    let mut memory = vec![0_u8; 64];
    // SAFETY: objects of this library, each freed once; the memory is there and not referred to meanwhile.
    unsafe {
        let mut none = ibv_td_init_attr { comp_mask: 0 };
        let td = alloc_td(opened.context, &raw mut none);
        assert!(!td.is_null());
        none.comp_mask = 1;
        assert!(alloc_td(opened.context, &raw mut none).is_null());
        assert_eq!(last(), libc::EINVAL);

        let pd = ibv_alloc_pd(opened.context);
        let mut attr = ibv_parent_domain_init_attr {
            pd,
            td,
            comp_mask: 0,
            alloc: None,
            free: None,
            pd_context: ptr::null_mut(),
        };
        let parent = alloc_parent_domain(opened.context, &raw mut attr);
        assert!(!parent.is_null());
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!(dealloc_td(td), libc::EBUSY);
        let mr = ibv_reg_mr(parent, place(&mut memory), 64, WRITE);
        assert_eq!((*mr).pd, parent);
        assert_eq!(ibv_dealloc_pd(parent), libc::EBUSY);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(parent), 0);
        assert_eq!((ibv_dealloc_pd(pd), dealloc_td(td)), (0, 0));

        attr.pd = ptr::null_mut();
        assert!(alloc_parent_domain(opened.context, &raw mut attr).is_null());
        assert_eq!(last(), libc::EINVAL);
        attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
        assert!(alloc_parent_domain(opened.context, &raw mut attr).is_null());
        assert_eq!(last(), libc::EOPNOTSUPP);
    }
}

#[test]
fn an_xrc_domain_of_a_file_is_shared_by_who_opens_it() {
    let opened = Opened::new();
    let open = |fd, oflags| {
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd,
            oflags,
        };
        // SAFETY: a context of this library.
        unsafe { ibv_open_xrcd(opened.context, &raw mut attr) }
    };
    let refused = |fd, oflags| {
        assert!(open(fd, oflags).is_null());
        last()
    };
    let (file, same) = (File::open("/proc/self/exe"), File::open("/proc/self/exe"));
    let (file, same) = (file.expect("this program"), same.expect("this program"));
    let (file, same) = (file.as_raw_fd(), same.as_raw_fd());
    assert_eq!(refused(file, 0), libc::EAGAIN);
    let first = open(file, libc::O_CREAT);
    let second = open(same, 0);
    let own = open(-1, libc::O_CREAT);
    assert!(!first.is_null() && !second.is_null() && !own.is_null());
    assert_eq!(refused(same, libc::O_CREAT | libc::O_EXCL), libc::EINVAL);
    assert_eq!(refused(i32::MAX, libc::O_CREAT), libc::EBADF);
    // SAFETY: domains of this library, each closed once.
    unsafe {
        let inner = |xrcd| &crate::verbs::xrc::Xrcd::of(xrcd).inner;
        assert_eq!(inner(first), inner(second));
        assert_ne!(inner(first), inner(own));
        let in_use = crate::verbs::xrc::Xrcd::of(first).enter();
        assert_eq!(ibv_close_xrcd(second), 0, "another handle is there");
        assert_eq!(ibv_close_xrcd(first), libc::EBUSY);
        drop(in_use);
        assert_eq!(ibv_close_xrcd(first), 0);
        assert_eq!(ibv_close_xrcd(own), 0);
    }
    assert_eq!(refused(file, 0), libc::EAGAIN, "gone with its last handle");
}

#[test]
fn an_xrc_domain_needs_both_of_its_attributes() {
    let opened = Opened::new();
    for (comp_mask, errno) in [(0, libc::EINVAL), (1, libc::EINVAL), (4, libc::EOPNOTSUPP)] {
        let mut attr = ibv_xrcd_init_attr {
            comp_mask,
            fd: -1,
            oflags: 0,
        };
        // SAFETY: refused.
        let xrcd = unsafe { ibv_open_xrcd(opened.context, &raw mut attr) };
        assert!(xrcd.is_null());
        assert_eq!(last(), errno, "{comp_mask}");
    }
}

#[test]
fn advice_is_taken_or_refused() {
    let opened = Opened::new();
    let mut sge = ibv_sge {
        addr: 0,
        length: 0,
        lkey: 0,
    };
    let sge = &raw mut sge;
    // SAFETY: a domain of this library; nothing is followed.
    unsafe {
        assert_eq!(
            advise_mr(opened.pd, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, 1, sge, 1),
            0
        );
        assert_eq!(advise_mr(opened.pd, 3, 0, sge, 1), libc::EOPNOTSUPP);
        assert_eq!(advise_mr(opened.pd, 0, 2, sge, 1), libc::EINVAL);
        assert_eq!(advise_mr(opened.pd, 0, 0, sge, 0), libc::EINVAL);
    }
}
