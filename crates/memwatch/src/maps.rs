//! Which mappings this process has.

use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::sys;

/// A line of /proc/self/maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<usize>,
    /// Where in the file the mapping starts, in bytes.
    pub(crate) offset: u64,
    /// Of the file or System V segment; 0 for private anonymous memory.
    pub(crate) inode: u64,
    /// A System V segment.
    pub(crate) is_segment: bool,
}

/// The mappings of this process; none if /proc is not there.
pub(crate) fn mappings() -> Vec<Mapping> {
    let text = sys::open_own("maps").and_then(read).unwrap_or_default();
    text.split(|byte| *byte == b'\n')
        .filter_map(parse)
        .collect()
}

/// All of a file. As with opening one, not through the C library, where a thread could be cancelled at this point.
fn read(file: OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut text = Vec::new();
    loop {
        text.reserve(CHUNK);
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut text)) {
            Ok(0) => return Ok(text),
            Ok(_) | Err(Errno::INTR) => {}
            Err(other) => return Err(other),
        }
    }
}

/// `start-end permissions offset device inode path`, where the path may have any bytes.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|byte| *byte == b' ').map(std::str::from_utf8);
    let (start, end) = fields.next()?.ok()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let offset = fields.nth(1)?.ok()?;
    let inode = fields.nth(1)?.ok()?;
    let path = fields.find(|field| *field != Ok(""));
    Some(Mapping {
        range: hex(start)? as usize..hex(end)? as usize,
        offset: hex(offset)?,
        inode: inode.parse().ok()?,
        // A file of such a name in the root folder is told about in vain.
        is_segment: path.is_some_and(|path| path.is_ok_and(|path| path.starts_with("/SYSV"))),
    })
}

/// From the start of the mapping where a range starts to the end of the one where it ends.
pub(crate) fn surroundings(pages: &Range<usize>) -> Option<Range<usize>> {
    let ends =
        sys::mapping_at(pages.start).and_then(|first| Ok((first, sys::mapping_at(pages.end - 1)?)));
    match ends {
        Ok((first, last)) if first.start < pages.end => Some(first.start..last.end),
        Ok(_) | Err(Errno::NOENT) => None,
        // Before Linux 6.11 the kernel has no such question.
        Err(_) => {
            let mut touched = mappings()
                .into_iter()
                .map(|mapping| mapping.range)
                .filter(|mapping| mapping.start < pages.end && pages.start < mapping.end);
            let first = touched.next()?;
            let last = touched.next_back();
            Some(first.start..last.map_or(first.end, |last| last.end))
        }
    }
}

pub(crate) fn max_mappings() -> usize {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    open("/proc/sys/vm/max_map_count", flags, Mode::empty())
        .and_then(read)
        .ok()
        .and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse().ok())
        .unwrap_or(DEFAULT_MAX_MAPPINGS)
}

/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;
/// Linux `include/linux/mm.h`, DEFAULT_MAX_MAP_COUNT.
const DEFAULT_MAX_MAPPINGS: usize = 65_530;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_path_are_read() {
        let line = b"7f00a000-7f00c000 rw-s 00003000 00:01 1027   /memfd:a b\xff (deleted)";
        assert_eq!(
            parse(line),
            Some(Mapping {
                range: 0x7f00_a000..0x7f00_c000,
                offset: 0x3000,
                inode: 1027,
                is_segment: false,
            })
        );
        let line = b"7f00a000-7f00c000 rw-s 00000000 00:01 32774                       /SYSV0000abcd (deleted)";
        assert_eq!(parse(line).map(|mapping| mapping.is_segment), Some(true));
        let line = b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0    [vsyscall]";
        assert_eq!(parse(line).map(|mapping| mapping.inode), Some(0));
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn this_process_has_mappings() {
        static BYTE: u8 = 1;
        let here = &raw const BYTE as usize;
        let covering = |mapping: &Mapping| mapping.range.contains(&here);
        assert_eq!(mappings().iter().filter(|m| covering(m)).count(), 1);
        assert!(max_mappings() > 0);
    }
}
