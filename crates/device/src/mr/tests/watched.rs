//! Memory that is watched: what is refused when it is gone, and that nothing is copied once it is another's.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use oarlock_memwatch::{Error as WatchError, Policy, Region as Watch, Watcher};
use oarlock_transport::{AtomicOp, BindWindow, RemoteAccess};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::super::watched::hooks;
use super::super::window::WindowInner;
use super::*;

/// Pages at an address that the kernel gives to nobody unasked, so that a hole in them stays one.
struct Block {
    addr: u64,
    len: usize,
}

impl Block {
    fn new(pages: usize) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        let len = pages * PAGE;
        let addr = NEXT.fetch_add(len + PAGE, Ordering::Relaxed) as u64;
        let block = Self { addr, len };
        block.map(MapFlags::FIXED_NOREPLACE);
        block
    }

    fn map(&self, how: MapFlags) {
        let open = ProtFlags::READ | ProtFlags::WRITE;
        let at = self.addr as usize as *mut _;
        // SAFETY: addresses of this block's own, without references to them.
        unsafe { mmap_anonymous(at, self.len, open, MapFlags::PRIVATE | how) }.expect("mmap");
    }

    fn fill(&self, byte: u8) {
        // SAFETY: mapped and writable; who else writes does so by system calls.
        unsafe { (self.addr as usize as *mut u8).write_bytes(byte, self.len) };
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: mapped and readable, and nobody writes while this is called.
        unsafe { std::slice::from_raw_parts(self.addr as usize as *const u8, self.len) }.to_vec()
    }

    fn unmap(&self) {
        // SAFETY: as in `map`.
        unsafe { munmap(self.addr as usize as *mut _, self.len) }.expect("munmap");
    }

    /// The program gives the memory back, and gets other memory at the same address.
    fn recycle(&self) {
        self.unmap();
        self.map(MapFlags::FIXED_NOREPLACE);
        self.fill(OTHERS);
    }

    fn watched(&self, watcher: &Watcher) -> Watch {
        let cookie = self.addr;
        let start = self.addr as usize;
        let watch = watcher.register(start, self.len, cookie, Policy::Report);
        watch.expect("watched")
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// What is in memory that is somebody else's by now.
const OTHERS: u8 = 0x5A;

impl Domain {
    fn watched(&self, block: &Block, watch: &Watch, access: AccessFlags) -> Region {
        // SAFETY: no references are made to the block while the device writes.
        let memory = unsafe { ForeignMemory::new(block.addr, block.len, access.contains(LOCAL)) };
        let memory = memory.watched(Some(watch.validity()));
        let place = (block.addr, block.addr, block.len);
        self.enter(PD, place, access, Backing::Foreign(memory))
    }
}

/// `None` was said on standard error.
fn watcher() -> Option<Watcher> {
    match Watcher::new() {
        Ok(watcher) => Some(watcher),
        Err(error @ WatchError::Unavailable { .. }) => {
            oarlock_sim::not_run("userfaultfd", error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Every use of a key of memory that is gone meets the error that the specification has for an unknown key, and what is
/// mapped there now stays as it is, and secret.
#[test]
fn keys_end_with_their_memory() {
    let Some(watcher) = watcher() else { return };
    let domain = Domain::new();
    let block = Block::new(2);
    let watch = block.watched(&watcher);
    let region = domain.watched(&block, &watch, ALL);
    let (rkey, lkey, addr) = (region.rkey(), region.lkey(), region.addr());
    let element = [sge(&region, 0, 8)];
    let window = |domain: &Domain| {
        let (key, window) =
            WindowInner::insert(&domain.regions, 10, PD, WindowType::Two).expect("room");
        let bind = BindWindow {
            window: RKey(key),
            rkey: RKey(key),
            region: lkey,
            addr,
            len: 64,
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
        };
        (window, bind)
    };
    let (_bound, bind) = window(&domain);
    let through = bind.rkey;
    domain.memory().bind(&bind).expect("bound");
    let add = AtomicOp::FetchAdd { add: 1 };
    let mut out = [0; 8];

    let mut memory = domain.memory();
    memory.write_remote(rkey, addr, b"before").expect("there");
    memory.write_remote(through, addr, b"b").expect("there");
    memory.read_remote(rkey, addr, &mut out).expect("there");
    memory.atomic(rkey, addr + 8, add).expect("there");
    memory.scatter(&element, 0, b"12345678").expect("there");
    memory.gather(&element, 0, &mut out).expect("there");
    assert_eq!(&out, b"12345678");
    drop(memory);

    block.recycle();
    let mut out = [0; 8];
    let mut memory = domain.memory();
    for key in [rkey, through] {
        let unknown = MemoryError::InvalidRemoteKey(key);
        assert_eq!(memory.write_remote(key, addr, b"after"), Err(unknown));
        assert_eq!(memory.read_remote(key, addr, &mut out), Err(unknown));
        let check = memory.check_remote(key, addr, 8, RemoteAccess::Read);
        assert_eq!(check, Err(unknown));
    }
    let unknown = MemoryError::InvalidRemoteKey(rkey);
    assert_eq!(memory.atomic(rkey, addr + 8, add), Err(unknown));
    let unknown = MemoryError::InvalidKey(lkey);
    assert_eq!(memory.scatter(&element, 0, b"12345678"), Err(unknown));
    assert_eq!(memory.gather(&element, 0, &mut out), Err(unknown));
    let (_unbound, bind) = window(&domain);
    assert_eq!(memory.bind(&bind), Err(unknown));
    drop(memory);
    for refused in [
        region.copy_in(0, b"after"),
        region.copy_out(0, &mut out),
        region.load_u64(0).map(drop),
        region.store_u64(0, 1),
    ] {
        assert!(
            matches!(refused, Err(Error::Invalidated { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(out, [0; 8], "nothing leaks");
    assert!(block.bytes().iter().all(|byte| *byte == OTHERS));

    // Bound windows keep it, as ever.
    let (region, _) = region.deregister().expect_err("a window is bound");
    drop(region);
    assert_eq!(domain.regions.len(), 0);
    assert_eq!(watch.deregister().expect("still there"), 0);
}

#[test]
fn a_region_without_windows_is_deregistered_when_its_memory_is_gone() {
    let Some(watcher) = watcher() else { return };
    let domain = Domain::new();
    let block = Block::new(1);
    let watch = block.watched(&watcher);
    let region = domain.watched(&block, &watch, ALL);
    block.recycle();
    region.deregister().expect("no windows");
    assert_eq!(domain.regions.len(), 0);
    assert!(block.bytes().iter().all(|byte| *byte == OTHERS));
}

/// The pages go before the event comes, and a call that discards them first reports it: whichever the device meets, and also
/// when the Watcher or the region's watch has ended, the key is what is wrong.
#[test]
fn whatever_ends_the_watch_ends_the_keys() {
    let Some(watcher) = watcher() else { return };
    let domain = Domain::new();
    for way in 0..4 {
        let block = Block::new(1);
        let mut watch = Some(block.watched(&watcher));
        let region = domain.watched(&block, watch.as_ref().expect("watched"), ALL);
        let unknown = Err(MemoryError::InvalidRemoteKey(region.rkey()));
        let write = || {
            domain
                .memory()
                .write_remote(region.rkey(), region.addr(), b"x")
        };
        write().expect("there");
        match way {
            0 => {
                // SAFETY: a page of our own, without references to it.
                let discarded =
                    unsafe { madvise(block.addr as usize as *mut _, PAGE, Advice::LinuxDontNeed) };
                discarded.expect("madvise");
            }
            1 => drop(watch.take()),
            2 => {
                let ended = watcher.deregister(block.addr).expect("watched");
                assert_eq!(ended, 0);
            }
            _ => {
                block.unmap();
                assert_eq!(write(), unknown);
                block.map(MapFlags::FIXED_NOREPLACE);
            }
        }
        assert_eq!(write(), unknown, "way {way}");
    }
    let block = Block::new(1);
    let watch = block.watched(&watcher);
    let region = domain.watched(&block, &watch, ALL);
    drop(watcher);
    let refused = domain
        .memory()
        .write_remote(region.rkey(), region.addr(), b"x");
    assert_eq!(refused, Err(MemoryError::InvalidRemoteKey(region.rkey())));
}

/// A Watcher is asked once for each batch, whatever uses its regions, and not at all by those who use none.
#[test]
fn a_watcher_is_asked_once_a_batch() {
    let (Some(watcher), Some(other)) = (watcher(), watcher()) else {
        return;
    };
    let domain = Domain::new();
    let blocks = [Block::new(1), Block::new(1), Block::new(1)];
    let watches = [
        blocks[0].watched(&watcher),
        blocks[1].watched(&watcher),
        blocks[2].watched(&other),
    ];
    let regions = [0, 1, 2].map(|i| domain.watched(&blocks[i], &watches[i], ALL));
    let pages = Pages::new(1);
    let plain = [domain.region(64, ALL), domain.foreign(&pages, ALL)];
    let probes = || hooks::PROBES.take();
    probes();
    let mut memory = domain.memory();
    for _ in 0..3 {
        for region in &plain {
            memory
                .write_remote(region.rkey(), region.addr(), b"x")
                .expect("there");
        }
    }
    assert_eq!(probes(), 0);
    for _ in 0..3 {
        for region in &regions {
            memory
                .write_remote(region.rkey(), region.addr(), b"x")
                .expect("there");
            let mut out = [0];
            memory
                .gather(&[sge(region, 0, 1)], 0, &mut out)
                .expect("there");
            assert_eq!(&out, b"x");
        }
    }
    assert_eq!(probes(), 2, "one for each Watcher");
    drop(memory);
    let mut memory = domain.memory();
    memory
        .write_remote(regions[1].rkey(), regions[1].addr(), b"x")
        .expect("there");
    assert_eq!(probes(), 1, "another batch");
}

/// Rounds in which memory is given back exactly between the check of the key and the copy. Returns in how many of them bytes
/// were copied into memory that was another's.
fn recycled_within_a_copy(is_weakened: bool, domain: &Domain, watcher: &Watcher) -> usize {
    let mut hits = 0;
    let mut rounds = 0;
    for _ in 0..MOST_ROUNDS {
        let block = Block::new(1);
        let watch = block.watched(watcher);
        let region = domain.watched(&block, &watch, ALL);
        let given_up = || watcher.statistics().expect("alive").holds_given_up;
        let before = given_up();
        let (now, told) = mpsc::channel::<()>();
        let (done, returned) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let block = &block;
            scope.spawn(move || {
                told.recv().expect("told");
                block.recycle();
                // The other one may have ended its wait.
                let _ = done.send(());
            });
            let wait = move || {
                now.send(()).expect("waits");
                // A call that waits for the copy has not returned then.
                let _ = returned.recv_timeout(WITHIN_COPY);
            };
            let mut once = Some(wait);
            let call = move || {
                if let Some(wait) = once.take() {
                    wait();
                }
            };
            hooks::BEFORE_COPY.set(Some(Box::new(call)));
            hooks::WEAKENED.set(is_weakened);
            let written = domain
                .memory()
                .write_remote(region.rkey(), region.addr(), b"late");
            hooks::WEAKENED.set(false);
            hooks::BEFORE_COPY.set(None);
            // Found there before the pages went, or found gone.
            if let Err(error) = written {
                assert_eq!(error, MemoryError::InvalidRemoteKey(region.rkey()));
            }
        });
        // On a machine that is very busy the wait above can outlast the reader's patience.
        if given_up() > before {
            continue;
        }
        rounds += 1;
        hits += usize::from(block.bytes().iter().any(|byte| *byte != OTHERS));
        if rounds == ROUNDS {
            return hits;
        }
    }
    panic!("{rounds} of {MOST_ROUNDS} rounds could be judged");
}

const ROUNDS: usize = 5;
const MOST_ROUNDS: usize = 20;
const WITHIN_COPY: Duration = Duration::from_millis(20);

/// The call that takes memory away does not return before a copy that is under way has ended. A look at the mark alone
/// is not enough.
#[test]
fn a_copy_under_way_is_waited_for() {
    let Some(watcher) = watcher() else { return };
    let domain = Domain::new();
    let hits = recycled_within_a_copy(true, &domain, &watcher);
    assert!(hits > 0, "the test could not fail");
    assert_eq!(recycled_within_a_copy(false, &domain, &watcher), 0);
}
