use super::*;
use std::process::Command;

fn libraries() -> Libraries {
    Libraries {
        object: "/opt/oarlock/liboarlock_capi.so".into(),
        folder: "/run/user/1/oarlock/lib".into(),
    }
}

fn settings() -> Settings {
    Settings {
        fault: Vec::new(),
        trace: None,
        device: None,
        log: None,
    }
}

#[test]
fn the_folder_comes_first_and_once() {
    let search = |before: &str| search_path(&libraries(), Some(OsStr::new(before))).unwrap();
    assert_eq!(
        search_path(&libraries(), None).unwrap(),
        "/run/user/1/oarlock/lib"
    );
    assert_eq!(search("/a:/b"), "/run/user/1/oarlock/lib:/a:/b");
    assert_eq!(
        search("/a:/run/user/1/oarlock/lib:/b"),
        "/run/user/1/oarlock/lib:/a:/b"
    );
    assert_eq!(search("/run/user/1/oarlock/lib"), "/run/user/1/oarlock/lib");
}

#[test]
fn each_option_is_a_variable() {
    let settings = Settings {
        fault: vec![rule("drop:p=0.5").unwrap(), rule("delay:us=10").unwrap()],
        trace: Some("relative.pcapng".into()),
        device: Some("soft_lo".into()),
        log: Some(level("info").unwrap()),
    };
    assert!(settings.wants_notes());
    let variables = settings.variables(&libraries()).unwrap();
    let value = |name| {
        variables
            .set
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.clone())
    };
    assert_eq!(value("OARLOCK_FAULT").unwrap(), "drop:p=0.5;delay:us=10");
    assert_eq!(value("OARLOCK_DEVICE").unwrap(), "soft_lo");
    assert_eq!(value("OARLOCK_LOG").unwrap(), "info");
    let trace = PathBuf::from(value("OARLOCK_TRACE").unwrap());
    assert_eq!(trace, env::current_dir().unwrap().join("relative.pcapng"));
    assert!(value("LD_LIBRARY_PATH").is_some());

    let variables = self::settings().variables(&libraries()).unwrap();
    let names: Vec<_> = variables
        .set
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| *name != SERVICE)
        .collect();
    assert_eq!(
        names,
        ["LD_LIBRARY_PATH"],
        "what is not asked for is left as it is"
    );
}

#[test]
fn wrong_rules_and_levels_are_refused_with_a_reason() {
    assert!(rule("drop:opcode").unwrap_err().contains("opcode"));
    assert!(level("a=b=c").is_err());
    assert!(level("loud").unwrap_err().contains("debug"));
    for right in ["warn", "OFF", "oarlock_hostd", "warn,oarlock_hostd=debug"] {
        assert_eq!(level(right).as_deref(), Ok(right));
    }
}

#[test]
fn a_trace_begins_as_an_empty_file_and_one_for_each_process_is_left_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.pcapng");
    std::fs::write(&file, "old").unwrap();
    let begin = |path: PathBuf| {
        Settings {
            trace: Some(path),
            ..settings()
        }
        .begin_trace()
    };
    begin(file.clone()).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"");
    begin(folder.path().join("%p.pcapng")).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let refusal = begin(folder.path().join("none/t")).unwrap_err();
    assert!(refusal.sentence.contains("none/t"), "{}", refusal.sentence);
}

/// What is printed is read by the shells themselves; a value has every character that means something to one.
#[test]
fn each_shell_reads_what_is_printed_for_it() {
    let value = r#"a b'c"d\e$f`g!h;i*j{k}l~m&n|o#p(q)r<s>t"#;
    let variables = Variables {
        set: vec![("FIRST", value.into()), ("SECOND", "plain".into())],
        unset: vec!["THIRD"],
    };
    for (shell, programs) in [
        (Shell::Sh, ["sh", "bash"].as_slice()),
        (Shell::Fish, &["fish"]),
        (Shell::Csh, &["tcsh", "csh"]),
    ] {
        let script = String::from_utf8(shell.script(&variables)).unwrap();
        for program in programs {
            let output = Command::new(program)
                .args(["-c", &format!("{script}env")])
                .env("THIRD", "there")
                .env("HOME", "/nonexistent")
                .output();
            let Ok(output) = output else { continue };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            for line in [format!("FIRST={value}"), "SECOND=plain".to_owned()] {
                assert!(
                    text.lines().any(|found| found == line),
                    "{program}: no {line} in\n{text}{script}"
                );
            }
            assert!(!text.contains("THIRD="), "{program}");
        }
    }
}
