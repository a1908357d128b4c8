//! Many at once.

use super::ways::any_port;
use super::*;
use oarlock_hostd::MemWire;
use oarlock_hostd::service::ServiceConfig;
use oarlock_rdmacm::{AsyncConnector, AsyncListener, Host, IbTimeout};
use std::net::Ipv4Addr;

const CONNECTIONS: usize = 2_000;

/// A host whose requests beyond the backlog are repeated after a second.
fn host() -> Host {
    let mut config = ServiceConfig::default();
    config.cma.cm_response_timeout = IbTimeout::truncate(18);
    config.cma.packet_life_time = IbTimeout::truncate(10);
    let addresses = [Ipv4Addr::LOCALHOST.into()];
    Host::private_with(&MemWire::new(), &addresses, config).unwrap()
}

/// Two thousand connects under way at once from one process, and as many acceptances: all are established, all end, nothing is
/// left, and all share a handful of descriptors.
fn two_thousand(runtime: &Runtime) {
    let host = host();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    runtime.block_on(async {
        let on_host = async_host(&host);
        let listener = AsyncListener::bind(&on_host, any_port())
            .unwrap()
            .options(small());
        let address = listener.local_addr().unwrap();
        let before = descriptors();
        let connecting: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let connector = AsyncConnector::new(&on_host).options(small());
                tokio::spawn(async move { connector.connect(address).await.unwrap() })
            })
            .collect();
        let accepting = tokio::spawn(async move {
            let mut accepted = Vec::new();
            for _ in 0..CONNECTIONS {
                accepted.push(listener.accept().await.unwrap());
            }
            accepted
        });
        let mut active = Vec::new();
        for connected in connecting {
            active.push(connected.await.unwrap());
        }
        let passive = accepting.await.unwrap();
        // Other tests of this process open some meanwhile.
        let more = descriptors().saturating_sub(before);
        assert!(more < CONNECTIONS / 2, "{more} descriptors more");
        let ending: Vec<_> = passive
            .into_iter()
            .map(|connection| {
                tokio::spawn(async move { connection.until_disconnected().await.unwrap() })
            })
            .collect();
        for connection in &active {
            connection.disconnect().await.unwrap();
        }
        for ended in ending {
            ended.await.unwrap();
        }
        drop(active);
        while !host.ps().unwrap().ids.is_empty() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn two_thousand_connects_at_once_on_one_thread() {
    two_thousand(&on_one_thread());
}

#[test]
fn two_thousand_connects_at_once_on_several_threads() {
    two_thousand(&on_several_threads());
}
