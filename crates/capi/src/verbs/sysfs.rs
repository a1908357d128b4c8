//! What programs read of devices below /sys through the library: answered from what the library knows, since the kernel
//! knows of no such device.
//!
//! Programs that open such files by themselves find them in the same way: see [`programs`].

mod folders;
mod programs;
mod slots;

pub(super) use programs::serve;

use std::borrow::Cow;
use std::env;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::Arc;

use oarlock_device::DeviceInfo;
use oarlock_port::fork::PerProcess;

use super::device::{self, Device};
use super::query::{DEFAULT_PKEY, FIRMWARE, GID_TABLE_LEN, PORT_CAPABILITIES};
use super::speed;
use crate::errno::{self, Refused, Result};
use crate::process;

/// Where sysfs is: `SYSFS_PATH`, else /sys.
fn path() -> &'static CStr {
    static PATH: PerProcess<CString> = PerProcess::new(|parents| {
        if let Some(path) = parents {
            return path.clone();
        }
        // SAFETY: these ask only.
        let is_trusted = unsafe { libc::getuid() == libc::geteuid() };
        let asked = env::var_os("SYSFS_PATH").filter(|_| is_trusted);
        let mut bytes = asked.map_or_else(|| DEFAULT.as_bytes().to_vec(), |path| path.into_vec());
        bytes.truncate(PATH_MAX);
        while bytes.last() == Some(&b'/') {
            bytes.pop();
        }
        // A variable of the environment has no zero in it.
        CString::new(bytes).unwrap_or_default()
    });
    PATH.get()
}

/// As [`path`], for the paths that devices show.
pub(super) fn root() -> Cow<'static, str> {
    path().to_string_lossy()
}

/// `ibv_get_sysfs_path`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    path().as_ptr()
}

/// `ibv_read_sysfs_file`: how many bytes the file has without the end of its line, or -1 with `errno`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let text = read(dir.to_bytes(), file.to_bytes()).and_then(|text| {
        // As with read(2), what does not fit is not there, nor is a zero behind it.
        let read = &text[..text.len().min(size)];
        let line = read.strip_suffix(b"\n").unwrap_or(read);
        if line.len() >= size {
            let sentence = format!("the file is longer than {size} bytes");
            return Err(Refused::new(libc::ENAMETOOLONG, sentence));
        }
        Ok(line.to_vec())
    });
    let mut len = 0;
    let told = text.map(|line| {
        len = c_int::try_from(line.len()).unwrap_or(c_int::MAX);
        // SAFETY: the caller's promise: there is room for `size` bytes, of which a zero needs one.
        unsafe {
            line.as_ptr().copy_to_nonoverlapping(buf.cast(), line.len());
            buf.add(line.len()).write(0);
        }
    });
    match errno::minus_one("ibv_read_sysfs_file", told) {
        0 => len,
        failed => failed,
    }
}

/// The content of a file: of a device of this host, or a real one.
fn read(dir: &[u8], file: &[u8]) -> Result<Vec<u8>> {
    let path = [dir, b"/", file].concat();
    if let Some(below) = path.strip_prefix(path_bytes())
        && let Ok(below) = str::from_utf8(below)
        && let Some(answer) = of_devices(below)?
    {
        return Ok(answer.into_bytes());
    }
    fs::read(OsStr::from_bytes(&path)).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        let path = String::from_utf8_lossy(&path);
        Refused::new(errno, format!("cannot read {path}: {error}"))
    })
}

fn path_bytes() -> &'static [u8] {
    path().to_bytes()
}

/// The content of a file whose path below the root of sysfs is `path`; `None` if it is none of a device of this host.
fn of_devices(path: &str) -> Result<Option<String>> {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    let (is_verbs, name, file) = match parts[..] {
        ["class", "infiniband_verbs", "abi_version"] => return Ok(Some(line(VERBS_ABI))),
        ["class", "infiniband", name, ref file @ ..] => (false, name, file),
        ["class", "infiniband_verbs", name, ref file @ ..] => (true, name, file),
        _ => return Ok(None),
    };
    let devices = device::list(&process::current()?)?;
    let named = |(device, ..): &&(Arc<Device>, DeviceInfo, bool)| {
        if is_verbs {
            name == format!("uverbs{}", device.index)
        } else {
            name == device.name
        }
    };
    let Some((_, info, is_active)) = devices.iter().find(named) else {
        return Ok(None);
    };
    let answer = if is_verbs {
        of_verbs(info, file)
    } else {
        of_device(info, *is_active, file)
    };
    let absent = || {
        Refused::new(
            libc::ENOENT,
            format!("device {} has no file {path}", info.name),
        )
    };
    answer.map(line).map(Some).ok_or_else(absent)
}

fn of_verbs(info: &DeviceInfo, file: &[&str]) -> Option<String> {
    match file {
        ["ibdev"] => Some(info.name.clone()),
        ["abi_version"] => Some("1".to_owned()),
        _ => None,
    }
}

fn of_device(info: &DeviceInfo, is_active: bool, file: &[&str]) -> Option<String> {
    let text = match *file {
        ["node_guid" | "sys_image_guid"] => words(&info.guid.get().to_be_bytes()),
        ["node_type"] => "1: CA".to_owned(),
        ["node_desc"] => info.name.clone(),
        ["fw_ver"] => FIRMWARE.to_owned(),
        ["hca_type" | "board_id"] => KIND.to_owned(),
        ["hw_rev"] => "0".to_owned(),
        ["ports", port, ref file @ ..] if port == info.port_num.to_string() => {
            return of_port(info, is_active, file);
        }
        _ => return None,
    };
    Some(text)
}

fn of_port(info: &DeviceInfo, is_active: bool, file: &[&str]) -> Option<String> {
    let (state, phys_state) = if is_active {
        ("4: ACTIVE", "5: LinkUp")
    } else {
        ("1: DOWN", "3: Disabled")
    };
    let text = match *file {
        ["state"] => state.to_owned(),
        ["phys_state"] => phys_state.to_owned(),
        ["rate"] => speed::of(info.ifindex).to_text(),
        ["link_layer"] => "Ethernet".to_owned(),
        ["lid" | "sm_lid"] => "0x0".to_owned(),
        ["lid_mask_count" | "sm_sl"] => "0".to_owned(),
        ["cap_mask"] => format!("{PORT_CAPABILITIES:#010x}"),
        ["pkeys", "0"] => format!("{DEFAULT_PKEY:#06x}"),
        ["gids", index] => {
            let gid = info.gids.get(index_of(index)?);
            words(&gid.map_or([0; 16], |gid| gid.0))
        }
        ["gid_attrs", "types", index] => {
            info.gids.get(index_of(index)?)?;
            "RoCE v2".to_owned()
        }
        ["gid_attrs", "ndevs", index] => {
            info.gids.get(index_of(index)?)?;
            interface(info.ifindex)?
        }
        _ => return None,
    };
    Some(text)
}

fn index_of(text: &str) -> Option<usize> {
    text.parse().ok().filter(|index| *index < GID_TABLE_LEN)
}

fn interface(ifindex: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: there is room for any name.
    let found = unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the call has written a name with a zero at its end.
    let name = unsafe { CStr::from_ptr(found) };
    Some(name.to_string_lossy().into_owned())
}

/// 16-bit words in hexadecimal, as GUIDs and GIDs are written.
fn words(bytes: &[u8]) -> String {
    let mut text = String::new();
    for pair in bytes.chunks(2) {
        if !text.is_empty() {
            text.push(':');
        }
        for byte in pair {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
    }
    text
}

fn line(text: impl AsRef<str>) -> String {
    format!("{}\n", text.as_ref())
}

const DEFAULT: &str = "/sys";
/// `IBV_SYSFS_PATH_MAX` of the header.
const PATH_MAX: usize = 256;
/// Version of the kernel's interface, which tools look for to know that there is one.
const VERBS_ABI: &str = "6";
const KIND: &str = "oarlock";

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use oarlock_device::DeviceLimits;
    use oarlock_wire::{Gid, Guid};

    use super::*;

    pub(super) fn info() -> DeviceInfo {
        DeviceInfo {
            index: 3,
            name: "soft_lo".to_owned(),
            guid: Guid(0x0255_53ff_fe01_0203),
            port_num: 1,
            ifindex: 1,
            is_loopback: true,
            netdev_mtu: 65_536,
            gids: vec![
                Gid::from_ip([127, 0, 0, 1].into()),
                Gid::from_ip(Ipv6Addr::LOCALHOST.into()),
            ],
            limits: DeviceLimits::default(),
        }
    }

    #[test]
    fn files_of_a_device_say_what_the_kernel_would() {
        let cases = [
            ("node_guid", "0255:53ff:fe01:0203"),
            ("sys_image_guid", "0255:53ff:fe01:0203"),
            ("node_type", "1: CA"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/phys_state", "5: LinkUp"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/cap_mask", "0x04010000"),
            ("ports/1/pkeys/0", "0xffff"),
            ("ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0001"),
            ("ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0001"),
            ("ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("ports/1/gid_attrs/types/1", "RoCE v2"),
        ];
        for (path, expected) in cases {
            let file: Vec<_> = path.split('/').collect();
            assert_eq!(
                of_device(&info(), true, &file).as_deref(),
                Some(expected),
                "{path}"
            );
        }
        for path in [
            "",
            "ports",
            "ports/2/state",
            "ports/1/pkeys/1",
            "ports/1/gids/256",
            "ports/1/gid_attrs/types/2",
        ] {
            let file: Vec<_> = path.split('/').collect();
            assert_eq!(of_device(&info(), true, &file), None, "{path}");
        }
        assert_eq!(
            of_device(&info(), false, &["ports", "1", "state"]).as_deref(),
            Some("1: DOWN")
        );
        assert_eq!(of_verbs(&info(), &["ibdev"]).as_deref(), Some("soft_lo"));
    }

    #[test]
    fn other_files_are_read_as_they_are() {
        let mut buf = [1 as c_char; 8];
        // SAFETY: texts, and room for as much as is said.
        let read = |file: &CStr, buf: &mut [c_char]| unsafe {
            ibv_read_sysfs_file(
                c"/proc/sys/kernel".as_ptr(),
                file.as_ptr(),
                buf.as_mut_ptr(),
                buf.len(),
            )
        };
        assert_eq!(read(c"ostype", &mut buf), 5);
        // SAFETY: a zero stands at the end of what was read.
        let text = unsafe { CStr::from_ptr(buf.as_ptr()) };
        assert_eq!(text, c"Linux");
        assert_eq!(
            read(c"ostype", &mut buf[..6]),
            5,
            "the end of the line makes room for the zero"
        );
        assert_eq!(read(c"ostype", &mut buf[..5]), -1);
        assert_eq!(read(c"no such file", &mut buf), -1);
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::ENOENT)
        );
    }
}
