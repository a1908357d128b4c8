//! Who holds UDP port 4791, from /proc.

use crate::netlink::kernel_soft_roce;
use crate::{PortOwner, ROCE_PORT};
use std::fs;
use std::path::Path;

/// Finds the owner, as far as we may look.
pub(super) fn find() -> PortOwner {
    if let Some(device) = kernel_soft_roce() {
        return PortOwner::KernelSoftRoce { device };
    }
    let Some((uid, inode)) = rows()
        .find(|row| row.port == ROCE_PORT)
        .map(|row| (row.uid, row.inode))
    else {
        return PortOwner::Unknown;
    };
    match process_of(inode) {
        Some((pid, command)) => PortOwner::Process { pid, command },
        None => PortOwner::User { uid },
    }
}

/// Whether a socket with this inode is still bound to a UDP port. Without /proc: no.
pub(super) fn is_bound(inode: u64) -> bool {
    rows().any(|row| row.inode == inode)
}

struct Row {
    port: u16,
    uid: u32,
    inode: u64,
}

/// The rows of /proc/net/udp6 and /proc/net/udp: a heading, then one line per socket, with the local address and port
/// in hexadecimal in the second column, the user in the eighth and the inode in the tenth.
fn rows() -> impl Iterator<Item = Row> {
    ["/proc/thread-self/net/udp6", "/proc/thread-self/net/udp"]
        .into_iter()
        .flat_map(|path| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.lines().skip(1).filter_map(row).collect::<Vec<_>>()
        })
}

fn row(line: &str) -> Option<Row> {
    let columns: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, port) = columns.get(1)?.rsplit_once(':')?;
    Some(Row {
        port: u16::from_str_radix(port, 16).ok()?,
        uid: columns.get(7)?.parse().ok()?,
        inode: columns.get(9)?.parse().ok()?,
    })
}

fn process_of(inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?;
    for process in processes.flatten() {
        let Some(pid) = process
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        let holds =
            |path: &Path| fs::read_link(path).is_ok_and(|target| target.to_str() == Some(&wanted));
        if descriptors
            .flatten()
            .any(|descriptor| holds(&descriptor.path()))
        {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((pid, command.trim().to_owned()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_the_socket_table_is_read() {
        let line = " 1234: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 55555 2 0000000000000000 0";
        let row = row(line).unwrap();
        assert_eq!((row.port, row.uid, row.inode), (4791, 1000, 55555));
        assert!(super::row("  sl  local_address").is_none());
    }
}
