//! The ways to memory that may be missing.

use std::os::fd::{AsRawFd as _, RawFd};
use std::process::Command;
use std::ptr::NonNull;

use super::*;

const PAGE: usize = 4096;

/// So many pages, and one behind them that cannot be touched.
struct Pages {
    start: NonNull<u8>,
    len: usize,
}

impl Pages {
    fn new(pages: usize) -> Self {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        let len = pages * PAGE;
        // SAFETY: a new mapping at an address that the kernel chooses, of which a part is opened.
        let start = unsafe {
            let null = std::ptr::null_mut();
            let whole = mmap_anonymous(null, len + PAGE, ProtFlags::empty(), MapFlags::PRIVATE);
            let start = whole.expect("mmap");
            let open = MprotectFlags::READ | MprotectFlags::WRITE;
            mprotect(start, len, open).expect("mprotect");
            NonNull::new(start.cast::<u8>()).expect("not null")
        };
        Self { start, len }
    }

    fn range(&self, offset: usize, len: usize) -> Range {
        Range {
            start: self.start.as_ptr() as u64 + offset as u64,
            len,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: mapped, and nobody else has it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }.to_vec()
    }

    fn fill(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len);
        // SAFETY: as above.
        unsafe { self.start.as_ptr().copy_from(bytes.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len + PAGE) };
        unmapped.expect("munmap");
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn the_shelf_fills_ranges_in_order_up_to_the_first_hole() {
    let pages = Pages::new(2);
    let mut shelf = Shelf::default();
    let mapped = shelf.mapped().expect("a file in memory");
    let bytes = pattern(3 * PAGE);
    mapped.bytes()[..bytes.len()].copy_from_slice(&bytes);
    let ranges = [pages.range(PAGE, PAGE), pages.range(5, 10)];
    // SAFETY: our own pages, to which nothing refers.
    let copied = unsafe { mapped.copy_to(3, &ranges) };
    assert_eq!(copied.expect("mapped"), PAGE + 10);
    let seen = pages.bytes();
    assert!(seen[PAGE..] == bytes[3..][..PAGE]);
    assert_eq!(seen[5..15], bytes[3 + PAGE..][..10]);
    // SAFETY: as above; what lies behind the pages is not mapped.
    let copied = unsafe { mapped.copy_to(0, &[pages.range(PAGE, 2 * PAGE)]) };
    assert_eq!(copied.expect("some"), PAGE);
    // SAFETY: as above.
    let refused = unsafe { mapped.copy_to(0, &[pages.range(2 * PAGE, 1)]) };
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EFAULT));
}

/// Everything in the pipe, of which there is so much.
fn taken(pipe: &mut Pipe, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    assert!(pipe.carry_out(&[Step::Fill(0..len)], &mut out));
    out
}

#[test]
fn the_pipe_brings_ranges_in_order_and_is_empty_after_a_failure() {
    let pages = Pages::new(2);
    let bytes = pattern(pages.len);
    pages.fill(&bytes);
    let mut pipe = Pipe::default();
    for _ in 0..3 {
        assert_eq!(
            pipe.put(&[pages.range(PAGE + 1, 20), pages.range(0, 10)]),
            30
        );
        let out = taken(&mut pipe, 30);
        assert_eq!(out[..20], bytes[PAGE + 1..][..20]);
        assert_eq!(out[20..], bytes[..10]);
        assert_eq!(pipe.put(&[pages.range(2 * PAGE, 9)]), 0);
        // Less than was asked for, or nothing, if there is less.
        let put = pipe.put(&[pages.range(2 * PAGE - 5, 10)]);
        assert!(put <= 5, "{put}");
        assert!(pipe.carry_out(&[Step::Skip(put)], &mut []));
    }
}

/// Pages are put into the pipe, not bytes: wherever they begin, and of several ranges.
#[test]
fn long_copies_come_whole_or_tell_where_they_end() {
    let pages = Pages::new(20);
    let bytes = pattern(pages.len);
    pages.fill(&bytes);
    let mut pipe = Pipe::default();
    for len in [PAGE + 1, 16 * PAGE - 1, 16 * PAGE] {
        for start in [0, 1, 4095] {
            assert_eq!(pipe.put(&[pages.range(start, len)]), len);
            let out = taken(&mut pipe, len);
            assert!(out == bytes[start..][..len], "{len} from {start} on");
        }
    }
    let ranges: [Range; MAX_RANGES] =
        std::array::from_fn(|i| pages.range(i * 2 * PAGE + 100 * i + 1, 2000));
    assert_eq!(pipe.put(&ranges), 2000 * MAX_RANGES);
    for (i, part) in taken(&mut pipe, 2000 * MAX_RANGES).chunks(2000).enumerate() {
        assert!(part == &bytes[i * 2 * PAGE + 100 * i + 1..][..2000], "{i}");
    }
    assert_eq!(pipe.put(&[pages.range(18 * PAGE, 4 * PAGE)]), 2 * PAGE);
    // And what comes behind that is what was put there.
    assert_eq!(pipe.put(&[pages.range(0, 2 * PAGE)]), 2 * PAGE);
    let mut out = vec![0; 2 * PAGE];
    let steps = [Step::Skip(2 * PAGE), Step::Fill(0..2 * PAGE)];
    assert!(pipe.carry_out(&steps, &mut out));
    assert!(out == bytes[..2 * PAGE]);
}

/// As much as fits, with nothing that waits for room; and pieces of it at more places than one call fills.
#[test]
fn a_pipe_that_is_full_takes_no_more_and_gives_all() {
    let pages = Pages::new(16);
    let bytes = pattern(pages.len);
    pages.fill(&bytes);
    let mut pipe = Pipe::default();
    let mut put = Vec::new();
    let mut wanted = Vec::new();
    for i in 0..1000 {
        let len = 1 + i * 37 % pages.len;
        let some = pipe.put(&[pages.range(pages.len - len, len)]);
        put.push(some);
        wanted.extend_from_slice(&bytes[pages.len - len..][..some]);
    }
    assert!(
        put.contains(&0) && wanted.len() > 100_000,
        "{}",
        wanted.len()
    );
    let mut out = vec![0; wanted.len()];
    let places = (0..out.len()).step_by(500);
    let steps: Vec<_> = places
        .map(|start| Step::Fill(start..(start + 500).min(wanted.len())))
        .collect();
    assert!(pipe.carry_out(&steps, &mut out));
    assert!(out == wanted);
}

#[test]
fn a_pipe_that_has_less_than_it_should_is_given_up() {
    let pages = Pages::new(1);
    let mut pipe = Pipe::default();
    assert_eq!(pipe.put(&[pages.range(0, 10)]), 10);
    assert!(!pipe.carry_out(&[Step::Fill(0..11)], &mut [0; 11]));
    assert!(matches!(pipe, Pipe::Missing));
    assert_eq!(pipe.put(&[pages.range(0, 10)]), 0);
}

/// More threads than there may be pipes fetch otherwise, and give back what they had.
#[test]
fn there_are_only_so_many_pipes() {
    let pages = Pages::new(1);
    let mut pipes: Vec<Pipe> = std::iter::repeat_with(Pipe::default).take(50).collect();
    let open = pipes.iter_mut().map(|pipe| pipe.put(&[pages.range(8, 64)]));
    let open = open.filter(|put| *put == 64).count();
    assert!(open <= 8);
    assert_eq!(
        pipes
            .iter()
            .filter(|pipe| matches!(pipe, Pipe::Open(_)))
            .count(),
        open
    );
}

/// Neither a child that is forked nor a program that is executed holds what its parent copies by.
#[test]
fn a_child_holds_nothing_of_it() {
    let pages = Pages::new(1);
    let (mut shelf, mut pipe) = (Shelf::default(), Pipe::default());
    pipe.put(&[pages.range(0, 1)]);
    let mut all: Vec<RawFd> = vec![shelf.mapped().expect("a file in memory").file().as_raw_fd()];
    // Other tests may have all the pipes.
    if let Pipe::Open(ends) = &pipe {
        all.extend(ends.ends().map(|end| end.as_raw_fd()));
    }
    for fd in &all {
        // SAFETY: asks for the flags of a descriptor.
        let flags = unsafe { libc::fcntl(*fd, libc::F_GETFD) };
        assert_eq!(flags, libc::FD_CLOEXEC);
    }
    // SAFETY: the child calls what may be called between fork and exec, and ends.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut stat = std::mem::zeroed();
            let is_device = |fd: &RawFd| {
                libc::fstat(*fd, &raw mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFCHR
            };
            libc::_exit(i32::from(!all.iter().all(is_device)));
        }
        child
    };
    assert!(child > 0);
    let mut status = -1;
    // SAFETY: waits for the child that was started above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "it is /dev/null in the child");
}

const LIMITED: &str = "OARLOCK_TEST_LIMITED";
const NAME: &str = "sys::tests::a_limit_of_file_sizes_raises_no_signal";

/// Files in memory are files: making one longer than the limit would raise SIGXFSZ.
#[test]
fn a_limit_of_file_sizes_raises_no_signal() {
    if std::env::var_os(LIMITED).is_some() {
        let pages = Pages::new(1);
        assert!(Shelf::default().mapped().is_none());
        let mut pipe = Pipe::default();
        assert_eq!(pipe.put(&[pages.range(0, 100)]), 100);
        return;
    }
    let run = Command::new("sh")
        .args(["-c", "ulimit -f 0; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().expect("a test is a program"))
        .args(["--exact", NAME, "--nocapture"])
        .env(LIMITED, "1")
        .output()
        .expect("sh");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && text.contains("1 passed"), "{run:?}");
}
