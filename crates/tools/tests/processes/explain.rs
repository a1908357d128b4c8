//! `oarlock explain` as a program.

use super::support::{assert_line, assert_status, oarlock, stderr, stdout};

#[test]
fn codes_are_explained_by_number_and_name_in_text_and_json() {
    for arguments in [
        &["explain", "reject", "28"][..],
        &["explain", "reject", "consumer-defined"],
        &["explain", "reject", "IB_CM_REJ_CONSUMER_DEFINED"],
        &["explain", "reject", "0x1c"],
    ] {
        let output = oarlock(arguments);
        assert_status(&output, 0);
        assert_line(&stdout(&output), "reject 28: consumer-defined");
        for part in ["meaning: ", "remedy:  ", "source:  "] {
            assert!(
                stdout(&output).lines().any(|line| line.starts_with(part)),
                "{arguments:?} {part}"
            );
        }
    }
    let output = oarlock(&[
        "explain",
        "errno",
        "-111",
        "--call",
        "rdma_connect",
        "--json",
    ]);
    assert_status(&output, 0);
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(value["schema"], "oarlock.explain/1");
    assert_eq!(
        (&value["ok"], &value["kind"], &value["code"], &value["name"]),
        (
            &true.into(),
            &"errno".into(),
            &111.into(),
            &"ECONNREFUSED".into()
        )
    );
    assert_eq!(value["call"], "connect");
    assert!(
        value["rules"][0]["when"]
            .as_str()
            .unwrap()
            .contains("rejected"),
        "{value}"
    );
}

#[test]
fn an_unknown_code_or_call_ends_with_1_and_the_nearest_names() {
    for (arguments, nearest) in [
        (
            &["explain", "event", "RDMA_CM_EVENT_REJECT"][..],
            "RDMA_CM_EVENT_REJECTED",
        ),
        (&["explain", "reject", "36"], "vendor-option-not-supported"),
        (&["explain", "errno", "EADDRINUS"], "EADDRINUSE"),
        (
            &["explain", "errno", "EINVAL", "--call", "conect"],
            "connect",
        ),
    ] {
        let output = oarlock(arguments);
        assert_status(&output, 1);
        assert_eq!(stdout(&output), "", "{arguments:?}");
        let said = stderr(&output);
        assert!(
            said.starts_with("error: there is no ") && said.contains(nearest),
            "{said}"
        );
        let output = oarlock(&[arguments, &["--json"]].concat());
        assert_status(&output, 1);
        let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(value["ok"], false);
        assert!(
            value["nearest"]
                .as_array()
                .unwrap()
                .contains(&nearest.into()),
            "{value}"
        );
    }
}

#[test]
fn a_call_with_another_code_than_an_errno_is_wrong_usage() {
    let output = oarlock(&["explain", "reject", "28", "--call", "connect"]);
    assert_status(&output, 2);
    assert!(stderr(&output).contains("--call goes with errno"));
    assert_status(&oarlock(&["explain", "rejects", "28"]), 2);
}
