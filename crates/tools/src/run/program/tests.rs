use super::*;
use std::ffi::OsString;
use std::process::Command;

/// Small C programs, in a folder of their own.
struct Workshop {
    folder: tempfile::TempDir,
}

impl Workshop {
    /// With a library of the name of one of ours; `None`, and a word about it, where there is no C compiler.
    fn open() -> Option<Self> {
        let shop = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(shop.path("lib")).unwrap();
        fs::write(
            shop.path("map"),
            "RDMACM_1.0 { global: rdma_create_id; };\nRDMACM_9.9 { global: rdma_new; };\n",
        )
        .unwrap();
        let built = shop.compile(
            "int rdma_create_id(void) { return 0; } int rdma_new(void) { return 0; }",
            "lib/librdmacm.so.1",
            &[
                "-shared",
                "-fPIC",
                "-Wl,-soname,librdmacm.so.1",
                &format!("-Wl,--version-script={}", shop.path("map").display()),
            ],
        );
        if let Err(problem) = built {
            oarlock_sim::not_run("programs", format!("no C compiler: {problem}"));
            return None;
        }
        Some(shop)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn compile(&self, source: &str, name: &str, options: &[&str]) -> Result<PathBuf, String> {
        let file = self.path("source.c");
        fs::write(&file, source).unwrap();
        let path = self.path(name);
        let output = Command::new("cc")
            .args(["-o".as_ref(), path.as_os_str(), file.as_os_str()])
            .args(options)
            .output();
        match output {
            Ok(output) if output.status.success() => Ok(path),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// A program that uses the library; it is linked with the one of this folder.
    fn user(&self, name: &str, options: &[&str]) -> PathBuf {
        self.user_of("rdma_create_id", name, options)
    }

    fn user_of(&self, function: &str, name: &str, options: &[&str]) -> PathBuf {
        let library = self.path("lib/librdmacm.so.1");
        let options: Vec<&str> = [library.to_str().unwrap()]
            .into_iter()
            .chain(options.iter().copied())
            .collect();
        let source = format!("int {function}(void); int main(void) {{ return {function}(); }}");
        self.compile(&source, name, &options).unwrap()
    }

    fn plain(&self, name: &str, options: &[&str]) -> PathBuf {
        self.compile("int main(void) { return 0; }", name, options)
            .unwrap()
    }
}

/// Our own library, as far as this matters.
fn own() -> Elf {
    Elf {
        nodes: vec!["RDMACM_1.0".into()],
        version_needs: vec![(LIBC.into(), "GLIBC_2.2.5".into())],
        ..Elf::default()
    }
}

fn refused(path: &Path, own: &Elf) -> String {
    let refusal = examine(path, own).unwrap_err();
    assert_eq!(refusal.status, 125);
    assert!(
        !refusal.sentence.contains('\n') && refusal.sentence.contains(&*path.to_string_lossy()),
        "{}",
        refusal.sentence
    );
    refusal.sentence
}

fn noted(path: &Path) -> String {
    match examine(path, &own()) {
        Ok(Some(Remark::Note(sentence))) => sentence,
        other => panic!("{other:?}"),
    }
}

fn warned(path: &Path) -> String {
    match examine(path, &own()) {
        Ok(Some(Remark::Warning(sentence))) => sentence,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_that_gets_the_libraries_is_run_without_a_word() {
    let Some(shop) = Workshop::open() else { return };
    assert_eq!(examine(&shop.user("user", &[]), &own()), Ok(None));
    // A DT_RUNPATH comes after LD_LIBRARY_PATH, and a DT_RPATH that leads to no such library is none of our business.
    let lib = shop.path("lib");
    let runpath = format!("-Wl,--enable-new-dtags,-rpath,{}", lib.display());
    assert_eq!(
        examine(&shop.user("runpath", &[&runpath]), &own()),
        Ok(None)
    );
    let rpath = format!(
        "-Wl,--disable-new-dtags,-rpath,{}",
        shop.path("other").display()
    );
    assert_eq!(examine(&shop.user("rpath", &[&rpath]), &own()), Ok(None));
}

#[test]
fn a_program_that_is_linked_with_neither_library_is_noted() {
    let Some(shop) = Workshop::open() else { return };
    assert!(noted(&shop.plain("plain", &[])).contains("neither"));
    let script = shop.path("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    assert!(noted(&script).contains("no binary program"));
}

#[test]
fn a_statically_linked_program_is_told_of() {
    let Some(shop) = Workshop::open() else { return };
    let source = "const char *path(void) { return \"/dev/infiniband/rdma_cm\"; } int main(void) { return *path() == 0; }";
    for (name, source, has_rdma) in [
        ("static", "int main(void) { return 0; }", false),
        ("static-rdma", source, true),
    ] {
        let Ok(path) = shop.compile(source, name, &["-static"]) else {
            return oarlock_sim::not_run("programs", "no C library to link statically");
        };
        if has_rdma {
            assert!(refused(&path, &own()).contains("statically linked"));
        } else {
            assert!(warned(&path).contains("statically linked"));
        }
    }
}

#[test]
fn a_program_for_musl_is_told_of() {
    let Some(shop) = Workshop::open() else { return };
    let interpreter = format!(
        "-Wl,--dynamic-linker=/lib/ld-musl-{}.so.1",
        env::consts::ARCH
    );
    assert!(refused(&shop.user("musl", &[&interpreter]), &own()).contains("musl"));
    assert!(warned(&shop.plain("musl-plain", &[&interpreter])).contains("musl"));
}

#[test]
fn an_rpath_that_leads_to_the_libraries_is_told_of_and_named() {
    let Some(shop) = Workshop::open() else { return };
    let lib = shop.path("lib");
    for (name, rpath) in [
        ("absolute", lib.to_str().unwrap()),
        ("origin", "$ORIGIN/lib"),
        ("braces", "/none:${ORIGIN}/lib"),
        ("variable", "$ORIGIN/$LIB"),
    ] {
        let option = format!("-Wl,--disable-new-dtags,-rpath,{rpath}");
        let sentence = refused(&shop.user(name, &[&option]), &own());
        assert!(
            sentence.contains("DT_RPATH") && sentence.contains("librdmacm.so.1"),
            "{sentence}"
        );
    }
}

#[test]
fn a_program_that_needs_a_newer_release_is_told_of() {
    let Some(shop) = Workshop::open() else { return };
    let path = shop.user_of("rdma_new", "newer", &[]);
    assert!(refused(&path, &own()).contains("RDMACM_9.9"));
}

#[test]
fn a_glibc_that_is_too_old_is_told_of_with_the_one_that_is_needed() {
    let Some(shop) = Workshop::open() else { return };
    let mut own = own();
    own.version_needs.push((LIBC.into(), "GLIBC_2.9".into()));
    own.version_needs.push((LIBC.into(), "GLIBC_99.10".into()));
    own.version_needs.push((LIBC.into(), "GLIBC_99.9".into()));
    assert!(refused(&shop.user("old", &[]), &own).contains("glibc 99.10"));
}

#[test]
fn a_program_of_another_machine_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let mut header = [0_u8; 64];
    header[..6].copy_from_slice(b"\x7fELF\x02\x01");
    header[18..20].copy_from_slice(&[0xff, 0x7f]);
    fs::write(&path, header).unwrap();
    assert!(refused(&path, &own()).contains("another kind of machine"));
    header[4] = 1;
    fs::write(&path, header).unwrap();
    assert!(refused(&path, &own()).contains("32-bit"));
    // What only begins like a program is for the system to refuse.
    fs::write(&path, &header[..6]).unwrap();
    noted(&path);
}

/// Whatever bytes a file has, it is read without a panic and in bounded time.
#[test]
fn a_damaged_file_is_left_to_the_system() {
    let program = fs::read(env::current_exe().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let head = &program[..program.len().min(1 << 16)];
    for step in 0..400 {
        let mut bytes = head.to_vec();
        let at = step * 3 % 1200;
        bytes[at] ^= 0xff;
        bytes.truncate(bytes.len() - step * 100);
        fs::write(&path, bytes).unwrap();
        let _ = examine(&path, &own());
    }
}

#[test]
fn programs_with_rights_of_their_own_are_known() {
    let rights = |mode, owner, group| rights_of(mode, (owner, group), (1000, 1000));
    assert_eq!(rights(0o100_755, 0, 0), None);
    assert_eq!(rights(0o104_755, 0, 0), Some("setuid"));
    assert_eq!(rights(0o104_755, 1000, 0), None, "one's own");
    assert_eq!(rights(0o102_755, 0, 5), Some("setgid"));
    assert_eq!(
        rights(0o102_745, 0, 5),
        None,
        "without execution for the group this is for locks"
    );
    assert_eq!(rights(0o102_755, 0, 1000), None);
}

#[test]
fn programs_are_found_as_execvp_finds_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a-program");
    fs::write(&path, "").unwrap();
    let in_path = |name: &str| find_in(&OsString::from(name), folder.path().as_os_str());
    assert_eq!(
        in_path("a-program").unwrap_err().status,
        126,
        "not executable yet"
    );
    assert_eq!(find(path.as_os_str()).unwrap_err().status, 126);
    assert_eq!(find(folder.path().as_os_str()).unwrap_err().status, 126);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(in_path("a-program").unwrap(), path);
    assert_eq!(find(path.as_os_str()).unwrap(), path);
    assert_eq!(in_path("no-program").unwrap_err().status, 127);
    assert_eq!(
        find(folder.path().join("none").as_os_str())
            .unwrap_err()
            .status,
        127
    );
}
