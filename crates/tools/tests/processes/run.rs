//! `oarlock run` and `oarlock env`: what the program sees of them, and what their caller does.

use super::support::{OARLOCK, assert_line, assert_status, inside, oarlock, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program takes the place of `oarlock run`: whatever it ends with is seen as it is.
#[test]
fn the_exit_status_is_that_of_the_program() {
    let Some(output) = inside(
        "for i in 0 1 2 7 125 255; do $OARLOCK run -- sh -c \"exit $i\"; echo status $i is $?; done; \
         $OARLOCK run -- sh -c 'kill -KILL $$'; echo killed is $?; \
         $OARLOCK run -- sh -c 'kill -SEGV $$' 2>/dev/null; echo fault is $?; \
         $OARLOCK run -- sh -c 'kill -PIPE $$'; echo pipe is $?",
    ) else {
        return;
    };
    let text = stdout(&output);
    for status in [0, 1, 2, 7, 125, 255] {
        assert_line(&text, &format!("status {status} is {status}"));
    }
    assert_line(&text, "killed is 137");
    assert_line(&text, "fault is 139");
    assert_line(&text, "pipe is 141");
}

#[test]
fn signals_reach_the_program_and_its_standard_streams_are_its_own() {
    let Some(output) = inside(
        "$OARLOCK run -- sh -c 'trap \"echo got TERM; exit 9\" TERM; echo ready >&2; while :; do sleep 0.05; done' 2>ready & \
         child=$!; until grep -q ready ready 2>/dev/null; do sleep 0.05; done; kill -TERM $child; wait $child; echo ended with $?; \
         echo word | $OARLOCK run -- cat; \
         $OARLOCK run -- sh -c 'echo number $$' >number & child=$!; wait $child; grep -qx \"number $child\" number && echo the same process; \
         $OARLOCK run -- sh -c 'echo \"$0|$1|$2\"' 'a b' '' --help; rm -f ready number",
    ) else {
        return;
    };
    let text = stdout(&output);
    for line in [
        "got TERM",
        "ended with 9",
        "word",
        "the same process",
        "a b||--help",
    ] {
        assert_line(&text, line);
    }
}

#[test]
fn what_cannot_be_run_has_the_status_of_env() {
    for (arguments, status, word) in [
        (
            &["run", "--", "no-such-program-at-all"][..],
            127,
            "no-such-program-at-all",
        ),
        (&["run", "--", "/none/at/all"], 127, "/none/at/all"),
        (&["run", "--", "/"], 126, "/"),
        (&["run", "--", "/etc/passwd"], 126, "/etc/passwd"),
        (
            &["run", "--no-such-option", "--", "true"],
            125,
            "--no-such-option",
        ),
        (&["run"], 125, "PROGRAM"),
        (
            &["run", "--fault", "drop:probability=1", "--", "true"],
            125,
            "probability",
        ),
        (&["run", "--log", "a=b=c", "--", "true"], 125, "--log"),
        (
            &["run", "--trace", "/none/t.pcapng", "--", "true"],
            125,
            "/none/t.pcapng",
        ),
        (&["env", "--no-such-option"], 2, "--no-such-option"),
    ] {
        let output = oarlock(arguments);
        assert_status(&output, status);
        assert!(
            stderr(&output).contains(word),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

/// The environment: only the program's, and its children's.
#[test]
fn the_program_and_its_children_get_the_libraries_and_what_was_asked_for() {
    let Some(output) = inside(
        "export LD_LIBRARY_PATH=/before; cd /tmp; \
         $OARLOCK run --device soft_lo --log warn --fault drop:p=0.5 --fault delay:us=5 -- sh -c env; echo after=$LD_LIBRARY_PATH",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    for line in [
        "OARLOCK_DEVICE=soft_lo",
        "OARLOCK_LOG=warn",
        "OARLOCK_FAULT=drop:p=0.5;delay:us=5",
        "after=/before",
    ] {
        assert_line(&text, line);
    }
    let path = text
        .lines()
        .find_map(|line| line.strip_prefix("LD_LIBRARY_PATH="))
        .unwrap();
    let (folder, rest) = path.split_once(':').unwrap();
    assert_eq!(rest, "/before");
    for name in ["librdmacm.so.1", "libibverbs.so.1"] {
        let object = Path::new(folder).join(name).canonicalize().unwrap();
        assert_eq!(object.file_name().unwrap(), "liboarlock_capi.so");
    }
    let service = text
        .lines()
        .find_map(|line| line.strip_prefix("OARLOCK_HOSTD="))
        .unwrap();
    assert_eq!(
        Path::new(service).canonicalize().unwrap(),
        Path::new(OARLOCK).canonicalize().unwrap()
    );
}

#[test]
fn env_is_the_same_for_a_shell() {
    let Some(output) = inside(
        "eval \"$($OARLOCK env --device soft_lo)\" || exit 1; env; eval \"$($OARLOCK env)\"; echo again=$LD_LIBRARY_PATH",
    ) else {
        return;
    };
    assert_status(&output, 0);
    let text = stdout(&output);
    assert_line(&text, "OARLOCK_DEVICE=soft_lo");
    let path = text
        .lines()
        .find_map(|line| line.strip_prefix("LD_LIBRARY_PATH="))
        .unwrap();
    assert_line(&text, &format!("again={path}"));
}

/// A program that is linked with both libraries sees the device, from a folder with nothing but this program and the shared
/// object in it, and a service that `run` has started.
#[test]
fn one_folder_that_was_copied_in_is_enough_for_a_program() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = count_devices(folder.path()) else {
        return;
    };
    let object = Path::new(OARLOCK)
        .parent()
        .unwrap()
        .join("deps/liboarlock_capi.so");
    std::fs::copy(object, folder.path().join("liboarlock_capi.so")).unwrap();
    std::fs::copy(OARLOCK, folder.path().join("oarlock")).unwrap();
    let Some(output) = inside(&format!(
        "cd {folder}; mkdir -m 700 run; export XDG_RUNTIME_DIR=$PWD/run; unset OARLOCK; \
         ./oarlock run -- {program} || exit 1; ./oarlock ps >/dev/null || exit 2; ./oarlock run --device none -- {program}; \
         rm -r run; mkdir -m 700 run; ./oarlock run -- ./oarlock run -- {program}",
        folder = folder.path().display(),
        program = program.display(),
    )) else {
        return;
    };
    assert_status(&output, 0);
    assert_eq!(
        stdout(&output),
        "devices 1 channel 1\ndevices 0 channel 1\ndevices 1 channel 1\n",
        "{}",
        stderr(&output)
    );
}

/// Compiles a program that uses both libraries, if there are a compiler and the headers.
fn count_devices(folder: &Path) -> Option<PathBuf> {
    let source = folder.join("count.c");
    let text = "#include <stdio.h>\n#include <rdma/rdma_cma.h>\nint main(void) { int n = -1; \
                struct ibv_device **list = ibv_get_device_list(&n); if (list) ibv_free_device_list(list); \
                struct rdma_event_channel *channel = rdma_create_event_channel(); \
                printf(\"devices %d channel %d\\n\", n, channel != 0); if (channel) rdma_destroy_event_channel(channel); return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let program = folder.join("count");
    let built = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .args(["-lrdmacm", "-libverbs"])
        .output();
    match built {
        Ok(output) if output.status.success() => Some(program),
        _ => {
            oarlock_sim::not_run(
                "programs",
                "a C compiler or the headers of rdma-core are not installed",
            );
            None
        }
    }
}
