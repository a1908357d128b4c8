//! Keys, rights, bounds and guards, without a packet. What needs no system call also runs under Miri.

mod ahead;
mod local;
mod registration;
mod remote;
mod watched;
mod windows;

use std::ptr::NonNull;
use std::sync::Arc;

use oarlock_transport::{AccessFlags, Memory, MemoryError, Sge};
use oarlock_wire::{LKey, Qpn};

use super::foreign::ForeignMemory;
use super::region::{Backing, Registration};
use super::*;
use crate::counters::Counters;

/// A table and what its queue pairs count; protection domains are numbers here.
struct Domain {
    regions: Arc<RegionTable>,
    counters: Counters,
    probe: Probe,
}

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND);
const LOCAL: AccessFlags = AccessFlags::LOCAL_WRITE;
const PD: u32 = 1;
const QPN: Qpn = Qpn::truncate(0x100);
/// For tests without memory that is watched.
static PROBE: Probe = Probe::new();
const OTHER_QPN: Qpn = Qpn::truncate(0x101);

impl Domain {
    fn new() -> Self {
        Self {
            regions: Arc::new(RegionTable::new()),
            counters: Counters::default(),
            probe: Probe::new(),
        }
    }

    /// A region of the library's memory whose addresses count from `iova`.
    fn region_at(&self, iova: u64, len: usize, access: AccessFlags) -> Region {
        let memory = OwnedMemory::new(len).expect("memory");
        let addr = memory.start().as_ptr() as u64;
        self.enter(
            PD,
            (addr, iova, len),
            access,
            Backing::Owned(Arc::new(memory)),
        )
    }

    fn region(&self, len: usize, access: AccessFlags) -> Region {
        self.region_of(PD, len, access)
    }

    fn region_of(&self, pd: u32, len: usize, access: AccessFlags) -> Region {
        let memory = OwnedMemory::new(len).expect("memory");
        let addr = memory.start().as_ptr() as u64;
        self.enter(
            pd,
            (addr, addr, len),
            access,
            Backing::Owned(Arc::new(memory)),
        )
    }

    /// A region of the program's memory.
    fn foreign(&self, pages: &Pages, access: AccessFlags) -> Region {
        let writable = access.contains(LOCAL);
        // SAFETY: no references are made to the pages.
        let memory = unsafe { ForeignMemory::new(pages.addr(), pages.len, writable) };
        let place = (pages.addr(), pages.addr(), pages.len);
        self.enter(PD, place, access, Backing::Foreign(memory))
    }

    fn enter(
        &self,
        pd: u32,
        (addr, iova, len): (u64, u64, usize),
        access: AccessFlags,
        backing: Backing,
    ) -> Region {
        let registration = Registration {
            key: 0,
            pd,
            access,
            iova,
            len: len as u64,
            backing,
        };
        register::enter(&self.regions, 1000, addr, registration).expect("there is room")
    }

    fn memory_by<'a>(&'a self, ways: Ways<'a>) -> PdMemory<'a> {
        self.probe.renew();
        PdMemory::new(&self.regions, PD, QPN, &self.counters, &self.probe, ways)
    }

    fn memory(&self) -> PdMemory<'_> {
        self.memory_of(PD, QPN)
    }

    fn memory_of(&self, pd: u32, qpn: Qpn) -> PdMemory<'_> {
        self.probe.renew();
        PdMemory::new(
            &self.regions,
            pd,
            qpn,
            &self.counters,
            &self.probe,
            Ways::NONE,
        )
    }
}

/// Anonymous pages between two that cannot be touched.
struct Pages {
    start: NonNull<u8>,
    len: usize,
}

const PAGE: usize = 4096;

impl Pages {
    fn new(pages: usize) -> Self {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        let len = pages * PAGE;
        // SAFETY: a new mapping at an address that the kernel chooses, of which a part is opened.
        let start = unsafe {
            let null = std::ptr::null_mut();
            let whole = mmap_anonymous(null, len + 2 * PAGE, ProtFlags::empty(), MapFlags::PRIVATE);
            let start = whole.expect("mmap").cast::<u8>().add(PAGE);
            let open = MprotectFlags::READ | MprotectFlags::WRITE;
            mprotect(start.cast(), len, open).expect("mprotect");
            NonNull::new(start).expect("not null")
        };
        Self { start, len }
    }

    fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    fn protect(&self, flags: rustix::mm::MprotectFlags) {
        // SAFETY: our own mapping, without references to it.
        unsafe { rustix::mm::mprotect(self.start.as_ptr().cast(), self.len, flags) }
            .expect("mprotect");
    }

    /// Protects one page.
    fn protect_one(&self, page: usize, flags: rustix::mm::MprotectFlags) {
        assert!(page < self.len / PAGE);
        // SAFETY: a page of our own mapping, without references to it.
        unsafe { rustix::mm::mprotect(self.start.as_ptr().add(page * PAGE).cast(), PAGE, flags) }
            .expect("mprotect");
    }

    fn unmap(&self) {
        // SAFETY: as above; what is unmapped twice is unmapped.
        unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) }.expect("munmap");
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, without references to it.
        unsafe {
            let whole = self.start.as_ptr().sub(PAGE);
            rustix::mm::munmap(whole.cast(), self.len + 2 * PAGE).expect("munmap");
        }
    }
}

fn sge(region: &Region, offset: u64, len: u32) -> Sge {
    region.sge(offset, len)
}

fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.copy_out(0, &mut bytes).expect("inside");
    bytes
}
