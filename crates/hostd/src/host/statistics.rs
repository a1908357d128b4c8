//! Counters of devices: this program's for the service, and everybody's from it.

use super::{Host, MAX_PAGES};
use crate::Error;
use oarlock_port::DeviceStatistics;
use oarlock_ucm::proto::{DeviceCounters, MAX_PAGE_FILE, Page, Reply, Request, StatisticsPage};
use rustix::process::{Resource, getrlimit};
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

impl Host {
    /// Tells the service this program's counters, in place of what it was told before. It reads them when somebody asks, and keeps the last
    /// when this program has gone. Nothing before a slot was taken, nothing to a service that is older than this, and nothing while this program's
    /// or the service's limit of file sizes (RLIMIT_FSIZE) is below 64 KiB.
    ///
    /// One system call; whoever counts much tells now and then, and at the end.
    ///
    /// # Blocking
    /// Never.
    pub fn publish_statistics(&self, devices: &[DeviceStatistics]) {
        let file = self
            .inner
            .statistics
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = file.as_ref()
            && may_write()
        {
            let devices = devices.iter().map(|of| DeviceCounters {
                device: of.device,
                counters: of
                    .counters
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), *value))
                    .collect(),
            });
            let page = Page {
                devices: devices.collect(),
            };
            // The file has its whole size already: this takes no room that there might not be.
            let _ = rustix::io::pwrite(file, &page.encode(), 0);
        }
    }

    /// The counters of the devices, over all programs of this host, those that are gone included, by the devices' numbers. What programs have counted
    /// in the last moments may be missing.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn statistics(&self) -> Result<Vec<DeviceCounters>, Error> {
        let mut all: Vec<DeviceCounters> = Vec::new();
        let mut after = None;
        for _ in 0..MAX_PAGES {
            let Reply::Statistics(StatisticsPage { devices, more }) =
                self.request(Request::Statistics { after })?
            else {
                return Err(Error::UnexpectedReply);
            };
            let last = devices.last().map(|of| of.device);
            all.extend(devices);
            match last {
                _ if !more => return Ok(all),
                Some(last) if after.is_none_or(|after| last > after) => after = Some(last),
                _ => break,
            }
        }
        Err(Error::UnexpectedReply)
    }

    /// A slot has been taken: there will be something to count. Without the file, for whatever reason, a program counts for itself
    /// only.
    pub(super) fn share_statistics(&self) {
        let mut file = self
            .inner
            .statistics
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            match self.ask_for_file() {
                Ok(shared) => *file = Some(shared),
                Err(error) => tracing::debug!(%error, "the service has no file for counters"),
            }
        }
    }

    fn ask_for_file(&self) -> Result<OwnedFd, Error> {
        let request = Request::ShareStatistics;
        let (reply, fds) = self.inner.connection.request(&request, &[])?;
        super::done(&reply)?;
        fds.into_iter().next().ok_or(Error::NoDescriptor)
    }
}

/// Whether the limit of file sizes lets us write a page: beyond it a write is cut, or ends the program by SIGXFSZ.
fn may_write() -> bool {
    let limit = getrlimit(Resource::Fsize).current;
    limit.is_none_or(|limit| limit >= MAX_PAGE_FILE as u64)
}
