use super::*;

fn with_header(folder: &Path) {
    let header = folder.join(HEADER);
    fs::create_dir_all(header.parent().unwrap()).unwrap();
    fs::write(header, "").unwrap();
}

#[test]
fn the_header_is_found_from_each_place_of_the_program() {
    for (program, include) in [
        (".", "include"),
        ("bin", "include"),
        (".", "dist/include"),
        ("target/release", "dist/include"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let (program, include) = (root.path().join(program), root.path().join(include));
        fs::create_dir_all(&program).unwrap();
        with_header(&include);
        let include = fs::canonicalize(include).unwrap();
        assert_eq!(
            cflags_of(&program).unwrap(),
            format!("-I{}", include.display())
        );
    }
}

#[test]
fn a_missing_header_is_told_with_every_place() {
    let refused = cflags_of(Path::new("/usr/none/bin")).unwrap_err();
    for place in [
        "/usr/none/bin/include",
        "/usr/none/include",
        "/usr/dist/include",
    ] {
        assert!(refused.contains(place), "{refused}");
    }
}

#[test]
fn a_folder_that_a_shell_would_take_apart_is_refused() {
    let root = tempfile::tempdir().unwrap();
    for name in ["two words", "a*", "$HOME"] {
        let program = root.path().join(name);
        with_header(&program.join("include"));
        let refused = cflags_of(&program).unwrap_err();
        assert!(refused.contains(name), "{refused}");
    }
}

/// The header is where the tool looks for it in this repository.
#[test]
fn the_header_of_the_repository_is_found() {
    let release = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    assert!(cflags_of(&release).unwrap().ends_with("/dist/include"));
}
