//! The list of what the verbs interface has (`verbs.list` beside the crate's manifest), judged from outside: the installed
//! `infiniband/verbs.h` says what there is to be listed, the sources say which tests exist.
//!
//! ```text
//! KIND NAME | implemented | CRATE::TEST_TARGET::TEST
//! KIND NAME | refused | WHY | CRATE::TEST_TARGET::TEST
//! ```
//! The test is one in which the presence of the thing changes something that can be seen, or in which it is refused. Why is an
//! error of the device (`Error::Variant`), `absent: TYPE`, where no value of the type could ask for it, or `never: REASON`, for
//! what a device tells and this one has no reason to.

mod constants;
mod header;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

use oarlock_sim::{assert_snapshot, not_run};
use oarlock_transport::{QpState, QpType};

use header::Header;

/// One line of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    kind: String,
    name: String,
    /// Why it is refused.
    refused: Option<String>,
    test: String,
}

/// Splits the list into its rows; the kind is everything before the name, and names have no blanks but those of transitions
/// and operations on a type, which end with capital words.
fn rows(list: &str) -> Vec<Row> {
    let lines = list.lines().filter(|line| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    lines.map(row).collect()
}

fn row(line: &str) -> Row {
    let fields: Vec<_> = line.split(" | ").map(str::trim).collect();
    let (refused, test) = match fields[..] {
        [_, "implemented", test] => (None, test),
        [_, "refused", why, test] => (Some(why.to_owned()), test),
        _ => panic!("neither `implemented` nor `refused`: {line}"),
    };
    let at = KINDS
        .iter()
        .filter(|kind| fields[0].starts_with(&format!("{kind} ")))
        .map(|kind| kind.len())
        .max();
    let at = at.unwrap_or_else(|| panic!("unknown kind: {line}"));
    Row {
        kind: fields[0][..at].to_owned(),
        name: fields[0][at + 1..].to_owned(),
        refused,
        test: test.to_owned(),
    }
}

/// What is to be listed: kind and name.
type Wanted = BTreeSet<(String, String)>;

/// Everything that is wrong with a list.
fn judge(rows: &[Row], wanted: &Wanted, test_exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for row in rows {
        let id = (row.kind.clone(), row.name.clone());
        if !seen.insert(id.clone()) {
            wrong.push(format!("twice: {} {}", row.kind, row.name));
        }
        if !test_exists(&row.test) {
            wrong.push(format!(
                "no such test: {} ({} {})",
                row.test, row.kind, row.name
            ));
        }
        let is_free = FREE_KINDS.contains(&row.kind.as_str()) || NEWER.contains(&row.name.as_str());
        if !wanted.contains(&id) && !is_free {
            wrong.push(format!("nothing of this name: {} {}", row.kind, row.name));
        }
    }
    for (kind, name) in wanted.difference(&seen) {
        wrong.push(format!("missing: {kind} {name}"));
    }
    wrong
}

/// What the header and the tables of the specification have.
fn wanted(header: &Header) -> Wanted {
    let mut wanted = transitions();
    let mut add = |kind: &str, name: &str| wanted.insert((kind.to_owned(), name.to_owned()));
    for (name, kind) in ENUMS {
        for (constant, _) in header.constants(name) {
            if !constant.ends_with("_RESERVED") && constant != MASK_OF_ALL {
                add(kind, constant);
            }
        }
    }
    for (constant, _) in header.constants("ibv_wr_opcode") {
        for qp_type in TYPES {
            // Those that exist on no type are listed once, above.
            if constants::OPERATIONS.contains(&constant) {
                add("operation on type", &format!("{constant} {qp_type}"));
            }
        }
    }
    for name in STRUCTURES {
        for member in header.members(name) {
            add("field", &format!("{name}.{member}"));
        }
    }
    for name in ["ibv_qp_ex", "ibv_cq_ex"] {
        for call in header.calls(name) {
            add("extended interface", call);
        }
    }
    wanted
}

fn transitions() -> Wanted {
    let pairs = TYPES.iter().flat_map(|qp_type| {
        STATES.iter().flat_map(move |from| {
            let names = STATES
                .iter()
                .map(move |to| format!("{qp_type} {from} {to}"));
            names.map(|name| ("transition".to_owned(), name))
        })
    });
    pairs.collect()
}

const TYPES: [QpType; 5] = [
    QpType::Rc,
    QpType::Uc,
    QpType::Ud,
    QpType::XrcInitiator,
    QpType::XrcTarget,
];

const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Error,
];

/// Each constant of these is one row of this kind.
const ENUMS: [(&str, &str); 28] = [
    ("ibv_wr_opcode", "operation"),
    ("ibv_send_flags", "send flag"),
    ("ibv_qp_type", "qp type"),
    ("ibv_qp_state", "qp state"),
    ("ibv_qp_attr_mask", "qp attribute"),
    ("ibv_qp_init_attr_mask", "qp init attribute"),
    ("ibv_qp_create_flags", "qp create flag"),
    ("ibv_qp_create_send_ops_flags", "qp send operation"),
    ("ibv_qp_open_attr_mask", "qp open attribute"),
    ("ibv_mig_state", "migration state"),
    ("ibv_mtu", "path mtu"),
    ("ibv_access_flags", "access flag"),
    ("ibv_rereg_mr_flags", "reregistration"),
    ("ibv_mw_type", "window type"),
    ("ibv_wc_status", "wc status"),
    ("ibv_wc_opcode", "wc opcode"),
    ("ibv_wc_flags", "wc flag"),
    ("ibv_create_cq_wc_flags", "cq field"),
    ("ibv_create_cq_attr_flags", "cq create flag"),
    ("ibv_cq_init_attr_mask", "cq init attribute"),
    ("ibv_cq_attr_mask", "cq attribute"),
    ("ibv_srq_type", "srq type"),
    ("ibv_srq_attr_mask", "srq attribute"),
    ("ibv_srq_init_attr_mask", "srq init attribute"),
    ("ibv_xrcd_init_attr_mask", "xrc domain attribute"),
    ("ibv_event_type", "async event"),
    ("ibv_ops_wr_opcode", "tag operation"),
    ("ibv_ops_flags", "tag flag"),
];

/// Those that are not: what a device or a port tells of itself and nobody asks for, and what is of no queue pair.
const NOT_LISTED: [&str; 38] = [
    // Tells: `oarlock devices` shows them.
    "ibv_atomic_cap",
    "ibv_device_cap_flags",
    "ibv_fork_status",
    "ibv_gid_type",
    "ibv_node_type",
    "ibv_odp_general_caps",
    "ibv_odp_transport_cap_bits",
    "ibv_pci_atomic_op_size",
    "ibv_port_cap_flags",
    "ibv_port_cap_flags2",
    "ibv_port_state",
    "ibv_raw_packet_caps",
    "ibv_rereg_mr_err_code",
    "ibv_tm_cap_flags",
    "ibv_transport_type",
    "ibv_values_mask",
    // A rate is a wish to a switch; the interface's queueing discipline limits rates.
    "ibv_rate",
    // Counters, device memory, allocators of the program: no objects of the specification.
    "ibv_counter_description",
    "ibv_read_counters_flags",
    "ibv_dm_mask",
    "ibv_parent_domain_init_attr_mask",
    // Work queues without a queue pair, and hashing over them.
    "ibv_ind_table_init_attr_mask",
    "ibv_rx_hash_fields",
    "ibv_rx_hash_function_flags",
    "ibv_wq_attr_mask",
    "ibv_wq_flags",
    "ibv_wq_init_attr_mask",
    "ibv_wq_state",
    "ibv_wq_type",
    // Flow steering of Ethernet packets.
    "ibv_flow_action_esp_keymat",
    "ibv_flow_action_esp_keymat_aes_gcm_iv_algo",
    "ibv_flow_action_esp_mask",
    "ibv_flow_action_esp_replay",
    "ibv_flow_action_esp_flags",
    "ibv_flow_attr_type",
    "ibv_flow_flags",
    "ibv_flow_spec_type",
    // Advice on registered memory: nothing is pinned here.
    "ibv_advise_mr_advice",
];

/// Each member of these is a row of kind `field`.
const STRUCTURES: [&str; 13] = [
    "ibv_ah_attr",
    "ibv_global_route",
    "ibv_sge",
    "ibv_recv_wr",
    "ibv_send_wr",
    "ibv_mw_bind_info",
    "ibv_mw_bind",
    "ibv_srq_attr",
    "ibv_qp_cap",
    "ibv_qp_init_attr",
    "ibv_qp_attr",
    "ibv_wc",
    "ibv_moderate_cq",
];

/// Not one of its kind: all of them together.
const MASK_OF_ALL: &str = "IBV_REREG_MR_FLAGS_SUPPORTED";

/// Of headers later than some that are installed.
const NEWER: [&str; 5] = [
    "IBV_WR_FLUSH",
    "IBV_WC_FLUSH",
    "IBV_QP_EX_WITH_FLUSH",
    "IBV_ACCESS_FLUSH_GLOBAL",
    "IBV_ACCESS_FLUSH_PERSISTENT",
];

/// Kinds that no enumeration has.
const FREE_KINDS: [&str; 2] = ["call", "send flag on type"];

const KINDS: [&str; 34] = {
    let mut kinds = [""; 34];
    let mut i = 0;
    while i < ENUMS.len() {
        kinds[i] = ENUMS[i].1;
        i += 1;
    }
    kinds[i] = FREE_KINDS[0];
    kinds[i + 1] = FREE_KINDS[1];
    kinds[i + 2] = "operation on type";
    kinds[i + 3] = "extended interface";
    kinds[i + 4] = "transition";
    kinds[i + 5] = "field";
    kinds
};

/// The header, or why this cannot be judged.
fn header() -> Option<Header> {
    match std::fs::read_to_string(HEADER) {
        Ok(text) => Some(Header::parse(&text)),
        Err(error) => {
            not_run("programs", format_args!("{HEADER}: {error}"));
            None
        }
    }
}

const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// The list: that of the source tree, or the file that `OARLOCK_VERBS_LIST` names.
fn list() -> String {
    let given = std::env::var_os("OARLOCK_VERBS_LIST").map(PathBuf::from);
    let file = given.unwrap_or_else(|| tree().join("crates/device/verbs.list"));
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The top of the source tree.
fn tree() -> PathBuf {
    let given = std::env::var_os("OARLOCK_SOURCES").map(PathBuf::from);
    given.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")))
}

#[test]
fn the_list_is_complete_and_its_tests_exist() {
    let rows = rows(&list());
    let tests = sources::Tests::of(&tree());
    if let Some(header) = header() {
        let wrong = judge(&rows, &wanted(&header), |test| tests.contains(test));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let known: BTreeSet<&str> = ENUMS
            .iter()
            .map(|(name, _)| *name)
            .chain(NOT_LISTED)
            .collect();
        let unknown: Vec<_> = header
            .names()
            .filter(|name| !known.contains(name))
            .collect();
        assert!(
            unknown.is_empty(),
            "enumerations never looked at: {unknown:?}"
        );
    } else {
        let own: Wanted = rows
            .iter()
            .map(|row| (row.kind.clone(), row.name.clone()))
            .collect();
        let wrong = judge(&rows, &own, |test| tests.contains(test));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
    let refused = rows.iter().filter(|row| row.refused.is_some()).count();
    let tests: BTreeSet<&str> = rows.iter().map(|row| row.test.as_str()).collect();
    println!(
        "verbs: implemented={} refused={refused} tests={}",
        rows.len() - refused,
        tests.len()
    );
}

/// One of each fault.
#[test]
fn the_judge_sees_what_is_missing_doubled_or_not_there() {
    let list =
        "send flag A | implemented | c::t::one\nsend flag B | refused | Error::X | c::t::two\n";
    let good = rows(list);
    let wanted: Wanted = ["A", "B"]
        .map(|name| ("send flag".into(), name.into()))
        .into();
    let exists = |test: &str| test == "c::t::one" || test == "c::t::two";
    assert_eq!(judge(&good, &wanted, exists), [""; 0]);
    assert_eq!(judge(&good[..1], &wanted, exists), ["missing: send flag B"]);
    let doubled = [&good[..], &good[1..]].concat();
    assert_eq!(judge(&doubled, &wanted, exists), ["twice: send flag B"]);
    let gone = |test: &str| test == "c::t::one";
    assert_eq!(
        judge(&good, &wanted, gone),
        ["no such test: c::t::two (send flag B)"]
    );
    let invented = [&good[..], &rows("send flag C | implemented | c::t::one")].concat();
    assert_eq!(
        judge(&invented, &wanted, exists),
        ["nothing of this name: send flag C"]
    );
}

#[test]
fn tests_are_found_in_the_sources_and_others_are_not() {
    let tests = sources::Tests::of(&tree());
    for there in [
        "oarlock-device::semantics::send",
        "oarlock-device::semantics::tests_are_found_in_the_sources_and_others_are_not",
        "oarlock-device::operations::extended_connections",
        "oarlock-transport::lib::every_operation_is_taken_or_refused_by_name",
    ] {
        assert!(tests.contains(there), "{there}");
    }
    for absent in [
        "oarlock-device::semantics::sends",
        "oarlock-device::operations::end",
        "oarlock-device::semantics::row",
        "oarlock-device::absent::send",
        "oarlock-nothing::semantics::send",
    ] {
        assert!(!tests.contains(absent), "{absent}");
    }
}

/// Rows of transitions say what the table of the engines says.
#[test]
fn listed_transitions_are_those_of_the_table() {
    let listed: BTreeMap<String, bool> = rows(&list())
        .into_iter()
        .filter(|row| row.kind == "transition")
        .map(|row| (row.name, row.refused.is_none()))
        .collect();
    for qp_type in TYPES {
        for from in STATES {
            for to in STATES {
                let exists = qp_type.transition(from, to).is_some();
                let name = format!("{qp_type} {from} {to}");
                assert_eq!(listed.get(&name), Some(&exists), "{name}");
            }
        }
    }
}

/// For users: the list as tables.
#[test]
fn the_document_says_what_the_list_says() {
    let path = tree().join("docs/verbs.md");
    assert_snapshot(path, &document(&rows(&list())));
}

fn document(rows: &[Row]) -> String {
    let mut out = String::from(HEAD);
    let refused = rows.iter().filter(|row| row.refused.is_some()).count();
    let _ = writeln!(
        out,
        "{} things are listed: {} implemented, {refused} refused.\n",
        rows.len(),
        rows.len() - refused
    );
    let mut kind = "";
    for row in rows.iter().filter(|row| row.kind != "transition") {
        if row.kind != kind {
            kind = &row.kind;
            let mut title: Vec<char> = kind.chars().collect();
            title[0] = title[0].to_ascii_uppercase();
            let title: String = title.into_iter().collect();
            let _ = writeln!(out, "\n## {title}\n\n| Name | | Shown by |\n|---|---|---|");
        }
        let what = match &row.refused {
            None => "yes".to_owned(),
            Some(why) => format!("no: {why}"),
        };
        let _ = writeln!(out, "| `{}` | {what} | `{}` |", row.name, row.test);
    }
    out.push_str(TRANSITIONS);
    for qp_type in TYPES {
        let _ = write!(out, "\n### {qp_type}\n\n| from \\ to |");
        for to in STATES {
            let _ = write!(out, " {to} |");
        }
        let _ = write!(out, "\n|---|{}\n", "---|".repeat(STATES.len()));
        for from in STATES {
            let _ = write!(out, "| {from} |");
            for to in STATES {
                let cell = if qp_type.transition(from, to).is_some() {
                    "yes"
                } else {
                    ""
                };
                let _ = write!(out, " {cell} |");
            }
            out.push('\n');
        }
    }
    out
}

const HEAD: &str = "\
# What of the verbs interface there is

Every operation, flag, attribute, state transition, completion status and asynchronous event that `infiniband/verbs.h` and the \
specification's tables name: implemented, with the test in which its presence changes something that can be seen, or refused. \
Nothing is accepted and ignored.

In the second column, `no: Error::X` is the error that the call gives; `no: absent: TYPE` says that no value of the type asks \
for it; `no: never: REASON` is said of what a device reports and this one does not. Tests of `oarlock-device::semantics` are \
cases of the semantic suite, which runs on every medium.

This file is made from `crates/device/verbs.list` (`OARLOCK_UPDATE=1 cargo test -p oarlock-device --test semantics document`).

";

const TRANSITIONS: &str = "
## State transitions

All are shown by `oarlock-device::semantics::transitions`, with each attribute that they need and take; those without a `yes` \
give `Error::InvalidTransition`. The masks are in `crates/transport/src/attr/transitions.txt`.
";
