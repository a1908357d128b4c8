//! `oarlock run` and the soak that moves data.

use super::support::{assert_line, assert_status, inside, oarlock, stderr, stdout};

/// Faults reach the program, are recorded, and the program's exit status is the command's.
#[test]
fn a_program_runs_with_faults_that_are_recorded() {
    let Some(output) = inside(
        "d=$(mktemp -d); $OARLOCK ping -s >$d/server & s=$!; until grep -q listening $d/server; do sleep 0.01; done; \
         $OARLOCK run --fault drop:opcode=write,p=0.5,seed=3,count=2 --fault-record $d/faults -- $OARLOCK ping -c -a 127.0.0.1 -C 10 -V; echo ping $?; \
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

#[test]
fn what_cannot_be_run_ends_with_the_status_of_env() {
    for (arguments, status, sentence) in [
        (&["run", "--", "sh", "-c", "exit 7"][..], 7, ""),
        (
            &["run", "--", "no-such-program-here"],
            127,
            "no-such-program-here",
        ),
        (&["run", "--", "/"], 126, "/"),
        (
            &["run", "--fault", "melt:p=1", "--", "true"],
            125,
            "fault rule 1",
        ),
        (
            &["run", "--fault-record", "x", "--", "true"],
            125,
            "nothing to record",
        ),
        (&["run"], 2, ""),
        (
            &[
                "run",
                "--fault",
                "drop",
                "--fault-replay",
                "x",
                "--",
                "true",
            ],
            2,
            "--fault-replay",
        ),
    ] {
        let output = oarlock(arguments);
        assert_status(&output, status);
        let said = stderr(&output);
        assert!(said.contains(sentence), "{arguments:?}: {said}");
    }
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
