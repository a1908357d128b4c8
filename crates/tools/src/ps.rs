//! `oarlock ps`: the host service and everything in it.

use crate::failure::Failure;
use crate::report::{self, Lines};
use clap::Args;
use oarlock_hostd::{Host, HostState, IdInfo};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Options of `oarlock ps`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  oarlock ps\n  oarlock ps --counters\n  oarlock ps --json | jq .ids\n\nExit status 1 when no host service runs."
)]
pub(crate) struct Options {
    /// Prints the service's counters, too
    #[arg(long)]
    counters: bool,
    /// Prints the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// The JSON form.
#[derive(Debug, Serialize)]
struct Listing {
    host: HostListing,
    ids: Vec<IdListing>,
    counters: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct HostListing {
    pid: u32,
    uid: u32,
    clients: Vec<ClientListing>,
    slots: Vec<u8>,
    ports: Vec<PortListing>,
}

#[derive(Debug, Serialize)]
struct ClientListing {
    pid: u32,
    name: String,
    slot: Option<u8>,
}

#[derive(Debug, Serialize)]
struct PortListing {
    ps: &'static str,
    port: u16,
}

#[derive(Debug, Serialize)]
struct IdListing {
    id: u32,
    pid: u32,
    ps: &'static str,
    state: String,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    qpn: Option<u32>,
    channel: u64,
    queued: u32,
    unacked: u32,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let host = Host::join()?;
    let mut state = host.ps()?;
    // This program is a client itself, for the moment of asking.
    let own = std::process::id();
    state.host.clients.retain(|client| client.pid != own);
    if options.json {
        return report::print_json("ps", true, &listing(state));
    }
    let lines = Lines::new(false);
    for line in table(&state, options.counters) {
        lines.say(line);
    }
    Ok(())
}

fn listing(state: HostState) -> Listing {
    let host = state.host;
    Listing {
        counters: host.counters.into_iter().collect(),
        host: HostListing {
            pid: host.pid,
            uid: host.uid,
            clients: host
                .clients
                .into_iter()
                .map(|client| ClientListing {
                    pid: client.pid,
                    name: client.name,
                    slot: client.slot,
                })
                .collect(),
            slots: host.slots,
            ports: host
                .ports
                .into_iter()
                .map(|port| PortListing {
                    ps: port_space(port.ps),
                    port: port.port,
                })
                .collect(),
        },
        ids: state
            .ids
            .into_iter()
            .map(|id| IdListing {
                ps: port_space(id.ps),
                id: id.id,
                pid: id.pid,
                state: id.state,
                local: id.local,
                remote: id.remote,
                qpn: id.qpn,
                channel: id.channel,
                queued: id.queued,
                unacked: id.unacked,
            })
            .collect(),
    }
}

/// As in `rdma_cm.h`, without the prefix.
fn port_space(number: u16) -> &'static str {
    match number {
        0x0002 => "ipoib",
        0x0106 => "tcp",
        0x0111 => "udp",
        0x013F => "ib",
        _ => "other",
    }
}

fn table(state: &HostState, counters: bool) -> Vec<String> {
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
        lines.push(format!("  {} (process {}{slot})", client.name, client.pid));
    }
    if state.ids.is_empty() {
        lines.push("no identifiers".to_owned());
    } else {
        lines.push(format!(
            "{:>6} {:>8} {:<5} {:<15} {:<28} {:<28} {:>8} {:>7} {:>6} {:>7}",
            "id", "pid", "space", "state", "local", "remote", "qpn", "channel", "queued", "unacked"
        ));
        lines.extend(state.ids.iter().map(row));
    }
    if counters {
        lines.extend(
            host.counters
                .iter()
                .map(|(name, value)| format!("{name} {value}")),
        );
    }
    lines
}

fn row(id: &IdInfo) -> String {
    let address =
        |address: Option<SocketAddr>| address.map_or_else(|| "-".to_owned(), |a| a.to_string());
    format!(
        "{:>6} {:>8} {:<5} {:<15} {:<28} {:<28} {:>8} {:>7} {:>6} {:>7}",
        id.id,
        id.pid,
        port_space(id.ps),
        id.state,
        address(id.local),
        address(id.remote),
        id.qpn
            .map_or_else(|| "-".to_owned(), |qpn| format!("{qpn:06x}")),
        id.channel,
        id.queued,
        id.unacked
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use oarlock_hostd::HostInfo;

    fn state() -> HostState {
        HostState {
            host: HostInfo {
                pid: 7,
                uid: 1000,
                slots: vec![1],
                counters: vec![("data_packets".to_owned(), 0)],
                ..HostInfo::default()
            },
            ids: vec![IdInfo {
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
            }],
        }
    }

    #[test]
    fn the_json_form_has_the_keys_of_the_contract() {
        let value = serde_json::to_value(listing(state())).unwrap();
        assert_eq!(value["host"]["pid"], 7);
        assert_eq!(value["host"]["slots"], serde_json::json!([1]));
        assert_eq!(value["counters"]["data_packets"], 0);
        let id = &value["ids"][0];
        assert_eq!(id["state"], "LISTEN");
        assert_eq!(id["ps"], "tcp");
        assert_eq!(id["local"], "127.0.0.1:7471");
        assert_eq!(
            (id["queued"].as_u64(), id["unacked"].as_u64()),
            (Some(1), Some(2))
        );
    }

    #[test]
    fn the_table_shows_every_identifier_and_counters_on_demand() {
        let short = table(&state(), false).join("\n");
        assert!(
            short.contains("LISTEN") && short.contains("127.0.0.1:7471"),
            "{short}"
        );
        assert!(!short.contains("data_packets"));
        assert!(table(&state(), true).join("\n").contains("data_packets 0"));
    }
}
