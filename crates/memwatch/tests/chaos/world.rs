//! What one thread does: to pages of its own, to the heap, to blocks of the allocator, and with other threads and processes.

use std::ops::Range;
use std::sync::{LazyLock, Mutex, mpsc};
use std::thread;

use libc::c_void;
use oarlock_memwatch::Lookup;
use oarlock_sim::Rng;

use crate::caches::{Cache, Held};
use crate::support::*;
use crate::{LARGEST, THREADS, Tally, count};

const PAGES: usize = 64;
const OPERATIONS: usize = 300;

/// In the order of the weights in [`World::step`].
pub(crate) const KINDS: [&str; 12] = [
    "map over",
    "unmap",
    "discard",
    "free lazily",
    "move",
    "protect",
    "brk",
    "thread",
    "fork",
    "spawn",
    "blocks",
    "hold",
];

/// The heap grows and shrinks at its end: one thread at a time, and only the one that grew it last.
static HEAP: Mutex<()> = Mutex::new(());

/// What is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Pages of the thread's own.
    Pages,
    /// A block of the allocator.
    Block,
    /// Memory that will soon be gone: no second strict lookup.
    Once,
}

pub(crate) struct World<'a> {
    cache: &'a dyn Cache,
    tally: &'a Tally,
    rng: Rng,
    arena: Pages,
    /// The contents that each page must show; `None`: nothing is mapped there.
    model: [Option<u64>; PAGES],
    serial: u64,
    blocks: Vec<Vec<u64>>,
    held: Vec<Box<dyn Held + 'a>>,
}

impl<'a> World<'a> {
    pub(crate) fn new(cache: &'a dyn Cache, tally: &'a Tally, seed: u64, number: u64) -> Self {
        // Where the kernel puts nothing by itself, so that nobody is given the holes.
        let start = 0x2200_0000_0000 + number as usize * (PAGES * PAGE + (1 << 30));
        let mut this = Self {
            cache,
            tally,
            rng: Rng::new(seed * THREADS + number),
            arena: Pages {
                start: map(Some(start), PAGES * PAGE),
                len: PAGES * PAGE,
            },
            model: [None; PAGES],
            serial: seed << 32 | number << 24,
            blocks: Vec::new(),
            held: Vec::new(),
        };
        this.fill(0..PAGES);
        this
    }

    pub(crate) fn run(mut self) {
        for _ in 0..OPERATIONS {
            self.step();
            self.look_up_pages();
            self.look_up_block();
        }
        self.held.clear();
        self.arena.unmap();
    }

    fn step(&mut self) {
        let kind = match self.rng.below(100) {
            0..10 => 0,
            10..20 => 1,
            20..28 => 2,
            28..34 => 3,
            34..46 => 4,
            46..50 => 5,
            50..54 => 6,
            54..56 => 7,
            56..57 => 8,
            57..58 => 9,
            58..96 => 10,
            _ => 11,
        };
        let range = self.pages();
        let mapped = self.model[range.clone()].iter().all(Option::is_some);
        match kind {
            0 => self.map_over(range),
            1 => {
                self.arena.unmap_part(range.clone());
                self.model[range].fill(None);
            }
            2 if mapped => {
                self.arena.discard(range.clone());
                self.fill(range);
            }
            3 if mapped => {
                let part = self.arena.part(range.clone());
                // SAFETY: pages of this thread's own, which it writes to again before it looks.
                let result = unsafe {
                    libc::madvise(part.start as *mut c_void, part.len(), libc::MADV_FREE)
                };
                assert_eq!(result, 0);
                self.fill(range);
            }
            4 => self.remap(range),
            5 if mapped => self.protect(range),
            6 => self.heap(),
            7 => self.thread(),
            8 => fork(),
            9 => {
                let status = std::process::Command::new("true").status();
                assert!(status.is_ok_and(|status| status.success()));
            }
            10 => self.block(),
            11 => self.hold(range),
            _ => return,
        }
        count(&self.tally.operations[kind]);
    }

    fn pages(&mut self) -> Range<usize> {
        let start = self.rng.index(PAGES);
        start..start + 1 + self.rng.index((PAGES - start).min(12))
    }

    /// New contents for pages that are mapped and can be written to.
    fn fill(&mut self, range: Range<usize>) {
        for page in range {
            self.serial += 1;
            self.model[page] = Some(self.serial);
            // SAFETY: a mapped page of this thread's own.
            unsafe { page_at(self.arena.start + page * PAGE) }.fill(self.serial);
        }
    }

    fn map_over(&mut self, range: Range<usize>) {
        let part = self.arena.part(range.clone());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: pages of this thread's own, that it does not refer to.
        let start =
            unsafe { libc::mmap(part.start as *mut c_void, part.len(), prot, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        self.fill(range);
    }

    /// Moves pages onto others, which go; what they leave behind is empty, or a hole.
    fn remap(&mut self, from: Range<usize>) {
        let to = self.rng.index(PAGES - from.len() + 1);
        let to = to..to + from.len();
        if !(from.end <= to.start || to.end <= from.start) {
            return;
        }
        if self.model[from.clone()].contains(&None) {
            return;
        }
        let (source, target) = (self.arena.part(from.clone()), self.arena.part(to.clone()));
        let keep = self.rng.chance(0.5);
        let keep_flag = if keep { libc::MREMAP_DONTUNMAP } else { 0 };
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | keep_flag;
        let (address, len) = (source.start as *mut c_void, source.len());
        // SAFETY: pages of this thread's own, that it does not refer to.
        let moved = unsafe { libc::mremap(address, len, len, flags, target.start as *mut c_void) };
        if moved == libc::MAP_FAILED {
            // The source is several mappings; the target may be unmapped by then, and some of the source moved (Linux 6.17).
            self.map_over(from);
            return self.map_over(to);
        }
        for (source, target) in from.clone().zip(to) {
            self.model[target] = self.model[source].take();
        }
        if keep {
            self.fill(from);
        }
    }

    /// Without access and back: the pages stay what they are.
    fn protect(&self, range: Range<usize>) {
        let part = self.arena.part(range);
        for prot in [libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE] {
            // SAFETY: pages of this thread's own, that it does not touch in between.
            let result = unsafe { libc::mprotect(part.start as *mut c_void, part.len(), prot) };
            assert_eq!(result, 0);
        }
    }

    /// Pages at the end of the heap, given back, taken again.
    fn heap(&mut self) {
        let _last = HEAP.lock();
        const LEN: usize = 4 * PAGE;
        // SAFETY: only what this call added is taken away, unless somebody else has added more meanwhile.
        unsafe {
            let end = libc::sbrk(0) as usize;
            let rounded = end.next_multiple_of(PAGE) - end;
            if libc::sbrk((rounded + LEN) as isize) as usize != end {
                return;
            }
            let start = end + rounded;
            for _ in 0..2 {
                self.serial += 1;
                for page in 0..LEN / PAGE {
                    page_at(start + page * PAGE).fill(self.serial);
                }
                self.judge(start, LEN, What::Once);
                if libc::sbrk(0) as usize != start + LEN {
                    return;
                }
                libc::sbrk(-(LEN as isize));
                if libc::sbrk(LEN as isize) as usize != start {
                    return;
                }
            }
            if libc::sbrk(0) as usize == start + LEN {
                libc::sbrk(-((rounded + LEN) as isize));
            }
        }
    }

    /// Threads whose stacks the next one is given, with registrations of what they had there.
    fn thread(&mut self) {
        for _ in 0..2 {
            self.serial += 1;
            let (serial, cache, tally) = (self.serial, self.cache, self.tally);
            thread::scope(|scope| {
                scope.spawn(move || {
                    let local = std::hint::black_box([serial; 4 * PAGE / 8]);
                    let start = local.as_ptr() as usize;
                    // SAFETY: a local that nobody else knows.
                    unsafe { judge(cache, tally, start, size_of_val(&local), What::Once) };
                });
            });
        }
    }

    /// Allocates, frees, grows or shrinks.
    fn block(&mut self) {
        for _ in 0..4 {
            self.serial += 1;
            // From some bytes to half a mebibyte: small classes, large ones, and mappings of their own. Sizes and so addresses come again.
            let odd = if self.rng.chance(0.2) {
                self.rng.index(64)
            } else {
                0
            };
            let words = (1 << (4 + self.rng.below(13))) + odd;
            let full = self.blocks.len() >= 24;
            let which = self.rng.index(self.blocks.len().max(1));
            match self.rng.below(4) {
                0 if !self.blocks.is_empty() => drop(self.blocks.swap_remove(which)),
                1 if !self.blocks.is_empty() => {
                    let block = &mut self.blocks[which];
                    block.clear();
                    block.shrink_to(words);
                    block.resize(words, self.serial);
                }
                _ if full => drop(self.blocks.swap_remove(which)),
                _ => self.blocks.push(vec![self.serial; words]),
            }
        }
    }

    /// A registration that is in use while its memory changes.
    fn hold(&mut self, range: Range<usize>) {
        if self.held.len() > 4 {
            self.held.swap_remove(self.rng.index(5));
        }
        let part = self.arena.part(range);
        // SAFETY: pages of this thread's own.
        self.held
            .extend(unsafe { self.cache.hold(part.start, part.len()) });
    }

    fn look_up_pages(&mut self) {
        let range = self.pages();
        let part = self.arena.part(range.clone());
        // Bytes, not pages: from the middle of the first page on.
        let start = part.start + self.rng.index(PAGE);
        let model = &self.model[range];
        if model.contains(&None) {
            if self.cache.refuses_holes() {
                // SAFETY: this thread's own; nothing is read, since it is refused.
                let answer = unsafe { self.cache.look_up(start, part.end - start, Lookup::Strict) };
                assert_eq!(answer, None, "a hole is registered");
            }
            return;
        }
        for (page, serial) in model.iter().enumerate() {
            // SAFETY: a mapped page of this thread's own.
            let seen = unsafe { page_at(part.start + page * PAGE) };
            assert_eq!(Some(seen[0]), *serial, "the model is wrong");
        }
        self.judge(start, part.end - start, What::Pages);
    }

    fn look_up_block(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let newest = self.blocks.len() - 1;
        let which = if self.rng.chance(0.5) {
            newest
        } else {
            self.rng.index(newest + 1)
        };
        let block = &self.blocks[which];
        let len = size_of_val(&block[..]).min(LARGEST - 2 * PAGE);
        self.judge(block.as_ptr() as usize, len, What::Block);
    }

    /// Looks up what this thread owns and nobody changes.
    fn judge(&self, start: usize, len: usize, what: What) {
        // SAFETY: see above.
        unsafe { judge(self.cache, self.tally, start, len, what) };
    }
}

/// # Safety
/// The range is mapped, and nobody changes it or its contents meanwhile.
unsafe fn judge(cache: &dyn Cache, tally: &Tally, start: usize, len: usize, what: What) {
    let lookups = [
        (Lookup::Fast, false),
        (Lookup::Strict, false),
        (Lookup::Strict, true),
    ];
    for (how, unchanged) in &lookups[..if what == What::Once { 2 } else { 3 }] {
        // SAFETY: as the caller says.
        let Some(answer) = (unsafe { cache.look_up(start, len, *how) }) else {
            // No room for another pipe, or no more mappings.
            return;
        };
        count(&tally.lookups);
        if *unchanged {
            count(&tally.unchanged);
            if answer.hit {
                count(&tally.unchanged_hits);
            }
        }
        match (how, answer.right) {
            (Lookup::Strict, false) => {
                count(&tally.stale);
                if what == What::Block {
                    count(&tally.block_stale);
                }
            }
            (Lookup::Fast, false) => count(&tally.fast_stale),
            (_, true) => {}
        }
    }
}

/// # Safety
/// A mapped page that can be written to, of the caller's own.
unsafe fn page_at<'a>(start: usize) -> &'a mut [u64] {
    // SAFETY: as the caller says; pages are aligned.
    unsafe { std::slice::from_raw_parts_mut(start as *mut u64, PAGE / 8) }
}

/// A child that ends at once.
///
/// A thread of its own makes it, whose stack is nobody else's before or after: stacks that were registered are not inherited. And it is
/// made behind the C library's back: what that does in a child touches the allocator's memory, which may not be inherited either.
pub(crate) fn fork() {
    type Done = mpsc::Sender<()>;
    static FORKER: LazyLock<Mutex<mpsc::Sender<Done>>> = LazyLock::new(|| {
        let (ask, asked) = mpsc::channel::<Done>();
        thread::spawn(move || {
            for done in asked {
                // SAFETY: the child makes one system call.
                let child = unsafe {
                    let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
                    if child == 0 {
                        libc::syscall(libc::SYS_exit_group, 0);
                    }
                    child as libc::pid_t
                };
                assert!(child > 0);
                assert_eq!(wait_for(child), 0);
                done.send(()).expect("whoever asked waits");
            }
        });
        Mutex::new(ask)
    });
    let (done, end) = mpsc::channel();
    let ask = FORKER.lock().expect("no panic").clone();
    ask.send(done).expect("it runs for ever");
    end.recv().expect("the child ended well");
}
