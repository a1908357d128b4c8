//! Registering, and registering anew, by the handles that programs have.
#![cfg(not(miri))]

use std::error::Error as StdError;

use oarlock_port::Port;
use oarlock_transport::BindWindow;
use oarlock_wire::{Gid, Guid};
use rustix::mm::MprotectFlags;

use super::keys::index_of;
use super::*;
use crate::context::{Context, DeviceInfo, DeviceLimits};
use crate::pd::Pd;
use crate::{Endpoint, PortSource};

/// A host without a port: no queue pair is made here.
struct NoPort;

impl PortSource for NoPort {
    fn take_port(&self) -> Result<Port, Box<dyn StdError + Send + Sync>> {
        Err("no port here".into())
    }

    fn gone_fd(&self) -> std::io::Result<Option<std::os::fd::OwnedFd>> {
        Ok(None)
    }

    fn port_closed(&self, _slot: u8) {}
}

fn context_with(limits: DeviceLimits) -> Arc<Context> {
    let device = DeviceInfo {
        index: 0,
        name: "mem0".to_owned(),
        guid: Guid(1),
        port_num: 1,
        ifindex: 1,
        is_loopback: false,
        netdev_mtu: 1500,
        gids: vec![Gid::from_ip([10, 0, 0, 1].into())],
        limits,
    };
    let endpoint = Endpoint::new(Box::new(NoPort)).expect("endpoint");
    Context::open(device, &endpoint).expect("context")
}

fn domain() -> Pd {
    Pd::new(&context_with(DeviceLimits::default()))
}

fn register(pd: &Pd, pages: &Pages, access: AccessFlags) -> Result<Region, Error> {
    // SAFETY: no references are made to the pages.
    unsafe { pd.register(pages.addr(), pages.len, access) }
}

fn reregister(region: &mut Region, changes: &Reregistration<'_>) -> Result<(), Error> {
    // SAFETY: no references are made to the pages here.
    unsafe { region.reregister(changes) }
}

fn memory<'a>(pd: &'a Pd, counters: &'a Counters) -> PdMemory<'a> {
    PdMemory::new(
        pd.context().regions(),
        pd.id(),
        QPN,
        counters,
        &PROBE,
        Ways::NONE,
    )
}

#[test]
fn where_addresses_count_from() {
    let pd = domain();
    let own = pd.allocate(64, ALL).expect("region");
    assert_eq!(own.iova(), own.addr());
    let zero = pd
        .allocate(64, ALL | AccessFlags::ZERO_BASED)
        .expect("region");
    assert_eq!(zero.iova(), 0);
    assert_ne!(zero.addr(), 0);
    assert_eq!(zero.sge(3, 4).addr, 3);
    let zero = AccessFlags::ZERO_BASED;
    assert_eq!(pd.allocate_at(64, 0, zero).expect("region").iova(), 0);
    let refused = pd.allocate_at(64, 8, zero).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::OutOfRange {
                given: 8,
                max: 0,
                ..
            }
        ),
        "{refused}"
    );
    let last = pd
        .allocate_at(64, u64::MAX - 63, ALL)
        .expect("up to the last byte");
    assert_eq!(last.iova(), u64::MAX - 63);
    let refused = pd.allocate_at(64, u64::MAX - 62, ALL).unwrap_err();
    assert!(
        matches!(refused, Error::RangeOverflow { len: 64, .. }),
        "{refused}"
    );
    let pages = Pages::new(1);
    // SAFETY: no references are made to the pages.
    let named = unsafe { pd.register_at(pages.addr(), PAGE, 0x5000, ALL) }.expect("region");
    assert_eq!((named.iova(), named.addr()), (0x5000, pages.addr()));
    let counters = Counters::default();
    let mut memory = memory(&pd, &counters);
    memory
        .write_remote(named.rkey(), 0x5fff, b"x")
        .expect("its last byte");
    assert_eq!(content(&named)[PAGE - 1], b'x');
    assert_eq!(
        memory.write_remote(named.rkey(), pages.addr(), b"x"),
        Err(MemoryError::OutOfBounds {
            addr: pages.addr(),
            len: 1
        })
    );
}

#[test]
fn limits_of_the_device_are_kept() {
    let pd = Pd::new(&context_with(DeviceLimits {
        max_mr: 2,
        max_mr_size: 100,
        max_mw: 1,
        ..DeviceLimits::default()
    }));
    let refused = pd.allocate(101, LOCAL).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::OutOfRange {
                given: 101,
                max: 100,
                ..
            }
        ),
        "{refused}"
    );
    let first = pd.allocate(100, LOCAL).expect("region");
    let _second = pd.allocate(1, LOCAL).expect("region");
    let refused = pd.allocate(1, LOCAL).unwrap_err();
    assert!(
        matches!(refused, Error::TooManyRegions { max: 2 }),
        "{refused}"
    );
    drop(first);
    pd.allocate(1, LOCAL).expect("room again");
    let window = Window::new(&pd, WindowType::One).expect("window");
    let refused = Window::new(&pd, WindowType::Two).unwrap_err();
    assert!(
        matches!(refused, Error::TooManyWindows { max: 1 }),
        "{refused}"
    );
    window.deallocate();
    Window::new(&pd, WindowType::Two).expect("room again");
}

#[test]
fn what_cannot_be_registered_is_refused_by_name() {
    let pd = domain();
    let bit = AccessFlags::from_bits_retain;
    for (access, name) in [
        (bit(1 << 7), "HUGETLB"),
        (bit(1 << 8), "FLUSH_GLOBAL"),
        (bit(1 << 9), "FLUSH_PERSISTENT"),
        (bit(1 << 20), "RELAXED_ORDERING"),
        (bit(1 << 31), "later version"),
        (AccessFlags::REMOTE_WRITE, "REMOTE_WRITE needs LOCAL_WRITE"),
        (
            AccessFlags::REMOTE_ATOMIC,
            "REMOTE_ATOMIC needs LOCAL_WRITE",
        ),
    ] {
        let pages = Pages::new(1);
        for refused in [
            pd.allocate(8, access).unwrap_err(),
            pd.allocate_at(8, 0, access).unwrap_err(),
            register(&pd, &pages, access).unwrap_err(),
        ] {
            assert!(refused.to_string().contains(name), "{refused}");
        }
    }
    // SAFETY: refused before anything is touched.
    let whole = unsafe { pd.register(0, usize::MAX, AccessFlags::ON_DEMAND) };
    assert!(matches!(whole.unwrap_err(), Error::ImplicitOnDemand));
    for (addr, len) in [
        (0, usize::MAX),
        (8, usize::MAX - 8),
        (u64::MAX, 1),
        (u64::MAX - 5, 10),
    ] {
        // SAFETY: as above.
        let refused = unsafe { pd.register(addr, len, AccessFlags::empty()) }.unwrap_err();
        let named = matches!(
            refused,
            Error::RangeOverflow { .. } | Error::OutOfRange { .. }
        );
        assert!(named, "{len} bytes at {addr:#x}: {refused}");
    }
    assert_eq!(pd.context().region_count(), 0);
}

/// Pages come and go after the registration; without the flag they must be there at once.
#[test]
fn on_demand_pages_need_exist_only_when_they_are_used() {
    let pd = domain();
    let pages = Pages::new(2);
    pages.protect(MprotectFlags::empty());
    let refused = register(&pd, &pages, ALL).unwrap_err();
    assert!(matches!(refused, Error::NotMapped { .. }), "{refused}");
    let region = register(&pd, &pages, ALL | AccessFlags::ON_DEMAND).expect("no probe");
    let counters = Counters::default();
    let mut memory = memory(&pd, &counters);
    let (rkey, addr) = (region.rkey(), region.iova());
    let missing = Err(MemoryError::Unmapped { addr, len: 1 });
    assert_eq!(memory.write_remote(rkey, addr, b"x"), missing);
    pages.protect(MprotectFlags::READ | MprotectFlags::WRITE);
    memory.write_remote(rkey, addr, b"x").expect("there now");
    pages.protect(MprotectFlags::READ);
    assert_eq!(memory.write_remote(rkey, addr, b"y"), missing);
    let mut byte = [0];
    memory.read_remote(rkey, addr, &mut byte).expect("readable");
    assert_eq!(&byte, b"x");
}

#[test]
fn rights_are_changed_in_place() {
    let pd = domain();
    let mut region = pd.allocate(8, ALL).expect("region");
    let (rkey, addr) = (region.rkey(), region.iova());
    let counters = Counters::default();
    let mut memory = memory(&pd, &counters);
    memory.write_remote(rkey, addr, b"before").expect("allowed");
    let access = Some(LOCAL | AccessFlags::REMOTE_READ);
    reregister(
        &mut region,
        &Reregistration {
            access,
            ..Reregistration::default()
        },
    )
    .expect("fits");
    assert_eq!((region.rkey(), Some(region.access())), (rkey, access));
    assert!(matches!(
        memory.write_remote(rkey, addr, b"after"),
        Err(MemoryError::RemoteAccessDenied { .. })
    ));
    let mut seen = [0; 6];
    memory.read_remote(rkey, addr, &mut seen).expect("allowed");
    assert_eq!(&seen, b"before");
}

#[test]
fn another_domain_takes_the_region_over() {
    let context = context_with(DeviceLimits::default());
    let (first, second) = (Pd::new(&context), Pd::new(&context));
    let mut region = first.allocate(8, ALL).expect("region");
    let (rkey, addr) = (region.rkey(), region.iova());
    let pd = Some(&second);
    reregister(
        &mut region,
        &Reregistration {
            pd,
            ..Reregistration::default()
        },
    )
    .expect("fits");
    let counters = Counters::default();
    let refused = memory(&first, &counters).write_remote(rkey, addr, b"x");
    assert_eq!(refused, Err(MemoryError::InvalidRemoteKey(rkey)));
    memory(&second, &counters)
        .write_remote(rkey, addr, b"x")
        .expect("its domain");
    let stranger = domain();
    let pd = Some(&stranger);
    let refused = reregister(
        &mut region,
        &Reregistration {
            pd,
            ..Reregistration::default()
        },
    );
    assert!(matches!(refused, Err(Error::OtherContext { .. })));
    memory(&second, &counters)
        .write_remote(rkey, addr, b"x")
        .expect("as it was");
}

#[test]
fn other_memory_has_other_keys() {
    let pd = domain();
    let (first, second) = (Pages::new(1), Pages::new(2));
    let mut region = register(&pd, &first, ALL).expect("region");
    let (rkey, lkey, addr) = (region.rkey(), region.lkey(), region.iova());
    let translation = Some(Translation {
        addr: second.addr(),
        len: second.len,
        iova: Some(addr),
    });
    reregister(
        &mut region,
        &Reregistration {
            translation,
            ..Reregistration::default()
        },
    )
    .expect("mapped");
    assert_ne!(index_of(region.rkey().0), index_of(rkey.0));
    assert_eq!((region.iova(), region.addr()), (addr, second.addr()));
    assert_eq!(region.len() as usize, second.len);
    let counters = Counters::default();
    let mut memory = memory(&pd, &counters);
    let refused = memory.write_remote(rkey, addr, b"x");
    assert_eq!(refused, Err(MemoryError::InvalidRemoteKey(rkey)));
    let old = Sge { addr, len: 1, lkey };
    assert_eq!(
        memory.scatter(&[old], 0, b"x"),
        Err(MemoryError::InvalidKey(lkey))
    );
    memory
        .write_remote(region.rkey(), addr + PAGE as u64, b"x")
        .expect("the new memory");
    assert_eq!(content(&region)[PAGE], b'x');
    assert_eq!(pd.context().region_count(), 1);
    drop(region);
    assert_eq!(pd.context().region_count(), 0);
}

#[test]
fn everything_at_once() {
    let context = context_with(DeviceLimits::default());
    let (first, second) = (Pd::new(&context), Pd::new(&context));
    let (old, new) = (Pages::new(1), Pages::new(1));
    let mut region = register(&first, &old, LOCAL).expect("region");
    reregister(
        &mut region,
        &Reregistration {
            translation: Some(Translation {
                addr: new.addr(),
                len: 100,
                iova: None,
            }),
            pd: Some(&second),
            access: Some(ALL | AccessFlags::ZERO_BASED),
        },
    )
    .expect("mapped");
    assert_eq!((region.iova(), region.len()), (0, 100));
    let counters = Counters::default();
    memory(&second, &counters)
        .write_remote(region.rkey(), 99, b"x")
        .expect("inside");
    assert_eq!(content(&region)[99], b'x');
    // Counting from 0 ends: the addresses are others, and so are the keys.
    let before = region.rkey();
    let access = Some(ALL);
    reregister(
        &mut region,
        &Reregistration {
            access,
            ..Reregistration::default()
        },
    )
    .expect("fits");
    assert_eq!(region.iova(), new.addr());
    assert_ne!(region.rkey(), before);
}

#[test]
fn a_failed_re_registration_leaves_everything() {
    let pd = domain();
    let pages = Pages::new(1);
    let mut region = register(&pd, &pages, ALL).expect("region");
    let (rkey, addr) = (region.rkey(), region.iova());
    let nowhere = Pages::new(1);
    nowhere.unmap();
    let to = |addr, len| {
        Some(Translation {
            addr,
            len,
            iova: None,
        })
    };
    let mut failures: Vec<(Reregistration<'_>, &str)> = vec![
        (
            Reregistration {
                translation: to(nowhere.addr(), PAGE),
                ..Reregistration::default()
            },
            "not mapped",
        ),
        (
            Reregistration {
                translation: to(pages.addr(), 0),
                ..Reregistration::default()
            },
            "at least one byte",
        ),
        (
            Reregistration {
                translation: to(u64::MAX - 10, 8),
                ..Reregistration::default()
            },
            "leaves the address space",
        ),
        (
            Reregistration {
                access: Some(AccessFlags::REMOTE_WRITE),
                ..Reregistration::default()
            },
            "needs LOCAL_WRITE",
        ),
        (
            Reregistration {
                access: Some(AccessFlags::from_bits_retain(1 << 7)),
                ..Reregistration::default()
            },
            "HUGETLB",
        ),
    ];
    let counters = Counters::default();
    let mut memory = memory(&pd, &counters);
    let mut check = |region: &mut Region, (changes, sentence): (Reregistration<'_>, &str)| {
        let refused = reregister(region, &changes).unwrap_err().to_string();
        assert!(refused.contains(sentence), "{refused}");
        assert_eq!(
            (region.rkey(), region.iova(), region.access()),
            (rkey, addr, ALL)
        );
        memory.write_remote(rkey, addr, b"x").expect("as it was");
    };
    for failure in failures.drain(..) {
        check(&mut region, failure);
    }
    let window = Window::new(&pd, WindowType::Two).expect("window");
    let bind = BindWindow {
        window: window.rkey(),
        rkey: window.rkey(),
        region: region.lkey(),
        addr,
        len: 8,
        access: AccessFlags::REMOTE_READ,
    };
    PdMemory::new(
        pd.context().regions(),
        pd.id(),
        QPN,
        &counters,
        &PROBE,
        Ways::NONE,
    )
    .bind(&bind)
    .expect("bind");
    for changes in [
        Reregistration {
            access: Some(LOCAL),
            ..Reregistration::default()
        },
        Reregistration {
            translation: to(pages.addr(), 8),
            ..Reregistration::default()
        },
    ] {
        check(&mut region, (changes, "1 memory windows are bound"));
    }
    drop(window);
    let access = Some(LOCAL);
    reregister(
        &mut region,
        &Reregistration {
            access,
            ..Reregistration::default()
        },
    )
    .expect("free");

    let mut own = pd.allocate(8, ALL).expect("region");
    let translation = to(pages.addr(), 8);
    let refused = reregister(
        &mut own,
        &Reregistration {
            translation,
            ..Reregistration::default()
        },
    );
    assert!(matches!(refused, Err(Error::OwnMemory)));
}

/// With narrower rights than the probe was made for, pages that are only readable do.
#[test]
fn new_rights_are_probed() {
    let pd = domain();
    let pages = Pages::new(1);
    pages.protect(MprotectFlags::READ);
    let mut region = register(&pd, &pages, AccessFlags::REMOTE_READ).expect("readable");
    let access = Some(ALL);
    let refused = reregister(
        &mut region,
        &Reregistration {
            access,
            ..Reregistration::default()
        },
    );
    assert!(matches!(refused, Err(Error::NotMapped { .. })));
    pages.protect(MprotectFlags::READ | MprotectFlags::WRITE);
    reregister(
        &mut region,
        &Reregistration {
            access,
            ..Reregistration::default()
        },
    )
    .expect("writable now");
    region.copy_in(0, b"x").expect("writable");
}

#[test]
fn the_programs_copies_need_the_right_that_was_promised() {
    let pd = domain();
    let pages = Pages::new(1);
    let region = register(&pd, &pages, AccessFlags::REMOTE_READ).expect("region");
    // The program has not said that these bytes may change.
    assert!(matches!(
        region.copy_in(0, b"x"),
        Err(Error::NotMapped { .. })
    ));
    assert!(matches!(
        region.store_u64(0, 1),
        Err(Error::NotMapped { .. })
    ));
    assert_eq!(content(&region), vec![0; PAGE]);
    let own = pd.allocate(8, AccessFlags::REMOTE_READ).expect("region");
    own.copy_in(0, b"ours").expect("memory of the library");
}

#[test]
fn a_window_handle_tells_its_state_and_takes_its_key_along() {
    let pd = domain();
    let region = pd.allocate(64, ALL).expect("region");
    let counters = Counters::default();
    for window_type in [WindowType::One, WindowType::Two] {
        for deallocate in [false, true] {
            let window = Window::new(&pd, window_type).expect("window");
            assert_eq!((window.window_type(), window.bound()), (window_type, None));
            assert_eq!(window.pd(), &pd);
            let rkey = window.choose_key();
            assert_ne!(rkey, window.rkey());
            let bind = BindWindow {
                window: window.rkey(),
                rkey,
                region: region.lkey(),
                addr: region.iova() + 8,
                len: 8,
                access: AccessFlags::REMOTE_WRITE,
            };
            let mut memory = memory(&pd, &counters);
            memory.bind(&bind).expect("bind");
            let bound = window.bound().expect("bound");
            assert_eq!((bound.addr, bound.len), (region.iova() + 8, 8));
            assert_eq!(bound.access, AccessFlags::REMOTE_WRITE);
            assert_eq!(bound.qpn, (window_type == WindowType::Two).then_some(QPN));
            assert_eq!(window.rkey(), rkey);
            memory.write_remote(rkey, bound.addr, b"x").expect("bound");
            if deallocate {
                window.deallocate();
            } else {
                drop(window);
            }
            let refused = memory.write_remote(rkey, bound.addr, b"x");
            assert_eq!(refused, Err(MemoryError::InvalidRemoteKey(rkey)));
            // The region counts it no longer.
            region.inner.change(|_| ()).expect("no windows");
        }
    }
    region.deregister().expect("no windows");
}

/// A bare key of an earlier binding names nothing until 255 others have been chosen.
#[test]
fn keys_chosen_for_type_1_do_not_repeat_soon() {
    let pd = domain();
    let window = Window::new(&pd, WindowType::One).expect("window");
    let mut chosen = vec![window.rkey()];
    for _ in 0..255 {
        let key = window.choose_key();
        assert_eq!(index_of(key.0), index_of(window.rkey().0));
        assert!(!chosen.contains(&key), "{key} twice");
        chosen.push(key);
    }
}
