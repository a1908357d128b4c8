//! Gives the shared object its symbol versions: makes the linker's version script of `symbols.txt`, and has the object linked
//! by GNU ld through a small script, because rustc hands the linker a version script of its own, without versions, and the two
//! cannot be mixed.

mod layout;
mod versions;

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The soname: what a program that is linked with the shared object itself would ask for.
const SONAME: &str = "liboarlock_capi.so";

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=symbols.txt");
    println!("cargo::rerun-if-env-changed=PATH");
    println!("cargo::rerun-if-env-changed=OARLOCK_LD_BFD");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let symbols = versions::symbols(
        &fs::read_to_string("symbols.txt").expect("symbols.txt is in this folder"),
    );

    write(&out.join("private.s"), &versions::private_aliases(&symbols));
    write(&out.join("old.s"), &versions::old_aliases(&symbols));
    write(&out.join("layout.rs"), &layout::table(Path::new("src/abi")));
    let map = out.join("versions.map");
    write(&map, &versions::version_script(&symbols));
    let Some(linker) = gnu_ld() else {
        // A build that only needs the Rust half goes on; the shared object itself is refused where it is linked.
        println!(
            "cargo::warning=liboarlock_capi.so needs GNU ld (the program ld.bfd of binutils), which is not in PATH; \
             install binutils or name it in OARLOCK_LD_BFD"
        );
        println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
        return;
    };
    let shim = out.join("ld.bfd");
    write(&shim, &linker_script(&linker, &map));
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755))
        .expect("the linker's script can be made executable");
    for argument in [
        format!("-B{}", out.display()),
        "-fuse-ld=bfd".to_owned(),
        format!("-Wl,-soname,{SONAME}"),
        format!("-Wl,--version-script={}", map.display()),
        // A program's own function of the name of one of ours must not come between two of ours.
        "-Wl,-Bsymbolic".to_owned(),
        // The engine's thread and the places of threads outlive a dlclose.
        "-Wl,-z,nodelete".to_owned(),
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}

/// The path of GNU ld, by its name that says which linker it is.
fn gnu_ld() -> Option<PathBuf> {
    if let Some(named) = env::var_os("OARLOCK_LD_BFD") {
        return Some(named.into());
    }
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join("ld.bfd"))
        .find(|program| program.is_file())
}

/// What gcc and clang run as `ld.bfd`: GNU ld, without rustc's version script.
fn linker_script(linker: &Path, map: &Path) -> String {
    format!(
        r#"#!/bin/sh
for argument do
  shift
  case $argument in
    '--version-script={map}') set -- "$@" "$argument" ;;
    --version-script=* | --no-undefined-version) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{linker}' "$@"
"#,
        map = map.display(),
        linker = linker.display(),
    )
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
