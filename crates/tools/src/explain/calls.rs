//! Which rule of which call leads to which error number.

use super::table;

/// A call, by its name in the Rust library and by the others that it is known by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) name: &'static str,
    /// Other names, without `rdma_` or `oarlock_`.
    aliases: &'static [&'static str],
}

/// One rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// The calls that have it; [`ANY`] for every one.
    pub(super) calls: &'static [&'static str],
    pub(super) errno: i64,
    /// The errors of `oarlock-ucm` and `oarlock-cma` in which it shows.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "ties the rules to the errors, in a test")
    )]
    pub(super) shown_by: &'static [&'static str],
    /// Completes "fails when".
    pub(super) when: &'static str,
    pub(super) source: &'static str,
}

/// Stands for every call of the RDMA CM in [`Rule::calls`].
pub(super) const ANY: &str = "any call";

/// The calls of memory events, which are none of the RDMA CM's.
const MEMORY: &[&str] = &[
    "create_memory_channel",
    "reg_mr_notify",
    "dereg_mr_notified",
    "dereg_notified_mrs",
    "read_memory_events",
];

/// Calls, in the order of their commands.
pub(super) const CALLS: &[Call] = &[
    call("create_event_channel", &["open"]),
    call("create_id", &[]),
    call("destroy_id", &["close", "destroy"]),
    call("bind_addr", &["bind", "bind_ip"]),
    call("resolve_addr", &["resolve_ip"]),
    call("resolve_route", &[]),
    call(
        "query",
        &[
            "query_route",
            "local_addr",
            "peer_addr",
            "get_local_addr",
            "get_peer_addr",
            "get_src_port",
            "get_dst_port",
        ],
    ),
    call("connect", &[]),
    call("listen", &[]),
    call("accept", &[]),
    call("reject", &["reject_ece"]),
    call("disconnect", &[]),
    call("establish", &[]),
    call("load_alternate_path", &[]),
    call("init_qp_attr", &["create_qp", "create_qp_ex"]),
    call("get_event", &["get_cm_event", "get_request"]),
    call("set_option", &[]),
    call("notify", &["notify_established"]),
    call(
        "join_multicast",
        &["join_multicast_ex", "join_ip_mcast", "join_mcast"],
    ),
    call("leave_multicast", &["leave_mcast"]),
    call("send_to", &["post_ud_send"]),
    call("receive", &["recv"]),
    call("send", &["post_send"]),
    call("write", &["post_write"]),
    call("read", &["post_read"]),
    call("fetch_add", &[]),
    call("compare_swap", &[]),
    call("migrate_id", &["migrate", "migrate_to_none"]),
    call(
        "resolve_addrinfo",
        &["resolve_ib_service", "query_addrinfo"],
    ),
    call("write_cm_event", &["inject_event"]),
    call(
        "create_memory_channel",
        &[
            "destroy_memory_channel",
            "query_memory_events",
            "memory_promise",
        ],
    ),
    call("reg_mr_notify", &["register_notified"]),
    call("dereg_mr_notified", &["mr_is_valid", "validate_mr"]),
    call("dereg_notified_mrs", &["deregister_notified"]),
    call(
        "read_memory_events",
        &["settle_memory_events", "invalidate_memory"],
    ),
];

const fn call(name: &'static str, aliases: &'static [&'static str]) -> Call {
    Call { name, aliases }
}

/// Finds a call by one of its names: of the Rust library, of the C library, of the kernel's command.
pub(super) fn find(text: &str) -> Option<&'static Call> {
    let wanted = plain(text);
    CALLS
        .iter()
        .find(|call| names(call).any(|name| name == wanted))
}

/// The names most like `text`.
pub(super) fn nearest(text: &str) -> Vec<&'static str> {
    let wanted = plain(text);
    let mut ranked: Vec<(f64, &str)> = CALLS
        .iter()
        .map(|call| {
            let likeness = names(call)
                .map(|name| table::likeness(&wanted, &name))
                .fold(0.0, f64::max);
            (likeness, call.name)
        })
        .collect();
    ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    ranked.into_iter().take(3).map(|(_, name)| name).collect()
}

fn names(call: &Call) -> impl Iterator<Item = String> {
    std::iter::once(call.name)
        .chain(call.aliases.iter().copied())
        .map(plain)
}

fn plain(name: &str) -> String {
    let name = table::plain(name);
    for prefix in ["rdma-", "ucma-", "oarlock-"] {
        if let Some(rest) = name.strip_prefix(prefix) {
            return rest.to_owned();
        }
    }
    name
}

impl Rule {
    /// Whether the rule is one of that call's, or of every call's of its kind.
    pub(super) fn concerns(&self, call: &str) -> bool {
        self.calls
            .iter()
            .any(|concerned| *concerned == call || *concerned == ANY && !MEMORY.contains(&call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::rules::rules;

    #[test]
    fn calls_of_memory_events_have_no_rules_of_the_cm() {
        for call in MEMORY {
            assert_eq!(find(call).map(|call| call.name), Some(*call));
            for rule in rules().filter(|rule| rule.concerns(call)) {
                assert!(!rule.calls.contains(&ANY), "{call}: {}", rule.when);
            }
        }
        let others = CALLS.iter().filter(|call| !MEMORY.contains(&call.name));
        for call in others {
            assert!(
                !call.name.contains("memory") && !call.name.contains("_mr"),
                "{}",
                call.name
            );
        }
    }
}
