//! Faults on purpose: a program with rules in its environment, and the soak that moves data under them.

use super::support::{assert_line, assert_status, inside, stdout};

/// Faults strike the program that has them in its environment, and are recorded; it does not fail by them.
#[test]
fn a_program_runs_with_faults_that_are_recorded() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK ping -s >$d/server & s=$!; until grep -q listening $d/server; do sleep 0.01; done; \
         OARLOCK_FAULT=drop:opcode=write,p=0.5,seed=3,count=2 OARLOCK_FAULT_RECORD=$d/faults $OARLOCK ping -c -a 127.0.0.1 -C 10 -V; echo ping $?; \
         wait $s; echo server $?; grep -c ' drop qp=' $d/faults; rm -r $d",
    ) else {
        return;
    };
    let text = stdout(&output);
    for line in ["ping 0", "server 0", "2"] {
        assert_line(&text, line);
    }
    assert!(
        text.contains("10 messages of 64 bytes sent, 10 received, 0 lost, 0 wrong"),
        "{text}"
    );
}

/// Every operation both ways at a loss of packets: nothing wrong, nothing left over, and the report says how much it was.
#[test]
fn data_survives_loss_and_leaves_nothing_behind() {
    let Some(output) = inside(
        "$OARLOCK soak data --seconds 1 --loss 0.01 --fault reorder:p=0.01 --fault duplicate:p=0.01",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    let report: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    assert_eq!(report["schema"], "oarlock.soak/1");
    assert_eq!(
        (&report["ok"], &report["mismatches"]),
        (&true.into(), &0.into())
    );
    for side in ["active", "passive"] {
        let side = &report[side];
        for count in [
            "sends",
            "writes",
            "writes_with_imm",
            "reads",
            "atomics",
            "received",
            "faults",
        ] {
            assert!(side[count].as_u64().unwrap() > 0, "{count}: {side}");
        }
        assert!(side["fds"][1].as_u64() <= side["fds"][0].as_u64(), "{side}");
    }
}
