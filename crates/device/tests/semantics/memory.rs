//! Keys, rights, windows: what of a process's memory its peers reach, and until when.

use std::ptr::NonNull;

use oarlock_device::{
    Access, Error, Pd, QpInit, Region, Reregistration, Translation, Window, WindowBind, WindowType,
};
use oarlock_transport::{
    AccessFlags, BindWindow, QpType, RemoteAddress, SendOp, VendorError, WcOpcode, WcStatus,
};
use oarlock_wire::RKey;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::cases;
use crate::conn::{Conn, RELIABLE};
use crate::end::{EVERYTHING, End, content};
use crate::moving::{at, window_on};
use crate::support::ends::Link;

cases! {
    /// Each right of a region lets one kind of operation through, and no other.
    region_rights: rights_from, rights_of_region;
    /// Each right of a queue pair likewise.
    queue_pair_rights: qp_rights_from, rights_of_queue_pair;
    /// One byte beyond either end, another protection domain, a key that is gone, a key that never was.
    bounds_and_keys: bounds_from, bounds_at;
    /// Addresses count from 0, or from where the program says.
    zero_based_and_iova: named_from, named_at;
    /// Pages need exist only when they are used.
    on_demand: on_demand_from, on_demand_at;
    /// Other rights, another protection domain, another place: the old ones stop.
    reregistration: changed_from, changed_at;
    /// A window of type 1: each binding has another key, which works on every queue pair of the domain.
    window_type_1: one_from, one_at;
    /// A window of type 2: the program's key, one queue pair, once until it is taken away.
    window_type_2: two_from, two_at;
    /// What breaks a rule of binding fails there.
    binding_refused: binding_from, binding_at;
    /// Nothing is placed after deregistration has returned.
    deregistration: gone_from, gone_at;
}

const REMOTE: [AccessFlags; 3] = [
    AccessFlags::REMOTE_WRITE,
    AccessFlags::REMOTE_READ,
    AccessFlags::REMOTE_ATOMIC,
];

/// The operation that needs the n-th right.
fn op_of(right: usize, remote: RemoteAddress) -> SendOp {
    match right {
        0 => SendOp::Write(remote),
        1 => SendOp::Read(remote),
        _ => SendOp::FetchAdd { remote, add: 1 },
    }
}

/// A fresh connection for each combination and operation, since a refusal ends it.
fn each_right(end: &mut End, mut body: impl FnMut(&mut End, usize, AccessFlags, usize)) {
    for combination in 0..8 {
        let rights = (0..3)
            .filter(|i| combination & 1 << i != 0)
            .map(|i| REMOTE[i])
            .collect();
        for op in 0..3 {
            body(end, combination, rights, op);
        }
    }
}

fn rights_from(end: &mut End) {
    each_right(end, |end, _, rights, op| {
        let conn = end.open(QpType::Rc);
        refused_without(end, &conn, rights, op, WcStatus::REM_ACCESS_ERR);
        end.meet();
    });
}

fn refused_without(end: &mut End, conn: &Conn, rights: AccessFlags, op: usize, status: WcStatus) {
    let remote = end.offered();
    let local = end.filled(b"12345678");
    let done = end.attempt(conn, op_of(op, remote), &[local.sge(0, 8)]);
    let expected = if rights.contains(REMOTE[op]) {
        WcStatus::SUCCESS
    } else {
        status
    };
    assert_eq!(done.status, expected, "operation {op} with {rights}");
    if expected != WcStatus::SUCCESS {
        assert_eq!(content(&local), b"12345678", "nothing came");
    }
}

fn rights_of_region(end: &mut End) {
    each_right(end, |end, _, rights, op| {
        let _conn = end.open(QpType::Rc);
        let memory = end.region(8, Access::LOCAL_WRITE | rights);
        end.offer(&memory);
        end.meet();
        let changes = rights.contains(REMOTE[op]) && op != 1;
        assert_eq!(content(&memory) != [0; 8], changes, "operation {op}");
    });
}

fn qp_rights_from(end: &mut End) {
    for service in [QpType::Rc, QpType::XrcInitiator] {
        each_right(end, |end, _, rights, op| {
            let conn = end.open(service);
            refused_without(end, &conn, rights, op, WcStatus::REM_INV_REQ_ERR);
            end.meet();
        });
    }
}

fn rights_of_queue_pair(end: &mut End) {
    for service in [QpType::Rc, QpType::XrcInitiator] {
        each_right(end, |end, _, access, op| {
            let link = Link {
                access,
                ..Link::default()
            };
            let _conn = end.open_with(service, QpInit::default(), &link);
            let memory = end.region(8, EVERYTHING);
            end.offer(&memory);
            end.meet();
            let changes = access.contains(REMOTE[op]) && op != 1;
            assert_eq!(content(&memory) != [0; 8], changes, "operation {op}");
        });
    }
}

/// What the other side's memory is named by, and how an 8-byte WRITE there ends.
const PLACES: [(i64, bool); 6] = [
    (0, true),
    (24, true),
    (25, false),
    (-1, false),
    (1 << 40, false),
    (-8, false),
];

fn bounds_from(end: &mut End) {
    for service in RELIABLE {
        for (offset, works) in PLACES {
            let conn = end.open(service);
            let remote = end.offered();
            let place = RemoteAddress {
                addr: remote.addr.wrapping_add_signed(offset),
                ..remote
            };
            attempt_at(end, &conn, place, works);
            end.meet();
        }
        // Another domain's key, one that is gone, one that never was.
        for _ in 0..3 {
            let conn = end.open(service);
            let remote = end.offered();
            attempt_at(end, &conn, remote, false);
            end.meet();
        }
    }
}

fn attempt_at(end: &End, conn: &Conn, place: RemoteAddress, works: bool) {
    let local = end.filled(b"12345678");
    let done = end.attempt(conn, SendOp::Write(place), &[local.sge(0, 8)]);
    let expected = if works {
        (WcStatus::SUCCESS, VendorError::NONE)
    } else {
        (WcStatus::REM_ACCESS_ERR, VendorError::NAK_REMOTE_ACCESS)
    };
    assert_eq!((done.status, done.vendor_err), expected, "{place:x?}");
}

fn bounds_at(end: &mut End) {
    for service in RELIABLE {
        for (offset, works) in PLACES {
            let _conn = end.open(service);
            let memory = end.region(32, EVERYTHING);
            end.offer(&memory);
            end.meet();
            let mut expected = vec![0; 32];
            if works {
                expected[offset as usize..][..8].copy_from_slice(b"12345678");
            }
            assert_eq!(content(&memory), expected);
        }
        let _conn = end.open(service);
        let other = Pd::new(&end.side.context);
        let foreign = other.allocate(32, EVERYTHING).expect("region");
        end.offer(&foreign);
        end.meet();
        assert_eq!(content(&foreign), [0; 32]);
        let _conn = end.open(service);
        let gone = end.region(32, EVERYTHING);
        let (addr, key) = (gone.iova(), gone.rkey());
        gone.deregister().expect("no window");
        end.tell(&[addr, key.0.into()]);
        end.meet();
        let _conn = end.open(service);
        let memory = end.region(32, EVERYTHING);
        end.tell(&[memory.iova(), (memory.rkey().0 ^ 1).into()]);
        end.meet();
        assert_eq!(content(&memory), [0; 32]);
    }
}

fn named_from(end: &mut End) {
    for first in [0, 0x7000_0000_0000_u64] {
        let conn = end.open(QpType::Rc);
        let remote = end.offered();
        assert_eq!(remote.addr, first);
        attempt_at(end, &conn, at(remote, 8), true);
        let swap = SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 3,
        };
        let result = end.region(8, Access::LOCAL_WRITE);
        end.run(&conn, swap, &[result.sge(0, 8)]);
        // The real address is none that a peer can use.
        let [real] = end.told();
        let place = RemoteAddress {
            addr: real,
            ..remote
        };
        attempt_at(end, &conn, place, false);
        end.meet();
    }
}

fn named_at(end: &mut End) {
    for zero_based in [true, false] {
        let conn = end.open(QpType::Rc);
        let memory = if zero_based {
            end.region(16, EVERYTHING | Access::ZERO_BASED)
        } else {
            let pd = &end.side.pd;
            pd.allocate_at(16, 0x7000_0000_0000, EVERYTHING)
                .expect("region")
        };
        end.offer(&memory);
        end.tell(&[memory.addr()]);
        end.meet();
        assert_eq!(memory.load_u64(0).expect("aligned"), 3);
        assert_eq!(content(&memory)[8..], *b"12345678");
        drop(conn);
    }
}

/// Pages of our own.
struct Pages {
    start: NonNull<std::ffi::c_void>,
}

const PAGE: usize = 4096;

impl Pages {
    fn new() -> Self {
        // SAFETY: a mapping of its own, at an address that the system chooses.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        Self {
            start: NonNull::new(start.expect("a page")).expect("not null"),
        }
    }

    fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    fn allow(&self, flags: MprotectFlags) {
        // SAFETY: nobody refers to the page; the device reaches it by system calls that fail.
        unsafe { mprotect(self.start.as_ptr(), PAGE, flags) }.expect("mprotect");
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody refers to it.
        unsafe { munmap(self.start.as_ptr(), PAGE) }.expect("munmap");
    }
}

/// Registers the page.
fn register(end: &End, pages: &Pages, access: Access) -> Result<Region, Error> {
    // SAFETY: no references are made to the page.
    unsafe { end.side.pd.register(pages.addr(), PAGE, access) }
}

fn on_demand_from(end: &mut End) {
    for works in [true, false] {
        let conn = end.open(QpType::Rc);
        let remote = end.offered();
        let local = end.filled(b"12345678");
        let done = end.attempt(&conn, SendOp::Write(remote), &[local.sge(0, 8)]);
        let expected = if works {
            (WcStatus::SUCCESS, VendorError::NONE)
        } else {
            (WcStatus::REM_OP_ERR, VendorError::NAK_REMOTE_OPERATIONAL)
        };
        assert_eq!((done.status, done.vendor_err), expected);
        end.meet();
    }
}

fn on_demand_at(end: &mut End) {
    let pages = Pages::new();
    pages.allow(MprotectFlags::empty());
    let refused = register(end, &pages, EVERYTHING).unwrap_err();
    assert!(matches!(refused, Error::NotMapped { .. }), "{refused}");
    let region = register(end, &pages, EVERYTHING | Access::ON_DEMAND).expect("no probe");
    for works in [true, false] {
        let _conn = end.open(QpType::Rc);
        let flags = if works {
            MprotectFlags::READ | MprotectFlags::WRITE
        } else {
            MprotectFlags::READ
        };
        pages.allow(flags);
        end.offer(&region);
        end.meet();
        assert_eq!(content(&region)[..8], *b"12345678");
    }
}

fn changed_from(end: &mut End) {
    // Rights taken away, given back.
    for works in [true, false, true] {
        let conn = end.open(QpType::Rc);
        let remote = end.offered();
        attempt_at(end, &conn, remote, works);
        end.meet();
    }
    // Another domain, and back.
    for works in [false, true] {
        let conn = end.open(QpType::Rc);
        let remote = end.offered();
        attempt_at(end, &conn, remote, works);
        end.meet();
    }
    // Another place: by the new key; by the old one nothing.
    for works in [true, false] {
        let conn = end.open(QpType::Rc);
        let remote = end.offered();
        attempt_at(end, &conn, remote, works);
        end.meet();
    }
}

fn changed_at(end: &mut End) {
    let mut memory = end.region(64, EVERYTHING);
    let (iova, key) = (memory.iova(), memory.rkey());
    let read_only = Access::LOCAL_WRITE | Access::REMOTE_READ;
    for access in [EVERYTHING, read_only, EVERYTHING] {
        let _conn = end.open(QpType::Rc);
        let change = Reregistration {
            access: Some(access),
            ..Reregistration::default()
        };
        change_ours(&mut memory, change).expect("changed");
        assert_eq!((memory.access(), memory.rkey()), (access, key));
        end.offer(&memory);
        end.meet();
    }
    let other = Pd::new(&end.side.context);
    for pd in [&other, &end.side.pd.clone()] {
        let _conn = end.open(QpType::Rc);
        let change = Reregistration {
            pd: Some(pd),
            ..Reregistration::default()
        };
        change_ours(&mut memory, change).expect("changed");
        end.offer(&memory);
        end.meet();
    }
    let pages = [Pages::new(), Pages::new()];
    let mut moved = register(end, &pages[0], EVERYTHING).expect("region");
    let old = (moved.iova(), moved.rkey());
    let change = Reregistration {
        translation: Some(Translation {
            addr: pages[1].addr(),
            len: PAGE,
            iova: None,
        }),
        ..Reregistration::default()
    };
    change_ours(&mut moved, change).expect("changed");
    assert_ne!(moved.rkey(), old.1);
    let _conn = end.open(QpType::Rc);
    end.offer(&moved);
    end.meet();
    assert_eq!(content(&moved)[..8], *b"12345678");
    let _conn = end.open(QpType::Rc);
    end.tell(&[old.0, old.1.0.into()]);
    end.meet();
    // Our own memory stays where it is.
    let refused = change_ours(&mut memory, change).unwrap_err();
    assert!(matches!(refused, Error::OwnMemory), "{refused}");
    assert_eq!((memory.iova(), memory.rkey()), (iova, key));
}

fn change_ours(region: &mut Region, change: Reregistration<'_>) -> Result<(), Error> {
    // SAFETY: no references are made to the memory, of before or from now on.
    unsafe { region.reregister(&change) }
}

fn one_from(end: &mut End) {
    let conns = [end.open(QpType::Rc), end.open(QpType::Rc)];
    let mut last = None;
    for round in 0..3 {
        let remote = end.offered();
        for conn in &conns {
            attempt_at(end, conn, remote, true);
        }
        if round == 0 {
            // A byte before the window is the region's, not the window's.
            let conn = end.open(QpType::Rc);
            attempt_at(end, &conn, at(remote, 1), false);
        }
        if let Some(old) = last.replace(remote) {
            let conn = end.open(QpType::Rc);
            attempt_at(end, &conn, old, false);
        }
        end.meet();
    }
    let conn = end.open(QpType::Rc);
    attempt_at(end, &conn, last.expect("three rounds"), false);
    end.meet();
}

fn one_at(end: &mut End) {
    let conns = [end.open(QpType::Rc), end.open(QpType::Rc)];
    let memory = end.region(24, EVERYTHING);
    let window = Window::new(&end.side.pd, WindowType::One).expect("window");
    let mut bind = WindowBind {
        wr_id: 12,
        signaled: true,
        region: memory.lkey(),
        addr: memory.iova() + 8,
        len: 8,
        access: AccessFlags::REMOTE_WRITE,
    };
    let mut bound = |end: &End, len| {
        bind.len = len;
        let key = conns[0].qp.bind_window(&window, &bind).expect("posted");
        let done = end.next();
        assert_eq!((done.wr_id, done.opcode), (12, WcOpcode::BIND_MW));
        assert_eq!((done.status, window.rkey()), (WcStatus::SUCCESS, key));
        key
    };
    for _ in 0..3 {
        let key = bound(end, 8);
        end.tell(&[memory.iova() + 8, key.0.into()]);
        let _conn = end.open(QpType::Rc);
        end.meet();
        let mut expected = [0; 24];
        expected[8..16].copy_from_slice(b"12345678");
        assert_eq!(content(&memory), expected);
    }
    // Unbound.
    bound(end, 0);
    assert_eq!(window.bound(), None);
    let _conn = end.open(QpType::Rc);
    end.meet();
}

fn two_from(end: &mut End) {
    // Works on the queue pair that bound it, and on no other.
    let conn = end.open(QpType::Rc);
    let remote = end.offered();
    attempt_at(end, &conn, remote, true);
    let other = end.open(QpType::Rc);
    attempt_at(end, &other, remote, false);
    end.meet();
    // Zero-based; and only what it allows.
    let zero_based = end.offered();
    assert_eq!(zero_based.addr, 0);
    attempt_at(end, &conn, zero_based, true);
    let local = end.region(8, Access::LOCAL_WRITE);
    let done = end.attempt(&conn, SendOp::Read(zero_based), &[local.sge(0, 8)]);
    assert_eq!(done.status, WcStatus::REM_ACCESS_ERR);
    end.meet();
}

fn two_at(end: &mut End) {
    let conn = end.open(QpType::Rc);
    let memory = end.region(16, EVERYTHING);
    let (window, rkey) = window_on(end, &conn, &memory, 1, Access::REMOTE_WRITE);
    end.tell(&[memory.iova(), rkey.0.into()]);
    let _other = end.open(QpType::Rc);
    end.meet();
    // Bound: not to be bound again before it is taken away, and the region not to go.
    let (memory, refused) = memory.deregister().unwrap_err();
    assert!(matches!(refused, Error::WindowsBound { count: 1 }));
    end.run(&conn, SendOp::LocalInvalidate(rkey), &[]);
    let bind = BindWindow {
        window: window.rkey(),
        rkey: RKey((rkey.0 & !0xff) | 2),
        region: memory.lkey(),
        addr: memory.iova() + 8,
        len: 8,
        access: AccessFlags::REMOTE_WRITE | AccessFlags::ZERO_BASED,
    };
    end.run(&conn, SendOp::BindWindow(bind), &[]);
    end.tell(&[0, bind.rkey.0.into()]);
    end.meet();
    assert_eq!(content(&memory)[8..], *b"12345678");
}

fn binding_from(end: &mut End) {
    for _ in 0..RULES {
        end.open(QpType::Rc);
    }
    end.meet();
}

const RULES: usize = 7;

fn binding_at(end: &mut End) {
    let window = Window::new(&end.side.pd, WindowType::Two).expect("window");
    let memory = end.region(16, EVERYTHING);
    let unbindable = end.region(16, Access::LOCAL_WRITE);
    let read_only = end.region(16, Access::MW_BIND);
    let right = BindWindow {
        window: window.rkey(),
        rkey: RKey(window.rkey().0 ^ 1),
        region: memory.lkey(),
        addr: memory.iova(),
        len: 16,
        access: AccessFlags::REMOTE_WRITE,
    };
    let of = |region: &Region, change: fn(&mut BindWindow)| {
        let mut bind = BindWindow {
            region: region.lkey(),
            addr: region.iova(),
            ..right
        };
        change(&mut bind);
        bind
    };
    let rules: [(BindWindow, VendorError); RULES] = [
        (of(&unbindable, |_| {}), VendorError::BIND_REFUSED),
        (of(&read_only, |_| {}), VendorError::BIND_REFUSED),
        (of(&memory, |b| b.len = 17), VendorError::OUT_OF_BOUNDS),
        (
            of(&memory, |b| b.rkey.0 ^= 0x100),
            VendorError::BIND_REFUSED,
        ),
        (
            of(&memory, |b| b.access = AccessFlags::LOCAL_WRITE),
            VendorError::BIND_REFUSED,
        ),
        (of(&memory, |b| b.window.0 ^= 2), VendorError::RKEY_UNKNOWN),
        (of(&memory, |b| b.len = 0), VendorError::BIND_REFUSED),
    ];
    for (bind, rule) in rules {
        let conn = end.open(QpType::Rc);
        let done = end.attempt(&conn, SendOp::BindWindow(bind), &[]);
        assert_eq!(
            (done.status, done.vendor_err),
            (WcStatus::MW_BIND_ERR, rule)
        );
        assert_eq!(window.bound(), None);
    }
    end.meet();
}

fn gone_from(end: &mut End) {
    let conn = end.open(QpType::Rc);
    let remote = end.offered();
    let local = end.filled(&[0xaa; 4096]);
    // Writes until the other side has had enough.
    let status = loop {
        let done = end.attempt(&conn, SendOp::Write(remote), &[local.sge(0, 4096)]);
        if done.status != WcStatus::SUCCESS {
            break done.status;
        }
    };
    assert_eq!(status, WcStatus::REM_ACCESS_ERR);
    end.meet();
}

fn gone_at(end: &mut End) {
    let _conn = end.open(QpType::Rc);
    let pages = Pages::new();
    let region = register(end, &pages, EVERYTHING).expect("region");
    end.offer(&region);
    crate::support::eventually("the first byte", || content(&region)[0] == 0xaa);
    region.deregister().expect("no window");
    // SAFETY: the page is ours, mapped and written by nobody any more.
    let bytes = unsafe { std::slice::from_raw_parts_mut(pages.start.cast::<u8>().as_ptr(), PAGE) };
    bytes.fill(0);
    end.meet();
    assert!(bytes.iter().all(|byte| *byte == 0), "placed afterwards");
}
