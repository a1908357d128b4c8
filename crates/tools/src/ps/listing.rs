//! The JSON form.

use super::table::port_space;
use oarlock_hostd::HostState;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The service's state.
#[derive(Debug, Serialize)]
pub(super) struct Listing {
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
    /// The number that it has in its own process namespace; `pid` is 0 when that is another one.
    own_pid: u32,
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
    /// Of a listener.
    backlog: Option<BacklogListing>,
    /// Multicast groups joined.
    groups: Vec<IpAddr>,
}

#[derive(Debug, Serialize)]
struct BacklogListing {
    used: u32,
    limit: u32,
    overflows: u64,
}

pub(super) fn listing(state: HostState) -> Listing {
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
                    own_pid: client.own_pid,
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
                backlog: id.backlog.map(|backlog| BacklogListing {
                    used: backlog.used,
                    limit: backlog.limit,
                    overflows: backlog.overflows,
                }),
                groups: id.groups,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::table::tests::state;

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
        assert_eq!(
            id["backlog"],
            serde_json::json!({"used": 1, "limit": 8, "overflows": 3})
        );
        assert_eq!(value["ids"][1]["backlog"], serde_json::Value::Null);
        assert_eq!(value["ids"][1]["groups"], serde_json::json!(["239.1.2.3"]));
    }
}
