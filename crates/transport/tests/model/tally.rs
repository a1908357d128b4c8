//! What was seen: a run over all seeds that never met something has not tested it.

use std::collections::BTreeMap;
use std::fmt;

use oarlock_sim::NetworkCounters;
use oarlock_transport::{Completion, QpEvent, WcStatus};
use oarlock_wire::base::TransportClass;

use crate::plan::{Flaw, Kind, Op};

/// How often each thing was seen, by subject.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    counts: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

impl Tally {
    pub(crate) fn count(&mut self, subject: &'static str, name: impl Into<String>, by: u64) {
        if by > 0 {
            *self
                .counts
                .entry(subject)
                .or_default()
                .entry(name.into())
                .or_default() += by;
        }
    }

    pub(crate) fn op(&mut self, kind: Kind, op: &Op) {
        let class = match kind {
            Kind::Rc | Kind::RcShared => TransportClass::Rc,
            Kind::Xrc => TransportClass::Xrc,
            Kind::Uc | Kind::UcShared => TransportClass::Uc,
            Kind::Ud | Kind::UdShared => TransportClass::Ud,
        };
        self.count("operations", format!("{class} {}", op.op.name()), 1);
        let traits = [
            ("inline", op.inline.is_some()),
            ("gathered", op.sges.len() > 1),
            ("fenced", op.fence),
            ("solicited", op.solicited),
            ("unsignalled", !op.signaled),
            ("empty", op.len == 0),
        ];
        for (name, holds) in traits {
            self.count("flags", name, u64::from(holds));
        }
    }

    pub(crate) fn status(&mut self, wc: &Completion) {
        let queue = if wc.is_send { "send" } else { "receive" };
        self.count("statuses", format!("{queue}: {}", wc.status), 1);
    }

    pub(crate) fn event(&mut self, event: QpEvent) {
        self.count("events", format!("{event:?}"), 1);
    }

    pub(crate) fn fault(&mut self, name: &'static str) {
        self.count("faults", name, 1);
    }

    /// A request that failed for this reason.
    pub(crate) fn flaw(&mut self, flaw: Flaw) {
        self.count("flaws", format!("{flaw:?}"), 1);
    }

    pub(crate) fn network(&mut self, counters: &NetworkCounters) {
        self.count("network", "sent", counters.sent);
        self.count("network", "lost", counters.lost);
        self.count("network", "partitioned", counters.partitioned);
        self.count("network", "duplicated", counters.duplicated);
        self.count("network", "reordered", counters.reordered);
    }

    /// What a run over all kinds and enough seeds must have seen.
    pub(crate) fn missing(&self) -> Vec<String> {
        let mut wanted: Vec<(&'static str, String)> = Vec::new();
        let two_sided = ["SEND", "SEND with immediate"];
        let unreliable = [
            "RDMA WRITE",
            "RDMA WRITE with immediate",
            "local invalidate",
            "bind window",
        ];
        let reliable = [
            "SEND with invalidate",
            "RDMA READ",
            "compare-and-swap",
            "fetch-and-add",
        ];
        for class in ["RC", "XRC", "UC", "UD"] {
            let mut names = two_sided.to_vec();
            if class != "UD" {
                names.extend(unreliable);
            }
            if class.ends_with("RC") {
                names.extend(reliable);
            }
            wanted.extend(
                names
                    .iter()
                    .map(|op| ("operations", format!("{class} {op}"))),
            );
        }
        let mut want = |subject, names: &[&str]| {
            wanted.extend(names.iter().map(|name| (subject, (*name).to_owned())));
        };
        want(
            "flags",
            &[
                "inline",
                "gathered",
                "fenced",
                "solicited",
                "unsignalled",
                "empty",
            ],
        );
        want(
            "faults",
            &[
                "qp_error",
                "qp_reset",
                "partition",
                "rnr",
                "sqd",
                "sqe",
                "corrupt",
                "mangled",
                "no_reads_allowed",
            ],
        );
        want(
            "network",
            &["lost", "partitioned", "duplicated", "reordered"],
        );
        want(
            "events",
            &[
                "CommEst",
                "RequestError",
                "AccessError",
                "SqDrained",
                "LastWqeReached",
                "Fatal",
            ],
        );
        for status in [
            WcStatus::SUCCESS,
            WcStatus::LOC_PROT_ERR,
            WcStatus::WR_FLUSH_ERR,
            WcStatus::MW_BIND_ERR,
            WcStatus::BAD_RESP_ERR,
            WcStatus::REM_INV_REQ_ERR,
            WcStatus::REM_ACCESS_ERR,
            WcStatus::REM_OP_ERR,
            WcStatus::RETRY_EXC_ERR,
            WcStatus::RNR_RETRY_EXC_ERR,
        ] {
            wanted.push(("statuses", format!("send: {status}")));
        }
        for status in [
            WcStatus::SUCCESS,
            WcStatus::LOC_LEN_ERR,
            WcStatus::LOC_PROT_ERR,
            WcStatus::LOC_ACCESS_ERR,
            WcStatus::WR_FLUSH_ERR,
            WcStatus::REM_INV_REQ_ERR,
        ] {
            wanted.push(("statuses", format!("receive: {status}")));
        }
        for flaw in [
            Flaw::UnknownKey,
            Flaw::StaleKey,
            Flaw::NoRight,
            Flaw::OutOfBounds,
            Flaw::Unmapped,
            Flaw::NotGranted,
            Flaw::BadSource,
            Flaw::BadResult,
            Flaw::BadInvalidation,
            Flaw::BadBinding,
            Flaw::BadLocalInvalidation,
            Flaw::NoSuchQueue,
            Flaw::WrongQkey,
            Flaw::TooLong,
            Flaw::BadBuffer,
        ] {
            wanted.push(("flaws", format!("{flaw:?}")));
        }
        wanted
            .into_iter()
            .filter(|(subject, name)| {
                !self
                    .counts
                    .get(subject)
                    .is_some_and(|counts| counts.contains_key(name))
            })
            .map(|(subject, name)| format!("{subject}: {name}"))
            .collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (subject, counts) in &self.counts {
            let counts: Vec<_> = counts
                .iter()
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            writeln!(f, "{subject}: {}", counts.join(", "))?;
        }
        Ok(())
    }
}
