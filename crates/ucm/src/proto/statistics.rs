//! Counters of devices: in the file that a program shares with the service, and in the service's answer.
//!
//! The file is a memfd of [`MAX_PAGE_FILE`] bytes that the service made and sealed. The program writes a whole page with one
//! call, now and then while it is busy; the service reads it when it is asked. Neither waits for the other, and an idle program is not
//! woken. What is read while it is written does not agree with its own length and sum, and is read again.
//!
//! ```text
//!   0        4          8            12
//!   +--------+----------+------------+---------------------------------------------+
//!   | "oarS" | body len | CRC-32 of  | body: devices: index, counters: name, value |
//!   |        |          | the body   |                                             |
//!   +--------+----------+------------+---------------------------------------------+
//! ```

use super::codec::{Malformed, Reader, Writer};
use super::{MAX_COUNTERS, MAX_NAME};

/// The size of the file.
pub const MAX_PAGE_FILE: usize = 64 * 1024;

/// The counters of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// The device's index.
    pub device: u32,
    /// The counters by name, at most [`MAX_COUNTERS`].
    pub counters: Vec<(String, u64)>,
}

/// The counters of a program, by device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// One entry for each device that the program has used.
    pub devices: Vec<DeviceCounters>,
}

/// Some of the devices with their counters, over all programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatisticsPage {
    /// The devices, by index.
    pub devices: Vec<DeviceCounters>,
    /// Whether more follow the last one.
    pub more: bool,
}

impl Page {
    /// The file's bytes. Devices that find no room are left out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let room = MAX_PAGE_FILE - HEAD_LEN - 4;
        let (devices, _) = super::reply::fitting(room, &self.devices, |device, w| device.write(w));
        let mut w = Writer::with_capacity(4096);
        w.count(devices.len());
        for device in devices {
            device.write(&mut w);
        }
        let body = w.finish();
        let mut w = Writer::with_capacity(HEAD_LEN + body.len());
        w.bytes(&MAGIC);
        w.count(body.len());
        w.u32(crc32fast::hash(&body));
        w.bytes(&body);
        w.finish()
    }

    /// Reads the file's bytes. Nothing: no page has been written yet, or it is being written.
    #[must_use]
    pub fn decode(file: &[u8]) -> Option<Self> {
        let mut r = Reader::new(file);
        if r.array::<4>("magic").ok()? != MAGIC {
            return None;
        }
        let len = usize::try_from(r.u32("length").ok()?).ok()?;
        let sum = r.u32("sum").ok()?;
        let body = r.rest().get(..len)?;
        if crc32fast::hash(body) != sum {
            return None;
        }
        let mut r = Reader::new(body);
        let devices = read_devices(&mut r).ok()?;
        Some(Self { devices })
    }
}

impl DeviceCounters {
    const LEAST: usize = 4 + 4;

    fn write(&self, w: &mut Writer) {
        w.u32(self.device);
        let counters = &self.counters[..self.counters.len().min(MAX_COUNTERS)];
        w.count(counters.len());
        for (name, value) in counters {
            w.text(name, MAX_NAME);
            w.u64(*value);
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let device = r.u32("device index")?;
        let count = r.count("number of counters", MAX_COUNTERS, 4 + 8)?;
        let mut counters = Vec::with_capacity(count);
        for _ in 0..count {
            counters.push((r.text("counter", MAX_NAME)?, r.u64("counter")?));
        }
        Ok(Self { device, counters })
    }
}

fn read_devices(r: &mut Reader<'_>) -> Result<Vec<DeviceCounters>, Malformed> {
    let count = r.count("number of devices", MAX_PAGE_FILE, DeviceCounters::LEAST)?;
    (0..count).map(|_| DeviceCounters::read(r)).collect()
}

impl StatisticsPage {
    /// As many of `devices`, which come in the order of their indices, as fit.
    #[must_use]
    pub fn fill(devices: impl IntoIterator<Item = DeviceCounters>) -> Self {
        let (devices, more) =
            super::reply::fitting(super::reply::PAGE_ROOM, devices, DeviceCounters::write);
        Self { devices, more }
    }

    pub(super) fn write(&self, w: &mut Writer) {
        w.count(self.devices.len());
        for device in &self.devices {
            device.write(w);
        }
        w.bool(self.more);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            devices: read_devices(r)?,
            more: r.bool("more")?,
        })
    }
}

const MAGIC: [u8; 4] = *b"oarS";
const HEAD_LEN: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn page(devices: u32, counters: u64) -> Page {
        let of = |device| DeviceCounters {
            device,
            counters: (0..counters)
                .map(|i| (format!("counter_number_{i}"), u64::MAX - i))
                .collect(),
        };
        Page {
            devices: (0..devices).map(of).collect(),
        }
    }

    #[test]
    fn a_page_survives_its_file_and_half_a_page_is_none() {
        let page = page(3, 40);
        let bytes = page.encode();
        let mut file = bytes.clone();
        // What an earlier, longer page has left behind.
        file.resize(MAX_PAGE_FILE, 0xA5);
        assert_eq!(Page::decode(&file), Some(page));
        assert_eq!(Page::decode(&[0; MAX_PAGE_FILE]), None);
        assert_eq!(Page::decode(&[]), None);
        for len in 0..bytes.len() {
            let mut torn = file.clone();
            torn[len] ^= 0x10;
            assert_eq!(Page::decode(&torn), None, "byte {len} of another page");
            assert_eq!(Page::decode(&bytes[..len]), None);
        }
    }

    #[test]
    fn what_finds_no_room_is_left_out() {
        let bytes = page(1000, 40).encode();
        assert!(bytes.len() <= MAX_PAGE_FILE);
        let read = Page::decode(&bytes).expect("whole");
        assert!((10..1000).contains(&read.devices.len()));
        assert_eq!(
            read.devices[..],
            page(1000, 40).devices[..read.devices.len()]
        );
    }
}
