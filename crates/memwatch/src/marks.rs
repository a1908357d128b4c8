//! Which regions are valid, so that one load answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::sys::WipedPages;

/// One word per slot of the table: the serial number of the valid region in it, or 0. All 0 in a forked child.
///
/// Word 0 belongs to the Watcher itself, slot `n` has word `n + 1`.
#[derive(Debug, Clone)]
pub(crate) struct Marks {
    pages: Arc<WipedPages>,
}

impl Marks {
    pub(crate) fn new(slots: usize) -> Result<Self, Errno> {
        let pages = WipedPages::new(slots + 1)?;
        pages.words()[0].store(ALIVE, Ordering::SeqCst);
        Ok(Self {
            pages: Arc::new(pages),
        })
    }

    /// Not in the process that made the marks.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.pages.words()[0].load(Ordering::Relaxed) == 0
    }

    pub(crate) fn set(&self, slot: u32, serial: u64) {
        self.pages.words()[slot as usize + 1].store(serial, Ordering::SeqCst);
    }

    pub(crate) fn clear(&self, slot: u32) {
        self.set(slot, 0);
    }

    /// Makes every region invalid.
    pub(crate) fn clear_all(&self) {
        for word in &self.pages.words()[1..] {
            // A word that is 0 is not written to: its page may not exist yet.
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::SeqCst);
            }
        }
    }

    #[inline]
    pub(crate) fn is_set(&self, slot: u32, serial: u64) -> bool {
        // As strong as the marks are set, for who holds: on x86-64 the same load.
        self.pages.words()[slot as usize + 1].load(Ordering::SeqCst) == serial
    }
}

const ALIVE: u64 = 1;
