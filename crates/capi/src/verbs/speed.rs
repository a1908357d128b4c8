//! How fast a port is, in the words of InfiniBand.

use std::ffi::c_char;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The speed of a link: so many lanes of such a speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Speed {
    /// Code of the number of lanes (IBA Vol. 1 ch. 14, PortInfo: LinkWidthActive).
    pub(super) width: u8,
    /// Code of a lane's speed (there: LinkSpeedActive and its extensions).
    pub(super) lane: u8,
}

impl Speed {
    /// What is said of an Ethernet link of `mbps`: the row of the table that Linux has for this
    /// (`ib_get_eth_speed` of drivers/infiniband/core/verbs.c). An unknown speed counts as 1 Gb/s.
    const fn of_ethernet(mbps: u32) -> Self {
        let (width, lane) = match mbps {
            0..=1_000 => (X1, SDR),
            1_001..=10_000 => (X1, FDR10),
            10_001..=20_000 => (X4, DDR),
            20_001..=25_000 => (X1, EDR),
            25_001..=40_000 => (X4, FDR10),
            40_001..=50_000 => (X2, EDR),
            50_001..=100_000 => (X4, EDR),
            100_001..=200_000 => (X4, HDR),
            _ => (X4, NDR),
        };
        Self { width, lane }
    }

    const fn lanes(self) -> u64 {
        match self.width {
            X2 => 2,
            X4 => 4,
            _ => 1,
        }
    }

    /// In units of 100 Mb/s.
    pub(super) const fn hundreds(self) -> u64 {
        let lane = match self.lane {
            DDR => 50,
            FDR10 => 100,
            EDR => 250,
            HDR => 500,
            NDR => 1_000,
            _ => 25,
        };
        lane * self.lanes()
    }

    /// As sysfs says it: `10 Gb/sec (1X FDR10)`.
    pub(super) fn to_text(self) -> String {
        let name = match self.lane {
            DDR => "DDR",
            FDR10 => "FDR10",
            EDR => "EDR",
            HDR => "HDR",
            NDR => "NDR",
            _ => "SDR",
        };
        let (whole, tenth) = (self.hundreds() / 10, self.hundreds() % 10);
        let fraction = if tenth == 0 {
            String::new()
        } else {
            format!(".{tenth}")
        };
        format!("{whole}{fraction} Gb/sec ({}X {name})", self.lanes())
    }
}

/// The speed of the interface, as its driver tells (SIOCETHTOOL, which every user may ask).
pub(super) fn of(ifindex: u32) -> Speed {
    Speed::of_ethernet(mbps(ifindex).unwrap_or(0))
}

fn mbps(ifindex: u32) -> Option<u32> {
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return None;
    }
    // SAFETY: it was opened just now, and nobody else knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let mut settings = EthtoolCmd {
        cmd: ETHTOOL_GSET,
        rest: [0; 40],
    };
    // SAFETY: integers and a pointer, for which zero is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    let name: *mut c_char = request.ifr_name.as_mut_ptr();
    // SAFETY: the field has room for any name (IF_NAMESIZE).
    if unsafe { libc::if_indextoname(ifindex, name) }.is_null() {
        return None;
    }
    request.ifr_ifru.ifru_data = (&raw mut settings).cast();
    // SAFETY: the request points to a command that has room for the answer.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } != 0 {
        return None;
    }
    let half = |at: usize| {
        u32::from(u16::from_ne_bytes([
            settings.rest[at],
            settings.rest[at + 1],
        ]))
    };
    let mbps = half(SPEED_AT) | half(SPEED_HIGH_AT) << 16;
    (mbps != u32::MAX && mbps != u32::from(u16::MAX)).then_some(mbps)
}

/// `struct ethtool_cmd` of Linux include/uapi/linux/ethtool.h.
#[repr(C)]
struct EthtoolCmd {
    cmd: u32,
    rest: [u8; 40],
}

/// `speed` and `speed_hi` of it, counted from behind `cmd`.
const SPEED_AT: usize = 8;
const SPEED_HIGH_AT: usize = 24;
const ETHTOOL_GSET: u32 = 1;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

const X1: u8 = 1;
const X2: u8 = 16;
const X4: u8 = 2;
const SDR: u8 = 1;
const DDR: u8 = 2;
const FDR10: u8 = 8;
const EDR: u8 = 32;
const HDR: u8 = 64;
const NDR: u8 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_speeds_are_told_as_the_kernel_tells_them() {
        let cases = [
            (0, "2.5 Gb/sec (1X SDR)"),
            (1_000, "2.5 Gb/sec (1X SDR)"),
            (10_000, "10 Gb/sec (1X FDR10)"),
            (20_000, "20 Gb/sec (4X DDR)"),
            (25_000, "25 Gb/sec (1X EDR)"),
            (40_000, "40 Gb/sec (4X FDR10)"),
            (50_000, "50 Gb/sec (2X EDR)"),
            (100_000, "100 Gb/sec (4X EDR)"),
            (200_000, "200 Gb/sec (4X HDR)"),
            (400_000, "400 Gb/sec (4X NDR)"),
        ];
        for (mbps, text) in cases {
            assert_eq!(Speed::of_ethernet(mbps).to_text(), text, "{mbps} Mb/s");
        }
    }

    #[test]
    fn an_interface_that_is_not_there_has_an_unknown_speed() {
        assert_eq!(mbps(u32::MAX), None);
        assert_eq!(
            of(u32::MAX),
            Speed {
                width: X1,
                lane: SDR
            }
        );
    }
}
