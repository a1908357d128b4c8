use super::*;
use oarlock_cma::{Errno, EventKind};
use oarlock_transport::{VendorError, WcStatus};
use oarlock_wire::RejReason;

const TABLES: [&Table; 6] = [
    &reject::TABLE,
    &sidr::TABLE,
    &errno::TABLE,
    &event::TABLE,
    &status::TABLE,
    &vendor::TABLE,
];

const UCM_FAILURES: &str = include_str!("../../../ucm/src/failure.rs");
const CMA_ERRORS: &str = include_str!("../../../cma/src/error.rs");
const RDMACM_ERRORS: &str = include_str!("../../../rdmacm/src/error.rs");

#[test]
fn every_entry_is_found_by_its_number_and_by_each_of_its_names() {
    for table in TABLES {
        for entry in table.entries {
            let found = |text: &str| {
                let found = table.find(text);
                assert_eq!(
                    found.map(|found| found.code),
                    Some(entry.code),
                    "{} {text}",
                    table.kind
                );
            };
            found(&entry.code.to_string());
            found(&format!("{:#x}", entry.code));
            found(entry.name);
            found(&entry.name.to_uppercase().replace('-', "_"));
            found(&entry.name.to_lowercase().replace('-', " "));
            for alias in entry.aliases {
                found(alias);
                found(&format!("{}{alias}", table.prefix));
            }
        }
    }
}

#[test]
fn entries_stand_in_order_and_say_everything() {
    for table in TABLES {
        assert!(
            table.entries.is_sorted_by(|a, b| a.code < b.code),
            "{}",
            table.kind
        );
        for entry in table.entries {
            for text in [entry.name, entry.meaning, entry.remedy, entry.source] {
                assert!(
                    !text.is_empty() && !text.ends_with('.') && text.trim() == text,
                    "{} {}: {text:?}",
                    table.kind,
                    entry.code
                );
            }
        }
    }
}

/// Public fault 26: every reason from 1 to 35 has its name and its remedy; the names are those that logs and errors print.
#[test]
fn every_reject_reason_is_explained_under_the_name_that_messages_use() {
    for code in 1..=35_u16 {
        let entry = reject::TABLE
            .find(&code.to_string())
            .unwrap_or_else(|| panic!("reason {code}"));
        match RejReason(code).name() {
            Some(name) => {
                assert_eq!(table::plain(name), table::plain(entry.name), "{code}");
                assert_eq!(
                    reject::TABLE.find(name).map(|found| found.code),
                    Some(i64::from(code))
                );
            }
            None => assert_eq!(entry.name, "unassigned", "{code}"),
        }
    }
    assert_eq!(reject::TABLE.entries.len(), 35);
}

#[test]
fn every_sidr_status_and_every_event_is_explained() {
    let codes = |table: &Table| -> Vec<i64> { table.entries.iter().map(|e| e.code).collect() };
    assert_eq!(codes(&sidr::TABLE), (0..=5).collect::<Vec<_>>());
    assert_eq!(codes(&event::TABLE), (0..=19).collect::<Vec<_>>());
    for code in 0..=19_u32 {
        let entry = event::TABLE.find(&code.to_string()).expect("0 to 19");
        if let Some(name) = EventKind(code).name() {
            assert_eq!(entry.name, format!("RDMA_CM_EVENT_{name}"));
        }
    }
}

#[test]
fn every_vendor_error_and_every_status_is_explained_under_the_name_that_messages_use() {
    let known: Vec<(i64, &str)> = VendorError::ALL
        .iter()
        .map(|(error, name)| (i64::from(error.0), *name))
        .collect();
    let explained: Vec<(i64, &str)> = vendor::TABLE
        .entries
        .iter()
        .map(|entry| (entry.code, entry.name))
        .collect();
    assert_eq!(explained, known);
    for code in 0..=23 {
        let entry = status::TABLE.find(&code.to_string()).expect("0 to 23");
        let said = WcStatus(code).to_string();
        // What has no words here is not given here.
        if said != format!("status {code}") {
            let found = status::TABLE.find(&said).map(|found| found.code);
            assert_eq!(found, Some(entry.code), "{said}");
        }
    }
    assert_eq!(status::TABLE.entries.len(), 24);
}

#[test]
fn every_errno_of_the_stack_is_explained_under_its_name() {
    let mut known = 0;
    for number in 1..=1024 {
        let Some(name) = Errno(number).name() else {
            continue;
        };
        known += 1;
        let entry = errno::TABLE
            .find(&number.to_string())
            .unwrap_or_else(|| panic!("{name}"));
        assert_eq!(entry.name, name);
    }
    assert!(known > 10, "the numbers of identifiers");
    let mut named = 0;
    for source in [UCM_FAILURES, CMA_ERRORS, RDMACM_ERRORS] {
        for name in words(source).filter(|word| is_errno_name(word)) {
            named += 1;
            assert!(errno::TABLE.find(name).is_some(), "{name} is not explained");
        }
    }
    assert!(named > 25, "the numbers in the sources: {named}");
}

#[test]
fn names_of_error_numbers_are_those_of_the_system() {
    for entry in errno::TABLE.entries.iter().filter(|e| e.name != "ENOTSUPP") {
        let system = std::io::Error::from_raw_os_error(i32::try_from(entry.code).unwrap());
        assert!(
            !system.to_string().contains("Unknown error"),
            "{}",
            entry.name
        );
    }
    for (name, code) in [
        ("EINVAL", libc::EINVAL),
        ("EDEADLK", libc::EDEADLK),
        ("EPROTO", libc::EPROTO),
        ("ECANCELED", libc::ECANCELED),
        ("EOPNOTSUPP", libc::EOPNOTSUPP),
        ("EPROTONOSUPPORT", libc::EPROTONOSUPPORT),
        ("ENODATA", libc::ENODATA),
    ] {
        assert_eq!(
            errno::TABLE.find(name).map(|entry| entry.code),
            Some(i64::from(code))
        );
    }
}

/// Each way to fail of `oarlock-ucm`, `oarlock-cma` and `oarlock-rdmacm` has a rule with its error number; what was added
/// there without one shows here.
#[test]
fn every_way_to_fail_has_a_rule_with_its_number() {
    let mut ways = 0;
    let mut missing = Vec::new();
    for (krate, source) in [("ucm", UCM_FAILURES), ("cma", CMA_ERRORS)] {
        for (variant, errno) in ways_to_fail(source) {
            ways += 1;
            let code = errno::TABLE.find(&errno).map(|entry| entry.code);
            let has_rule = rules::rules()
                .any(|rule| rule.shown_by.contains(&variant.as_str()) && Some(rule.errno) == code);
            if !has_rule {
                missing.push(format!("{krate}: {variant} gives {errno}"));
            }
        }
    }
    assert!(ways > 60, "{ways}");
    // Here the numbers partly come from elsewhere; each way has some rule.
    let text = after(RDMACM_ERRORS, "pub fn errno(&self)", "\n    }\n");
    for variant in words(text).filter_map(|word| word.strip_prefix("Self::")) {
        // These carry an error of another layer.
        let carried = [
            "Refused",
            "Verbs",
            "Channel",
            "AddressResolution",
            "RouteResolution",
            "ConnectFailed",
        ];
        if !carried.contains(&variant)
            && !rules::rules().any(|rule| rule.shown_by.contains(&variant))
        {
            missing.push(format!("rdmacm: {variant}"));
        }
    }
    assert!(
        missing.is_empty(),
        "no rule of `explain` says when: {missing:#?}"
    );
}

#[test]
fn no_rule_is_shown_by_an_error_that_does_not_exist() {
    for name in rules::rules().flat_map(|rule| rule.shown_by) {
        let variant = format!("Self::{name}");
        assert!(
            [UCM_FAILURES, CMA_ERRORS, RDMACM_ERRORS]
                .iter()
                .any(|source| words(source).any(|word| word == variant)),
            "{name}"
        );
    }
}

#[test]
fn rules_name_known_calls_and_explained_numbers_and_each_call_has_one() {
    for rule in rules::rules() {
        assert!(
            errno::TABLE.find(&rule.errno.to_string()).is_some(),
            "{rule:?}"
        );
        for name in rule.calls.iter().filter(|name| **name != calls::ANY) {
            assert_eq!(calls::find(name).map(|call| call.name), Some(*name));
        }
        for text in [rule.when, rule.source] {
            assert!(!text.is_empty() && !text.ends_with('.'), "{text:?}");
        }
    }
    for name in ["connect", "rdma_connect", "CONNECT"] {
        assert_eq!(calls::find(name).map(|call| call.name), Some("connect"));
    }
    for (name, call) in [
        ("rdma_create_qp", "init_qp_attr"),
        ("JOIN_IP_MCAST", "join_multicast"),
        ("MIGRATE_ID", "migrate_id"),
        ("rdma_get_cm_event", "get_event"),
    ] {
        assert_eq!(calls::find(name).map(|call| call.name), Some(call));
    }
}

#[test]
fn the_rules_of_one_call_are_its_own_and_those_of_every_call() {
    let entry = errno::TABLE.find("EINVAL").unwrap();
    let lines = text(
        &errno::TABLE,
        entry,
        Some("connect"),
        Some(&rules_of(entry, "connect")),
    )
    .join("\n");
    for part in [
        "connect gives EINVAL when:",
        "ROUTE_RESOLVED",
        "56 bytes of private data",
        "another event channel",
    ] {
        assert!(lines.contains(part), "{part} in\n{lines}");
    }
    assert!(!lines.contains("TOS and ACK_TIMEOUT"), "{lines}");
    let entry = errno::TABLE.find("98").unwrap();
    let none = text(&errno::TABLE, entry, Some("connect"), Some(&[])).join("\n");
    assert!(
        none.contains("no rule of connect leads to EADDRINUSE"),
        "{none}"
    );
    assert!(none.contains("it comes from: bind_addr"), "{none}");
}

#[test]
fn an_unknown_code_is_answered_with_the_nearest_names() {
    for (table, text, nearest) in [
        (&reject::TABLE, "consumer-define", "consumer-defined"),
        (&reject::TABLE, "stale", "stale-connection"),
        (&reject::TABLE, "36", "vendor-option-not-supported"),
        (&errno::TABLE, "EADDRINUS", "EADDRINUSE"),
        (&errno::TABLE, "112", "ECONNREFUSED"),
        (
            &event::TABLE,
            "RDMA_CM_EVENT_REJECT",
            "RDMA_CM_EVENT_REJECTED",
        ),
        (&event::TABLE, "disconected", "RDMA_CM_EVENT_DISCONNECTED"),
        (&sidr::TABLE, "redirct", "redirect"),
    ] {
        assert!(table.find(text).is_none(), "{text}");
        let offered = table.nearest(text);
        assert!(offered.contains(&nearest), "{text}: {offered:?}");
        assert!(offered.len() <= 3, "{offered:?}");
    }
    assert!(calls::nearest("conect").contains(&"connect"));
    for hostile in [
        "",
        " ",
        "-",
        "0x",
        "--",
        "99999999999999999999",
        "\u{0}",
        "ä",
    ] {
        for table in TABLES {
            assert!(table.find(hostile).is_none(), "{hostile:?}");
            assert!(!table.nearest(hostile).is_empty(), "{hostile:?}");
        }
    }
}

#[test]
fn a_status_with_a_minus_sign_is_an_error_number_and_nothing_else() {
    assert_eq!(errno::TABLE.find("-110").map(|e| e.name), Some("ETIMEDOUT"));
    assert!(event::TABLE.find("-1").is_none());
    assert!(reject::TABLE.find("-28").is_none());
}

#[test]
fn the_json_form_has_the_keys_of_the_contract() {
    let entry = reject::TABLE.find("28").unwrap();
    let value = serde_json::to_value(explanation(&reject::TABLE, entry, None, None)).unwrap();
    let keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut contract = ["kind", "code", "name", "meaning", "remedy", "source"];
    contract.sort_unstable();
    assert_eq!(keys, contract);
    assert_eq!(value["code"], 28);
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))
        .filter(|word| !word.is_empty())
        .map(|word| word.strip_prefix("Errno::").unwrap_or(word))
        .map(|word| word.strip_prefix("libc::").unwrap_or(word))
        .map(|word| word.strip_prefix("number::").unwrap_or(word))
}

fn is_errno_name(word: &str) -> bool {
    word.len() > 3 && word.starts_with('E') && word.bytes().all(|b| b.is_ascii_uppercase())
}

fn after<'a>(source: &'a str, start: &str, end: &str) -> &'a str {
    let at = source.find(start).unwrap_or_else(|| panic!("{start}"));
    let rest = &source[at..];
    &rest[..rest.find(end).unwrap_or(rest.len())]
}

/// Variant and error number of each arm of `errno`.
fn ways_to_fail(source: &str) -> Vec<(String, String)> {
    let text = after(source, "pub const fn errno(&self)", "\n    }\n");
    let mut ways = Vec::new();
    let mut variants: Vec<&str> = Vec::new();
    for word in words(text) {
        if let Some(variant) = word.strip_prefix("Self::") {
            variants.push(variant);
        } else if is_errno_name(word) {
            for variant in variants.drain(..) {
                ways.push((variant.to_owned(), word.to_owned()));
            }
        } else if word == "error" {
            // An error of the layer below gives its own number.
            variants.clear();
        }
    }
    ways
}
