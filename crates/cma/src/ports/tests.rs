use super::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Owners with fixed claims over one table.
struct Bench {
    ports: Ports,
    claims: RefCell<BTreeMap<Id, Claim>>,
    next: u32,
}

const RANGE: RangeInclusive<u16> = 40_000..=40_003;

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address with a port")
}

fn claim(address: &str) -> Claim {
    let address = at(address);
    Claim {
        address,
        destination: None,
        reuse_addr: false,
        af_only: address.is_ipv4(),
    }
}

fn reusing(address: &str) -> Claim {
    Claim {
        reuse_addr: true,
        ..claim(address)
    }
}

fn towards(source: &str, destination: &str) -> Claim {
    Claim {
        destination: Some(at(destination)),
        ..claim(source)
    }
}

impl Bench {
    fn new() -> Self {
        Self {
            ports: Ports::new(7),
            claims: RefCell::default(),
            next: 0,
        }
    }

    fn bind(&mut self, claim: Claim) -> Result<u16, Error> {
        self.bind_as(claim, false).map(|(_, port)| port)
    }

    fn bind_as(&mut self, claim: Claim, privileged: bool) -> Result<(Id, u16), Error> {
        let mut table = crate::handle::Table::new();
        for _ in 0..self.next {
            table.insert(());
        }
        self.next += 1;
        let id = Id::from(table.insert(()));
        let claims = self.claims.get_mut();
        let claim_of = |id: Id| claims.get(&id).copied();
        let port = self
            .ports
            .bind(id, PortSpace::TCP, &claim, &RANGE, privileged, claim_of)?;
        let mut bound = claim;
        bound.address.set_port(port);
        claims.insert(id, bound);
        Ok((id, port))
    }

    fn second(first: Claim, second: Claim) -> Result<u16, Error> {
        let mut bench = Self::new();
        bench.bind(first).expect("the table is empty");
        bench.bind(second)
    }
}

fn covered(result: &Result<u16, Error>) -> bool {
    matches!(result, Err(error @ Error::PortCovered { .. }) if error.errno() == crate::Errno::EADDRNOTAVAIL)
}

#[test]
fn equal_addresses_conflict_with_eaddrinuse() {
    let result = Bench::second(claim("10.0.0.1:5000"), claim("10.0.0.1:5000"));
    assert_eq!(
        result,
        Err(Error::PortInUse {
            wanted: at("10.0.0.1:5000")
        })
    );
    assert_eq!(
        result.map_err(|error| error.errno()),
        Err(crate::Errno::EADDRINUSE)
    );
}

#[test]
fn different_specific_addresses_share_a_port() {
    assert_eq!(
        Bench::second(claim("10.0.0.1:5000"), claim("10.0.0.2:5000")),
        Ok(5000)
    );
}

#[test]
fn any_conflicts_with_every_address_with_eaddrnotavail() {
    assert!(covered(&Bench::second(
        claim("0.0.0.0:5000"),
        claim("10.0.0.1:5000")
    )));
    assert!(covered(&Bench::second(
        claim("10.0.0.1:5000"),
        claim("0.0.0.0:5000")
    )));
    assert!(covered(&Bench::second(
        claim("0.0.0.0:5000"),
        claim("0.0.0.0:5000")
    )));
}

#[test]
fn loopback_counts_as_any() {
    assert!(covered(&Bench::second(
        claim("127.0.0.1:5000"),
        claim("10.0.0.1:5000")
    )));
    assert!(covered(&Bench::second(
        claim("127.0.0.1:5000"),
        claim("127.0.0.2:5000")
    )));
    assert!(covered(&Bench::second(
        claim("[::1]:5000"),
        claim("[fd00::1]:5000")
    )));
}

#[test]
fn families_share_a_port_only_if_both_are_af_only() {
    let v6 = claim("[::]:5000");
    assert!(covered(&Bench::second(claim("0.0.0.0:5000"), v6)));
    assert_eq!(
        Bench::second(
            claim("0.0.0.0:5000"),
            Claim {
                af_only: true,
                ..v6
            }
        ),
        Ok(5000)
    );
    let open_v4 = Claim {
        af_only: false,
        ..claim("0.0.0.0:5000")
    };
    assert!(covered(&Bench::second(
        open_v4,
        Claim {
            af_only: true,
            ..v6
        }
    )));
}

#[test]
fn owners_that_all_allow_it_share_a_port() {
    assert_eq!(
        Bench::second(reusing("10.0.0.1:5000"), reusing("10.0.0.1:5000")),
        Ok(5000)
    );
    assert_eq!(
        Bench::second(reusing("0.0.0.0:5000"), reusing("10.0.0.1:5000")),
        Ok(5000)
    );
    assert!(Bench::second(claim("10.0.0.1:5000"), reusing("10.0.0.1:5000")).is_err());
    assert!(Bench::second(reusing("10.0.0.1:5000"), claim("10.0.0.1:5000")).is_err());
}

#[test]
fn the_check_without_reuse_sees_every_other_owner_and_not_itself() {
    let mut bench = Bench::new();
    let (first, _) = bench
        .bind_as(reusing("10.0.0.1:5000"), false)
        .expect("free");
    let claims = |bench: &Bench| bench.claims.borrow().clone();
    let alone = claims(&bench);
    let check = |bench: &Bench, alone: &BTreeMap<Id, Claim>| {
        bench.ports.check(
            first,
            PortSpace::TCP,
            &reusing("10.0.0.1:5000"),
            false,
            |id| alone.get(&id).copied(),
        )
    };
    assert_eq!(check(&bench, &alone), Ok(()));
    bench.bind(reusing("10.0.0.1:5000")).expect("both allow it");
    let shared = claims(&bench);
    assert_eq!(
        check(&bench, &shared),
        Err(Error::PortInUse {
            wanted: at("10.0.0.1:5000")
        })
    );
}

#[test]
fn link_local_addresses_differ_by_interface() {
    let scoped = |scope_id| {
        let mut claim = claim("[fe80::1]:5000");
        claim.address = crate::resolve::with_scope(claim.address, scope_id);
        claim
    };
    assert_eq!(Bench::second(scoped(2), scoped(3)), Ok(5000));
    assert!(matches!(
        Bench::second(scoped(2), scoped(2)),
        Err(Error::PortInUse { .. })
    ));
}

#[test]
fn ports_below_1024_want_the_privilege() {
    let mut bench = Bench::new();
    let refused = bench.bind(claim("10.0.0.1:1023"));
    assert_eq!(refused, Err(Error::PrivilegedPort { port: 1023 }));
    assert_eq!(
        refused.map_err(|error| error.errno()),
        Err(crate::Errno::EACCES)
    );
    assert_eq!(bench.bind(claim("10.0.0.1:1024")), Ok(1024));
    assert_eq!(
        bench
            .bind_as(claim("10.0.0.1:1023"), true)
            .map(|(_, port)| port),
        Ok(1023)
    );
}

#[test]
fn ephemeral_ports_run_out_with_eaddrnotavail() {
    let mut bench = Bench::new();
    let mut got: Vec<u16> = (0..4)
        .map(|_| bench.bind(claim("10.0.0.1:0")).expect("four ports"))
        .collect();
    got.sort_unstable();
    assert_eq!(got, [40_000, 40_001, 40_002, 40_003]);
    let refused = bench.bind(claim("10.0.0.1:0"));
    assert_eq!(
        refused,
        Err(Error::NoEphemeralPort {
            first: 40_000,
            last: 40_003
        })
    );
    assert_eq!(
        refused.map_err(|error| error.errno()),
        Err(crate::Errno::EADDRNOTAVAIL)
    );
}

#[test]
fn the_port_that_was_given_last_is_not_given_again_at_once() {
    let mut bench = Bench::new();
    for _ in 0..100 {
        let (id, port) = bench.bind_as(claim("10.0.0.1:0"), false).expect("free");
        bench.ports.release(id, PortSpace::TCP, port);
        bench.claims.get_mut().remove(&id);
        assert_ne!(bench.bind(claim("10.0.0.1:0")).expect("free"), port);
        bench = Bench {
            ports: Ports {
                owners: BTreeMap::new(),
                ..bench.ports
            },
            ..Bench::new()
        };
    }
}

#[test]
fn an_ephemeral_port_is_shared_if_the_addresses_tell_the_connections_apart() {
    let filled = |claim: Claim| {
        let mut bench = Bench::new();
        for _ in 0..4 {
            bench.bind(claim).expect("four ports");
        }
        bench
    };
    let to = |destination| towards("10.0.0.1:0", destination);
    let first = to("10.0.0.9:7000");
    // Another destination port, another source address, another destination address.
    assert!(filled(first).bind(to("10.0.0.9:7001")).is_ok());
    assert!(
        filled(first)
            .bind(towards("10.0.0.2:0", "10.0.0.9:7000"))
            .is_ok()
    );
    assert!(filled(first).bind(to("10.0.0.8:7000")).is_ok());
    // The same everything; a side that is not said; a side that is any.
    assert!(filled(first).bind(first).is_err());
    assert!(filled(first).bind(claim("10.0.0.1:0")).is_err());
    assert!(
        filled(first)
            .bind(towards("0.0.0.0:0", "10.0.0.9:7000"))
            .is_err()
    );
    assert!(
        filled(first)
            .bind(towards("127.0.0.1:0", "127.0.0.1:7000"))
            .is_err()
    );
}

#[test]
fn a_released_port_is_free() {
    let mut bench = Bench::new();
    let (id, port) = bench.bind_as(claim("10.0.0.1:5000"), false).expect("free");
    assert_eq!(
        bench.ports.iter().collect::<Vec<_>>(),
        [(PortSpace::TCP, 5000, 1)]
    );
    bench.ports.release(id, PortSpace::TCP, port);
    assert_eq!(bench.ports.iter().count(), 0);
    assert_eq!(bench.bind(claim("10.0.0.1:5000")), Ok(5000));
}
