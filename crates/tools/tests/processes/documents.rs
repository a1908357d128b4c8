//! Manual pages and completions as programs see them.

use super::support::{OARLOCK, assert_status, oarlock, stderr, stdout};
use std::process::Command;

#[test]
fn a_page_is_printed_for_every_command_and_none_for_others() {
    for (arguments, title) in [
        (&["man"][..], "OARLOCK"),
        (&["man", "ping"], "OARLOCK-PING"),
        (&["man", "trace", "ladder"], "OARLOCK-TRACE-LADDER"),
    ] {
        let output = oarlock(arguments);
        assert_status(&output, 0);
        assert!(
            stdout(&output).contains(&format!(".TH {title} 1 ")),
            "{arguments:?}"
        );
    }
    let output = oarlock(&["man", "no-such-command"]);
    assert_status(&output, 2);
    assert!(
        stderr(&output).contains("oarlock-ping"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_page_takes_the_place_of_a_link_and_leaves_what_it_leads_to() {
    let dir = tempfile::tempdir().unwrap();
    let (elsewhere, pages) = (dir.path().join("elsewhere"), dir.path().join("pages"));
    std::fs::create_dir(&pages).unwrap();
    std::fs::write(&elsewhere, "of somebody else").unwrap();
    std::os::unix::fs::symlink(&elsewhere, pages.join("oarlock.1")).unwrap();
    std::os::unix::fs::symlink("/none", pages.join("rdma_connect.3")).unwrap();
    std::fs::write(pages.join("oarlock-ping.1"), "of before").unwrap();
    assert_status(&oarlock(&["man", "--write", pages.to_str().unwrap()]), 0);
    assert_eq!(
        std::fs::read_to_string(&elsewhere).unwrap(),
        "of somebody else"
    );
    for name in ["oarlock.1", "rdma_connect.3", "oarlock-ping.1"] {
        let page = pages.join(name);
        assert!(page.symlink_metadata().unwrap().is_file(), "{name}");
        assert!(std::fs::read_to_string(&page).unwrap().contains(".TH"));
    }
    // A link to the page itself is as good as the page.
    let page = pages.join("rdma_accept.3");
    std::fs::rename(&page, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &page).unwrap();
    assert_status(&oarlock(&["man", "--write", pages.to_str().unwrap()]), 0);
    assert!(page.is_symlink());
    // Nothing else is left there.
    let entries = std::fs::read_dir(&pages).unwrap();
    for entry in entries {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.starts_with(['o', 'r']), "{name}");
    }
}

/// The formatters that are installed have nothing to say about any page.
#[test]
fn formatters_have_no_complaint() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    assert_status(&oarlock(&["man", "--write", folder]), 0);
    let pages: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(pages.len() >= 12, "{pages:?}");
    for (program, arguments) in [
        ("groff", &["-man", "-Tutf8", "-ww", "-z"][..]),
        ("mandoc", &["-Tlint"]),
    ] {
        for page in &pages {
            let Ok(output) = Command::new(program).args(arguments).arg(page).output() else {
                oarlock_sim::not_run("formatters", format!("{program} is not installed"));
                break;
            };
            let said = stdout(&output) + &stderr(&output);
            assert_eq!(said, "", "{program} {}", page.display());
        }
    }
}

/// What bash offers for a line that ends at its last word.
fn bash_offers(words: &[&str]) -> Vec<String> {
    let script = format!(
        "source <(\"{OARLOCK}\" completions bash) || exit 1; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
         _oarlock oarlock \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let output = Command::new("bash")
        .args(["--norc", "-c", &script, "bash"])
        .args(words)
        .output()
        .expect("bash runs");
    assert_status(&output, 0);
    stdout(&output)
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    assert_eq!(bash_offers(&["oarlock", "exp"]), ["explain"]);
    assert_eq!(bash_offers(&["oarlock", "pi"]), ["ping"]);
    assert_eq!(
        bash_offers(&["oarlock", "explain", ""])
            .into_iter()
            .filter(|word| !word.starts_with('-') && !word.starts_with('<'))
            .collect::<Vec<_>>(),
        ["reject", "sidr", "errno", "event", "status", "vendor"]
    );
    assert_eq!(
        bash_offers(&["oarlock", "ping", "--conn"]),
        ["--connect-timeout"]
    );
    assert_eq!(bash_offers(&["oarlock", "cmatose", "-f", "ipv"]), ["ipv6"]);
    assert_eq!(bash_offers(&["oarlock", "trace", "lad"]), ["ladder"]);
    assert_eq!(bash_offers(&["oarlock", "completions", "f"]), ["fish"]);
}

/// Each script is one that its shell can read; where the shell is not installed, at least one that names every command.
#[test]
fn every_shell_gets_a_script_of_all_commands() {
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let output = oarlock(&["completions", shell]);
        assert_status(&output, 0);
        let script = stdout(&output);
        for command in [
            "demo", "cmatose", "cmtime", "bench", "ping", "explain", "devices", "ps", "host",
            "trace", "man",
        ] {
            assert!(script.contains(command), "{shell}: {command}");
        }
        for hidden in ["soak", "pcap-data-only"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("script");
        std::fs::write(&file, script).unwrap();
        match Command::new(shell).arg(check).arg(&file).output() {
            Ok(read) => assert_status(&read, 0),
            Err(_) => oarlock_sim::not_run("shells", format!("{shell} is not installed")),
        }
    }
    assert_status(&oarlock(&["completions", "tcsh"]), 2);
}
