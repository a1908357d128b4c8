//! Both sides in one process, on a wire in memory.

use super::*;
use crate::cmatose::options::Plan;
use crate::listening::until_listening;
use oarlock_hostd::Host;
use oarlock_hostd::service::ServiceConfig;
use oarlock_port::{Faults, MemWire};
use oarlock_wire::IbTimeout;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

const PASSIVE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const ACTIVE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn plan() -> Plan {
    Plan {
        connections: 20,
        messages: 5,
        size: 3000,
        // Eight times 67 ms: longer than a busy machine keeps a thread waiting.
        ack_timeout: Some(IbTimeout::truncate(14)),
        migrate: true,
        stall: Duration::from_secs(300),
        ..Plan::default()
    }
}

/// The results of both sides, passive first.
fn pair(faults: Faults) -> [(Result<(), Failure>, Outcome); 2] {
    let wire = MemWire::with_faults(faults);
    let mut config = ServiceConfig::default();
    // With the retries, 4 s: longer than a busy machine keeps a program waiting.
    config.cma.cm_response_timeout = IbTimeout::truncate(16);
    // A peer whose program is busy asks for patience; if its next message is lost, it is that long until the one before is
    // repeated.
    config.cma.mra_service_timeout = IbTimeout::truncate(17);
    config.cma.packet_life_time = IbTimeout::truncate(12);
    let host = |address| Host::private_with(&wire, &[address], config.clone()).expect("a host");
    let (passive_host, active_host) = (host(PASSIVE), host(ACTIVE));
    let address = SocketAddr::new(PASSIVE, 7471);
    let lines = Lines::new(true);
    std::thread::scope(|scope| {
        let passive = scope.spawn({
            let host = passive_host.clone();
            move || {
                let mut plan = plan();
                plan.bind = Some(address);
                let mut outcome = Outcome::new(&plan);
                let result = passive::run(host, &plan, lines, &mut outcome);
                (result, outcome)
            }
        });
        until_listening(&passive_host, &passive);
        let mut plan = plan();
        plan.server = Some(address);
        let mut outcome = Outcome::new(&plan);
        let result = active::run(active_host.clone(), &plan, address, lines, &mut outcome);
        [passive.join().expect("no panic"), (result, outcome)]
    })
}

/// R-MIG-10: what has arrived is not reported as lost because an acknowledgement was: neither side leaves while the other
/// still needs it.
#[test]
fn a_lossy_wire_costs_time_and_nothing_else() {
    for seed in 0..8 {
        let faults = Faults {
            seed,
            loss: 0.12,
            ..Faults::default()
        };
        for (result, outcome) in pair(faults) {
            let side = outcome.side;
            result.unwrap_or_else(|failure| panic!("seed {seed}, {side}: {failure}"));
            assert_eq!((outcome.messages, outcome.mismatches), (100, 0), "{side}");
            assert_eq!((outcome.migrations, outcome.events_lost), (20, 0), "{side}");
        }
    }
}
