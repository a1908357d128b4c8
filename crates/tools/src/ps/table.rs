//! The text form: the service, its programs, a line for each identifier.

use oarlock_hostd::{HostState, IdInfo};
use std::net::SocketAddr;

/// As in `rdma_cm.h`, without the prefix.
pub(super) fn port_space(number: u16) -> &'static str {
    match number {
        0x0002 => "ipoib",
        0x0106 => "tcp",
        0x0111 => "udp",
        0x013F => "ib",
        _ => "other",
    }
}

/// What the service holds.
pub(super) fn table(state: &HostState) -> Vec<String> {
    let host = &state.host;
    let mut lines = vec![format!(
        "host service: process {}, user {}, programs: {}, slots in use: {}, ports in use: {}",
        host.pid,
        host.uid,
        host.clients.len(),
        host.slots.len(),
        host.ports.len()
    )];
    for client in &host.clients {
        let slot = client
            .slot
            .map_or_else(String::new, |slot| format!(", slot {slot}"));
        let process = match client.pid {
            0 => format!("{} of another process namespace", client.own_pid),
            pid => pid.to_string(),
        };
        lines.push(format!("  {} (process {process}{slot})", client.name));
    }
    if state.ids.is_empty() {
        lines.push("no identifiers".to_owned());
    } else {
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        rows.extend(state.ids.iter().map(row));
        lines.extend(columns(&rows, &LEFT));
    }
    lines
}

const HEADINGS: [&str; 11] = [
    "id", "pid", "space", "state", "local", "remote", "qpn", "channel", "queued", "unacked", "",
];
/// Columns of words; the others hold numbers.
const LEFT: [usize; 5] = [2, 3, 4, 5, 10];

fn row(id: &IdInfo) -> [String; 11] {
    let address =
        |address: Option<SocketAddr>| address.map_or_else(|| "-".to_owned(), |a| a.to_string());
    [
        id.id.to_string(),
        id.pid.to_string(),
        port_space(id.ps).to_owned(),
        id.state.clone(),
        address(id.local),
        address(id.remote),
        id.qpn
            .map_or_else(|| "-".to_owned(), |qpn| format!("{qpn:06x}")),
        id.channel.to_string(),
        id.queued.to_string(),
        id.unacked.to_string(),
        remark(id),
    ]
}

/// What only some identifiers have.
fn remark(id: &IdInfo) -> String {
    let mut parts = Vec::new();
    if let Some(backlog) = id.backlog {
        parts.push(format!(
            "backlog {}/{}, overflows {}",
            backlog.used, backlog.limit, backlog.overflows
        ));
    }
    if !id.groups.is_empty() {
        let groups: Vec<String> = id.groups.iter().map(ToString::to_string).collect();
        parts.push(format!("groups {}", groups.join(" ")));
    }
    parts.join("; ")
}

/// Lines of rows whose columns are as wide as their widest cell; those in `left` start at the left, the others end at the
/// right.
pub(super) fn columns<const N: usize>(rows: &[[String; N]], left: &[usize]) -> Vec<String> {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    rows.iter()
        .map(|row| {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
                if at > 0 {
                    line.push_str("  ");
                }
                line += &if left.contains(&at) {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                };
            }
            line.truncate(line.trim_end().len());
            line
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use oarlock_hostd::{ClientInfo, HostInfo};
    use oarlock_ucm::proto::BacklogInfo;

    fn client(pid: u32, own_pid: u32, slot: Option<u8>) -> ClientInfo {
        ClientInfo {
            pid,
            name: "program".to_owned(),
            slot,
            own_pid,
        }
    }

    pub(in crate::ps) fn state() -> HostState {
        let listener = IdInfo {
            id: 0,
            pid: 8,
            ps: 0x0106,
            state: "LISTEN".to_owned(),
            local: Some("127.0.0.1:7471".parse().unwrap()),
            remote: None,
            qpn: None,
            channel: 3,
            queued: 1,
            unacked: 2,
            backlog: Some(BacklogInfo {
                used: 1,
                limit: 8,
                overflows: 3,
            }),
            groups: Vec::new(),
        };
        let member = IdInfo {
            id: 1,
            ps: 0x0111,
            state: "ADDR_BOUND".to_owned(),
            local: Some("192.0.2.1:4000".parse().unwrap()),
            qpn: Some(0xed_7c43),
            backlog: None,
            groups: vec!["239.1.2.3".parse().unwrap()],
            ..listener.clone()
        };
        HostState {
            host: HostInfo {
                pid: 7,
                uid: 1000,
                slots: vec![1],
                clients: vec![client(8, 8, Some(1)), client(0, 3, None)],
                counters: vec![("data_packets".to_owned(), 0)],
                ..HostInfo::default()
            },
            ids: vec![listener, member],
        }
    }

    /// The listener's line shows how full its backlog is and how often it was too full.
    #[test]
    fn the_table_shows_every_identifier_with_what_is_special_about_it() {
        assert_eq!(
            table(&state())[1..].join("\n"),
            "  program (process 8, slot 1)
  program (process 3 of another process namespace)
id  pid  space  state       local           remote     qpn  channel  queued  unacked
 0    8  tcp    LISTEN      127.0.0.1:7471  -            -        3       1        2  backlog 1/8, overflows 3
 1    8  udp    ADDR_BOUND  192.0.2.1:4000  -       ed7c43        3       1        2  groups 239.1.2.3"
        );
    }

    #[test]
    fn without_identifiers_it_says_so() {
        let empty = HostState {
            ids: Vec::new(),
            ..state()
        };
        assert_eq!(
            table(&empty).last().map(String::as_str),
            Some("no identifiers")
        );
    }
}
