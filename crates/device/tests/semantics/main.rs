//! The semantic suite: what each operation, flag, attribute, state and error means, as cases that are written once, with two
//! sides, and run on every medium: between two devices of one process on an in-memory wire, and between two processes by
//! UDP 4791 with IPv4 and with IPv6. Every medium runs the same list.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `OARLOCK_SEMANTICS_MEDIUM` | only this medium: `private`, `udp4`, `udp6` |
//! | `OARLOCK_SEMANTICS_CASE` | only these cases: names, with commas |
//! | `OARLOCK_SEMANTICS_PCAP` | a file that every packet of both sides is appended to |
//!
//! `verbs.list` names what of the verbs interface is there, and by which case that is seen (`list`).

#[path = "../support/mod.rs"]
mod support;

mod attributes;
mod conn;
mod datagrams;
mod end;
mod events;
mod forge;
mod list;
mod medium;
mod memory;
mod moving;
mod ordering;
mod queues;
mod refused;
mod retries;
mod states;
mod statuses;
mod wrong_peers;

use medium::{Medium, run};

/// One case: what each side does.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) a: fn(&mut end::End),
    pub(crate) b: fn(&mut end::End),
}

/// Declares the cases of a module: name, first side, second side.
macro_rules! cases {
    ($($(#[$doc:meta])* $name:ident: $a:expr, $b:expr;)*) => {
        pub(crate) const CASES: &[crate::Case] = &[$(crate::Case {
            name: stringify!($name),
            a: $a,
            b: $b,
        }),*];
    };
}
pub(crate) use cases;

/// Compares bytes; says where they differ, and not all of them.
macro_rules! assert_same {
    ($left:expr, $right:expr $(, $what:literal)?) => {{
        let (left, right): (&[u8], &[u8]) = (&$left, &$right);
        let differ = left.iter().zip(right).position(|(a, b)| a != b);
        assert_eq!((left.len(), differ), (right.len(), None) $(, $what)?);
    }};
}
pub(crate) use assert_same;

/// Every case, in the order in which they run.
pub(crate) fn all_cases() -> impl Iterator<Item = &'static Case> {
    [
        moving::CASES,
        ordering::CASES,
        memory::CASES,
        retries::CASES,
        states::CASES,
        attributes::CASES,
        statuses::CASES,
        wrong_peers::CASES,
        events::CASES,
        queues::CASES,
        datagrams::CASES,
        refused::CASES,
    ]
    .into_iter()
    .flatten()
}

#[test]
fn each_case_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<&str> = all_cases().map(|case| case.name).collect();
    assert_eq!(names.len(), all_cases().count());
}

#[test]
fn private() {
    run(Medium::Private, "private");
}

#[test]
fn udp4() {
    run(Medium::Udp4, "udp4");
}

#[test]
fn udp6() {
    run(Medium::Udp6, "udp6");
}
