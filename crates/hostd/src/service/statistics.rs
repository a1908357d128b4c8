//! Counters of devices over all programs.
//!
//! A program has a file for its counters (a memfd, made and sealed here, so that it has one size and reading it never waits
//! for anybody). It writes the file now and then while it is busy, and when it ends; the service reads it when somebody asks
//! and when the program has gone. An idle program is never woken for its counters.

use crate::Error;
use oarlock_ucm::proto::{DeviceCounters, MAX_COUNTERS, MAX_PAGE_FILE, Page};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;

/// The files of programs, and what those have counted that are gone.
#[derive(Debug, Default)]
pub(super) struct Statistics {
    files: BTreeMap<u32, OwnedFd>,
    gone: Totals,
}

/// By device, then by name.
type Totals = BTreeMap<u32, BTreeMap<String, u64>>;

impl Statistics {
    /// The file of a client, made when it asks first.
    pub(super) fn share(&mut self, client: u32) -> Result<OwnedFd, Error> {
        let file = match self.files.entry(client) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(place) => place.insert(make()?),
        };
        file.try_clone()
            .map_err(Error::system("copy the descriptor of a program's counters"))
    }

    /// A client has gone: its last values stay.
    pub(super) fn close(&mut self, client: u32) {
        if let Some(page) = self.files.remove(&client).and_then(|file| read(&file)) {
            add(&mut self.gone, page);
        }
    }

    /// All counters of the devices with an index above `after`.
    pub(super) fn list(&self, after: Option<u32>) -> Vec<DeviceCounters> {
        let mut all = self.gone.clone();
        for page in self.files.values().filter_map(read) {
            add(&mut all, page);
        }
        all.into_iter()
            .filter(|(device, _)| after.is_none_or(|after| *device > after))
            .map(|(device, counters)| DeviceCounters {
                device,
                counters: counters.into_iter().collect(),
            })
            .collect()
    }
}

fn make() -> Result<OwnedFd, Error> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("oarlock-statistics", flags)
        .map_err(Error::errno("make a file for a program's counters"))?;
    ftruncate(&file, MAX_PAGE_FILE as u64)
        .map_err(Error::errno("size a file for a program's counters"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).map_err(Error::errno("seal a file for a program's counters"))?;
    Ok(file)
}

/// The page of a file; none when there is none yet, or the program writes at each look.
fn read(file: &OwnedFd) -> Option<Page> {
    let mut bytes = vec![0; MAX_PAGE_FILE];
    for _ in 0..LOOKS {
        let n = rustix::io::pread(file, &mut bytes, 0).ok()?;
        if let Some(page) = Page::decode(&bytes[..n]) {
            return Some(page);
        }
    }
    None
}

fn add(totals: &mut Totals, page: Page) {
    for DeviceCounters { device, counters } in page.devices {
        // Programs may write what they like: what they can make us keep is bounded.
        if totals.len() >= MAX_DEVICES && !totals.contains_key(&device) {
            continue;
        }
        let of_device = totals.entry(device).or_default();
        for (name, value) in counters {
            if let Some(total) = of_device.get_mut(&name) {
                *total = total.saturating_add(value);
            } else if of_device.len() < MAX_COUNTERS / 4 {
                of_device.insert(name, value);
            }
        }
    }
}

const LOOKS: usize = 4;
const MAX_DEVICES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &OwnedFd, device: u32, values: &[(&str, u64)]) {
        let counters = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        let page = Page {
            devices: vec![DeviceCounters { device, counters }],
        };
        let bytes = page.encode();
        assert_eq!(rustix::io::pwrite(file, &bytes, 0), Ok(bytes.len()));
    }

    fn values(statistics: &Statistics, device: u32) -> Vec<(String, u64)> {
        let mut list = statistics.list(device.checked_sub(1));
        list.retain(|counters| counters.device == device);
        list.pop()
            .map_or_else(Vec::new, |counters| counters.counters)
    }

    #[test]
    fn counters_of_programs_are_added_and_those_of_dead_ones_stay() {
        let mut statistics = Statistics::default();
        let (one, two) = (statistics.share(1).unwrap(), statistics.share(2).unwrap());
        assert_eq!(statistics.list(None), [], "nothing is written yet");
        write(&one, 0, &[("sent_pkts", 5), ("rcvd_pkts", 1)]);
        write(&two, 0, &[("sent_pkts", 7)]);
        let both = [("rcvd_pkts".to_owned(), 1), ("sent_pkts".to_owned(), 12)];
        assert_eq!(values(&statistics, 0), both);
        statistics.close(2);
        drop(two);
        assert_eq!(values(&statistics, 0), both);
        write(&one, 0, &[("sent_pkts", 6), ("rcvd_pkts", 1)]);
        assert_eq!(values(&statistics, 0)[1].1, 13);
        statistics.close(1);
        statistics.close(1);
        assert_eq!(values(&statistics, 0)[1].1, 13);
        assert_eq!(statistics.list(Some(0)), []);
    }

    /// A program can neither make the file another size nor make reading it fail the service.
    #[test]
    fn a_file_has_one_size_and_any_content() {
        let mut statistics = Statistics::default();
        let file = statistics.share(1).unwrap();
        for len in [0, 1, MAX_PAGE_FILE as u64 * 2] {
            assert_eq!(ftruncate(&file, len), Err(rustix::io::Errno::PERM));
        }
        assert_eq!(
            fcntl_add_seals(&file, SealFlags::WRITE),
            Err(rustix::io::Errno::PERM)
        );
        rustix::io::pwrite(&file, &[0xA5; MAX_PAGE_FILE], 0).unwrap();
        assert_eq!(statistics.list(None), []);
        statistics.close(1);
        for device in 0..MAX_DEVICES as u32 + 10 {
            for value in [u64::MAX, 1] {
                write(&statistics.share(1).unwrap(), device, &[("x", value)]);
                statistics.close(1);
            }
        }
        let all = statistics.list(None);
        assert_eq!(all.len(), MAX_DEVICES);
        assert_eq!(all[0].counters, [("x".to_owned(), u64::MAX)]);
    }
}
