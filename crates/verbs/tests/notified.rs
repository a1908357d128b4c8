//! Memory of the program in place: regions whose end is told, and a cache of registrations.

#[path = "support/end.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared by the tests"
)]
mod end;
#[path = "support/pair.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared with the crate's examples"
)]
mod pair;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use end::{End, ends, eventually};
use oarlock_memwatch::{
    CacheOptions, Error as WatchError, Event, GenerationPage, Kind, Lookup, MrCache, Policy,
};
use oarlock_verbs::*;

/// Pages at addresses that the kernel gives to nobody unasked, so that a hole in them stays one. Reached by copies only.
struct Block {
    start: usize,
    len: usize,
}

const PAGE: usize = 4096;
const OLD: u8 = 0xA1;
/// What is in memory that is used for something else by now.
const OTHERS: u8 = 0x5A;

impl Block {
    fn new(pages: usize) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        let len = pages * PAGE;
        let start = NEXT.fetch_add(len + PAGE, Ordering::Relaxed);
        let block = Self { start, len };
        block.map();
        block.fill(OLD);
        block
    }

    fn map(&self) {
        let open = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: addresses of this block's own, where nothing is mapped.
        let mapped = unsafe { libc::mmap(self.start as *mut _, self.len, open, flags, -1, 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
    }

    fn unmap(&self) {
        // SAFETY: addresses of this block's own, without references to them.
        assert_eq!(unsafe { libc::munmap(self.start as *mut _, self.len) }, 0);
    }

    fn fill(&self, byte: u8) {
        // SAFETY: mapped and writable; the device writes there by system calls.
        unsafe { (self.start as *mut u8).write_bytes(byte, self.len) };
    }

    fn recycle(&self) {
        self.unmap();
        self.map();
        self.fill(OTHERS);
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: mapped and readable, and nobody writes.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) }.to_vec()
    }

    fn is_all(&self, byte: u8) -> bool {
        self.bytes().iter().all(|found| *found == byte)
    }

    fn register(
        &self,
        end: &End,
        channel: &MemoryChannel,
        cookie: u64,
        policy: Policy,
    ) -> Result<NotifiedRegion, Error> {
        let rights = pair::all_rights();
        // SAFETY: the block is reached by copies only.
        unsafe {
            end.pd
                .register_notified(channel, self.start, self.len, rights, cookie, policy)
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// A channel; `None` was said on standard error.
fn channel(end: &End) -> Option<MemoryChannel> {
    match MemoryChannel::new(&end.context) {
        Ok(channel) => Some(channel),
        Err(Error::Memory(error @ WatchError::Unavailable { .. })) => {
            oarlock_sim::not_run("userfaultfd", error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn cache(end: &End) -> Option<MrCache<ProtectionDomain>> {
    match MrCache::new(end.pd.clone(), CacheOptions::default()) {
        Ok(cache) => Some(cache),
        Err(error @ WatchError::Unavailable { .. }) => {
            oarlock_sim::not_run("userfaultfd", error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn is_readable(channel: &MemoryChannel) -> bool {
    let mut fd = libc::pollfd {
        fd: std::os::fd::AsRawFd::as_raw_fd(&channel.as_fd()),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&raw mut fd, 1, 0) == 1 }
}

fn events(channel: &MemoryChannel) -> Vec<Event> {
    let mut events = Vec::new();
    channel.read_events(&mut events, 64).expect("alive");
    events
}

/// R-MEM-2: the channel is one per context, there before its first region, and can be polled; its events name the region by its
/// cookie, and its keys are dead by then.
#[test]
fn a_region_ends_with_its_memory_and_the_channel_tells() {
    let (a, b) = ends(QpInitAttr::default());
    let Some(channel) = channel(&b) else { return };
    let again = MemoryChannel::new(&b.context);
    assert!(matches!(again, Err(Error::MemoryChannelExists)));
    let page = GenerationPage::map(channel.generation_page().expect("page")).expect("map");
    let block = Block::new(3);
    let region = block
        .register(&b, &channel, 42, Policy::Report)
        .expect("region");
    assert_eq!((region.addr(), region.len()), (block.start, block.len));
    let before = channel.generation();

    // In place, both ways: a WRITE of the peer, a message of ours, a receive.
    a.qp.post_send(SendRequest::write(1, Inline(b"written"), region.at(10)))
        .expect("post");
    a.ok();
    assert_eq!(&block.bytes()[10..17], b"written");
    a.qp.post_recv(2, a.empty(64)).expect("post");
    let two = [
        region.element(block.start + 10, 7),
        region.element(block.start, 3),
    ];
    b.qp.post_send(SendRequest::new(3, Elements::from(two)))
        .expect("post");
    b.ok();
    assert_eq!(a.ok().message(), Some(&b"written\xA1\xA1\xA1"[..]));
    let end = block.start + block.len - 5;
    b.qp.post_recv_into(4, region.element(end, 5))
        .expect("post");
    a.qp.post_send(SendRequest::inline(5, b"there"))
        .expect("post");
    a.ok();
    assert_eq!(b.ok().byte_len, 5);
    assert!(block.bytes().ends_with(b"there"));
    let theirs = RemoteMemory::new(&a.pd, 64, pair::all_rights()).expect("memory");
    theirs.store_u64(0, 5).expect("inside");
    let word = || region.element(block.start, 8);
    b.qp.post_send(SendRequest::fetch_add(6, word(), theirs.at(0), 2))
        .expect("post");
    b.ok();
    assert_eq!(block.bytes()[..8], 5_u64.to_ne_bytes());
    b.qp.post_send(SendRequest::read(7, word(), theirs.at(0)))
        .expect("post");
    b.ok();
    assert_eq!(block.bytes()[..8], 7_u64.to_ne_bytes());
    assert!(!is_readable(&channel));
    assert_eq!((page.get(), channel.generation()), (before, before));

    std::thread::scope(|scope| scope.spawn(|| block.recycle()).join().expect("recycled"));
    channel.settle().expect("alive");
    assert!(is_readable(&channel));
    assert!(!region.is_valid());
    assert_eq!(page.get(), before + 1);
    let told = events(&channel);
    let [Event::Invalidated(event), Event::Last { generation }] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((event.cookie, event.kind), (42, Kind::Unmapped));
    assert_eq!(*generation, page.get());
    a.qp.post_send(SendRequest::write(8, Inline(b"late"), region.at(0)))
        .expect("post");
    assert_eq!(a.one().status, WcStatus::REM_ACCESS_ERR);
    b.qp.post_send(SendRequest::new(9, word())).expect("post");
    // The queue pair may have noticed its peer's error before.
    assert!(matches!(
        b.one().status,
        WcStatus::LOC_PROT_ERR | WcStatus::WR_FLUSH_ERR
    ));
    assert!(block.is_all(OTHERS));
    assert_eq!(
        region
            .deregister()
            .map_err(|(_, error)| error)
            .expect("there"),
        1
    );
    assert_eq!(channel.regions().expect("alive"), 0);
    drop(channel);
    MemoryChannel::new(&b.context).expect("the one before has gone");
}

/// R-MEM-1: deregistering says how many events were read; none comes afterwards, and the cookie is free.
#[test]
fn deregistering_counts_events_and_drops_the_unread() {
    let (_a, b) = ends(QpInitAttr::default());
    let Some(channel) = channel(&b) else { return };
    let block = Block::new(1);
    let region = block
        .register(&b, &channel, 1, Policy::Report)
        .expect("region");
    let refused = block.register(&b, &channel, 1, Policy::Report);
    assert!(matches!(
        refused,
        Err(Error::Memory(WatchError::CookieInUse { cookie: 1 }))
    ));
    block.recycle();
    assert_eq!(
        region
            .deregister()
            .map_err(|(_, error)| error)
            .expect("there"),
        0
    );
    assert_eq!(events(&channel).len(), 1, "nothing but the last");
    assert!(!is_readable(&channel));
    let region = block
        .register(&b, &channel, 1, Policy::Report)
        .expect("free again");
    assert!(region.is_valid());
    drop(region);
    assert_eq!(channel.regions().expect("alive"), 0);
    assert_eq!(b.context.region_count(), 0);
}

/// R-MEM-4: all regions that have been notified go in one call, with their entries in the device, also if windows are bound to
/// them. The others stay.
#[test]
fn all_notified_regions_are_deregistered_in_one_call() {
    let (a, b) = ends(QpInitAttr::default());
    let Some(channel) = channel(&b) else { return };
    let blocks: Vec<_> = (0..4).map(|_| Block::new(1)).collect();
    let regions: Vec<_> = blocks
        .iter()
        .zip(10..)
        .map(|(block, cookie)| {
            block
                .register(&b, &channel, cookie, Policy::Report)
                .expect("region")
        })
        .collect();
    assert_eq!(b.context.region_count(), 4);
    blocks[0].recycle();
    events(&channel);
    blocks[2].recycle();
    let mut ended = channel.deregister_notified().expect("alive");
    ended.sort_by_key(|one| one.cookie);
    let told: Vec<_> = ended
        .iter()
        .map(|one| (one.cookie, one.reported, one.unread.is_some()))
        .collect();
    assert_eq!(told, [(10, 1, false), (12, 0, true)]);
    assert_eq!(b.context.region_count(), 2);
    assert!(!is_readable(&channel));
    // The cookie is another's now, whom the old handle does not harm.
    let again = blocks[0]
        .register(&b, &channel, 10, Policy::Report)
        .expect("free");
    for (region, was_ended) in regions.into_iter().zip([true, false, true, false]) {
        match region.deregister() {
            Ok(reported) => assert!(!was_ended && reported == 0),
            Err((region, error)) => {
                assert!(was_ended, "{error}");
                let ended = matches!(error, Error::Memory(WatchError::UnknownCookie { .. }));
                assert!(ended, "{error}");
                assert!(!region.is_valid());
            }
        }
    }
    assert!(again.is_valid());
    a.qp.post_send(SendRequest::write(1, Inline(b"x"), again.at(0)))
        .expect("post");
    a.ok();
}

/// R-MEM-4: with the policy nobody reads, and nothing is left: the keys are dead at once, the device forgets the region soon, and
/// its cookie can be used again.
#[test]
fn regions_with_the_policy_go_by_themselves() {
    let (a, b) = ends(QpInitAttr::default());
    let Some(channel) = channel(&b) else { return };
    let blocks: Vec<_> = (0..8).map(|_| Block::new(1)).collect();
    let register = |block: &Block, cookie| block.register(&b, &channel, cookie, Policy::Deregister);
    let regions: Vec<_> = (blocks.iter().zip(0..))
        .map(|(block, cookie)| register(block, cookie).expect("region"))
        .collect();
    assert_eq!(b.context.region_count(), 8);
    for block in &blocks[..7] {
        block.recycle();
    }
    eventually("the device forgets them", || b.context.region_count() == 1);
    assert!(!is_readable(&channel));
    assert_eq!(events(&channel).len(), 1, "nothing but the last");
    assert!(regions[7].is_valid());
    let again = register(&blocks[0], 0).expect("the cookie is free");
    assert!(again.is_valid());
    a.qp.post_send(SendRequest::write(1, Inline(b"x"), again.at(0)))
        .expect("post");
    a.ok();
    a.qp.post_send(SendRequest::write(2, Inline(b"x"), regions[1].at(0)))
        .expect("post");
    assert_eq!(a.one().status, WcStatus::REM_ACCESS_ERR);
    assert!(blocks[1].is_all(OTHERS));
    drop((regions, again));
    assert_eq!(b.context.region_count(), 0);
}

#[test]
fn what_cannot_be_registered_is_refused_and_leaves_nothing() {
    let (a, b) = ends(QpInitAttr::default());
    let Some(channel) = channel(&b) else { return };
    let block = Block::new(1);
    let refused = block.register(&a, &channel, 1, Policy::Report);
    assert!(matches!(
        refused,
        Err(Error::Device(DeviceError::OtherContext { .. }))
    ));
    let register = |start: usize, len: usize, access: Access| {
        // SAFETY: the block is reached by copies only.
        unsafe {
            b.pd.register_notified(&channel, start, len, access, 1, Policy::Report)
        }
    };
    let refused = register(block.start, block.len + 1, Access::LOCAL_WRITE);
    assert!(matches!(
        refused,
        Err(Error::Memory(WatchError::NotMapped { .. }))
    ));
    // The device's reasons: the watch has ended again.
    let refused = register(block.start, block.len, Access::REMOTE_WRITE);
    assert!(matches!(
        refused,
        Err(Error::Device(DeviceError::LocalWriteMissing { .. }))
    ));
    assert_eq!(channel.regions().expect("alive"), 0);
    assert_eq!(b.context.region_count(), 0);
    drop(register(block.start, block.len, Access::LOCAL_WRITE).expect("right"));
}

/// Neither the device's order nor the program's matters.
#[test]
fn handles_may_go_in_any_order() {
    let (_a, b) = ends(QpInitAttr::default());
    let Some(channel) = channel(&b) else { return };
    let block = Block::new(1);
    let region = block
        .register(&b, &channel, 1, Policy::Deregister)
        .expect("region");
    drop(channel);
    // The region keeps the channel.
    let again = MemoryChannel::new(&b.context);
    assert!(matches!(again, Err(Error::MemoryChannelExists)));
    block.recycle();
    let channel = region.channel().clone();
    channel.settle().expect("alive");
    assert!(!region.is_valid());
    drop(region);
    assert_eq!(channel.regions().expect("alive"), 0);
    drop(channel);
    MemoryChannel::new(&b.context).expect("the one before has gone");
}

/// Registrations of a cache serve until their memory goes, also at both ends of a message; then the next lookup finds the new
/// memory, and whoever has kept the old names does no harm.
#[test]
fn a_cache_over_the_device_never_serves_other_memory() {
    let (a, b) = ends(QpInitAttr::default());
    let (Some(sending), Some(receiving)) = (cache(&a), cache(&b)) else {
        return;
    };
    let (from, to) = (Block::new(20), Block::new(20));
    let len = from.len;
    for round in 0_u8..4 {
        from.fill(round);
        // SAFETY: the blocks are reached by copies only.
        let (source, sink) = unsafe {
            let get = |cache: &MrCache<ProtectionDomain>, block: &Block, access| {
                let got = cache.get(block.start, len, access, Lookup::Strict);
                got.expect("registered").keep()
            };
            (
                get(&sending, &from, Access::empty()),
                get(&receiving, &to, Access::LOCAL_WRITE),
            )
        };
        b.qp.post_recv_into(1, sink.element(to.start, len as u32))
            .expect("post");
        let message = source.element(from.start, len as u32);
        a.qp.post_send(SendRequest::new(2, message)).expect("post");
        a.ok();
        b.ok();
        assert!(to.is_all(round));
        if round % 2 == 1 {
            from.recycle();
            to.recycle();
            let are_gone = || !source.is_valid() && !sink.is_valid();
            eventually("the marks", are_gone);
        }
    }
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // SAFETY: the blocks are reached by copies only.
    let offered = unsafe { receiving.get(to.start, len, rights, Lookup::Strict) };
    let offered = offered.expect("registered").keep();
    a.qp.post_send(SendRequest::write(3, Inline(b"x"), offered.at(0)))
        .expect("post");
    a.ok();
    to.recycle();
    a.qp.post_send(SendRequest::write(4, Inline(b"x"), offered.at(0)))
        .expect("post");
    assert_eq!(a.one().status, WcStatus::REM_ACCESS_ERR);
    assert!(to.is_all(OTHERS));
}

/// No peer gets more of the memory than it was given.
#[test]
fn rights_of_peers_are_not_merged() {
    use oarlock_memwatch::Registrar;
    type Pd = ProtectionDomain;
    let (local, remote) = (
        Access::LOCAL_WRITE,
        Access::LOCAL_WRITE | Access::REMOTE_READ,
    );
    assert_eq!(Pd::union(Access::empty(), local), Some(local));
    assert_eq!(Pd::union(local, remote), None);
    assert_eq!(Pd::union(remote, remote), Some(remote));
    assert!(Pd::covers(remote, local) && !Pd::covers(local, remote));
    let (_a, b) = ends(QpInitAttr::default());
    let block = Block::new(1);
    let access = Access::LOCAL_WRITE | Access::ZERO_BASED;
    // SAFETY: the block is reached by copies only.
    let refused = unsafe { b.pd.register(block.start, block.len, access, None) };
    assert!(matches!(
        refused,
        Err(Error::Device(DeviceError::UnsupportedAccess {
            flag: "ZERO_BASED",
            ..
        }))
    ));
    // SAFETY: as above.
    let plain = unsafe { b.pd.register(block.start, block.len, Access::empty(), None) };
    assert_eq!(plain.expect("registered").len(), block.len);
}
