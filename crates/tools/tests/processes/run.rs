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
    std::fs::copy(object(), folder.path().join("liboarlock_capi.so")).unwrap();
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

/// The folder in LD_LIBRARY_PATH by hand: the library finds the tool beside it, which is the service.
#[test]
fn a_library_finds_the_service_that_came_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = count_devices(folder.path()) else {
        return;
    };
    std::fs::copy(OARLOCK, folder.path().join("oarlock")).unwrap();
    std::fs::copy(object(), folder.path().join("liboarlock_capi.so")).unwrap();
    for name in NAMES {
        std::os::unix::fs::symlink("liboarlock_capi.so", folder.path().join(name)).unwrap();
    }
    let Some(output) = inside(&format!(
        "cd /; unset OARLOCK; LD_LIBRARY_PATH={folder} {program}; ls -l /proc/*/exe 2>/dev/null | grep -c {folder}/oarlock",
        folder = folder.path().display(),
        program = program.display(),
    )) else {
        return;
    };
    assert_eq!(
        stdout(&output),
        "devices 1 channel 1\n1\n",
        "{}",
        stderr(&output)
    );
}

/// A tool that copies what links lead to makes two libraries of one. A program that is linked with them uses one of them;
/// where two would be used, the second says so and has no device.
#[test]
fn of_two_copies_in_a_process_one_works() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = count_devices(folder.path()) else {
        return;
    };
    for name in NAMES {
        std::fs::copy(object(), folder.path().join(name)).unwrap();
    }
    let text = "#include <dlfcn.h>\n#include <errno.h>\n#include <stdio.h>\n\
                int main(int argc, char **argv) { \
                void *first = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *second = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL); \
                void *(*open)(void) = dlsym(second, \"rdma_create_event_channel\"); \
                void **(*list)(int *) = dlsym(second, \"ibv_get_device_list\"); int n = -1; \
                printf(\"both %d \", first && second && first != second); \
                int made = open() != 0; printf(\"channel %d errno %d \", made, errno == ENODEV); list(&n); printf(\"devices %d\\n\", n); return 0; }\n";
    let Some(twice) = compile(folder.path(), "twice", text, &["-ldl"]) else {
        return;
    };
    let folder = folder.path().display();
    let Some(output) = inside(&format!(
        "export OARLOCK_HOSTD=$OARLOCK; LD_LIBRARY_PATH={folder} {program}; {twice} {folder}/librdmacm.so.1 {folder}/libibverbs.so.1",
        program = program.display(),
        twice = twice.display(),
    )) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert_line(&text, "devices 1 channel 1");
    assert!(
        text.contains("both 1 channel 0 errno 1 devices "),
        "{text}{errors}"
    );
    assert!(
        errors.contains("two copies of oarlock's library"),
        "{errors}"
    );
}

/// A library of the program may lead past LD_LIBRARY_PATH to rdma-core's own: who asks for devices is told.
#[test]
fn another_library_of_the_name_beside_ours_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = count_devices(folder.path()) else {
        return;
    };
    let text = "int unrelated(void) { return 0; }\n";
    let options = ["-shared", "-fPIC", "-Wl,-soname,other.so"];
    let Some(other) = compile(folder.path(), "librdmacm.so.1", text, &options) else {
        return;
    };
    let Some(output) = inside(&format!(
        "$OARLOCK run -- env LD_PRELOAD={} {}",
        other.display(),
        program.display()
    )) else {
        return;
    };
    assert_eq!(stdout(&output), "devices 1 channel 1\n");
    let errors = stderr(&output);
    assert!(
        errors.contains(&format!("{} is in this process", other.display())),
        "{errors}"
    );
}

/// The libraries say nothing unless asked; a refused call is told with its sentence and number.
#[test]
fn the_libraries_log_what_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let text = "#include <rdma/rsocket.h>\nint main(void) { rsocket(2, 1, 0); return 0; }\n";
    let Some(program) = compile(folder.path(), "refused", text, &["-lrdmacm", "-libverbs"]) else {
        return;
    };
    let program = program.display();
    let log = |options: &str| {
        let output = inside(&format!("$OARLOCK run {options} -- {program}"))?;
        assert_status(&output, 0);
        Some(stderr(&output))
    };
    let Some(silent) = log("") else { return };
    assert_eq!(silent, "");
    let asked = log("--log warn").unwrap();
    assert!(
        asked.contains("rsocket: ") && asked.contains("errno 38"),
        "{asked}"
    );
    let output = inside(&format!(
        "OARLOCK_LOG=a=b=c $OARLOCK run --log warn -- env OARLOCK_LOG=a=b=c {program}"
    ))
    .unwrap();
    assert_status(&output, 125);
    let output = inside(&format!("$OARLOCK run -- env OARLOCK_LOG=a=b=c {program}")).unwrap();
    assert_status(&output, 0);
    assert!(
        stderr(&output).contains("OARLOCK_LOG=a=b=c"),
        "{}",
        stderr(&output)
    );
}

const NAMES: [&str; 2] = ["librdmacm.so.1", "libibverbs.so.1"];

/// The shared object that was built with this program.
fn object() -> PathBuf {
    Path::new(OARLOCK)
        .parent()
        .unwrap()
        .join("deps/liboarlock_capi.so")
}

/// Compiles a program that uses both libraries, if there are a compiler and the headers.
fn count_devices(folder: &Path) -> Option<PathBuf> {
    let text = "#include <stdio.h>\n#include <rdma/rdma_cma.h>\nint main(void) { int n = -1; \
                struct ibv_device **list = ibv_get_device_list(&n); if (list) ibv_free_device_list(list); \
                struct rdma_event_channel *channel = rdma_create_event_channel(); \
                printf(\"devices %d channel %d\\n\", n, channel != 0); if (channel) rdma_destroy_event_channel(channel); return 0; }\n";
    compile(folder, "count", text, &["-lrdmacm", "-libverbs"])
}

fn compile(folder: &Path, name: &str, text: &str, libraries: &[&str]) -> Option<PathBuf> {
    let source = folder.join(format!("{name}.c"));
    std::fs::write(&source, text).unwrap();
    let program = folder.join(name);
    let built = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .args(libraries)
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
