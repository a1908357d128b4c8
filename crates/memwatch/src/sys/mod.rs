//! The system calls that have no safe wrapper in the crates we use, and memory shared with the kernel.
#![allow(
    unsafe_code,
    reason = "calls into libc and shared pages; each block argues its obligations"
)]

pub(crate) mod calls;
mod fork;
mod pages;
mod per_process;
mod process;
mod scan;
mod sealed;
mod userfaultfd;

pub(crate) use fork::{Slot, keep_from_children};
pub(crate) use pages::{SharedPage, WipedPages, is_mapped, mapping_at, open_own, page_size};
pub(crate) use per_process::PerProcess;
pub(crate) use process::{thread_exists, thread_id, without_signals};
pub(crate) use scan::scan;
pub(crate) use sealed::SealedPages;
pub(crate) use userfaultfd::{Features, Message, Report, Userfaultfd};

#[cfg(test)]
mod tests;
