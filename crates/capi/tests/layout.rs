//! R-PAR: sizes, offsets and numbers of `src/abi` are those of the installed headers of rdma-core, and of the header of our
//! extension: a C program prints them.
#![allow(
    dead_code,
    unused_qualifications,
    reason = "the table names all of src/abi, and the test needs only some of each"
)]

#[path = "../src/abi/mod.rs"]
mod abi;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

struct Type {
    keyword: &'static str,
    name: &'static str,
    size: usize,
    fields: &'static [Field],
}

struct Field {
    name: &'static str,
    offset: usize,
    size: usize,
}

/// The size of what a pointer to a field points to.
const fn size_of_field<T, F>(_: fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

include!(concat!(env!("OUT_DIR"), "/layout.rs"));

/// Where the header of our extension is.
const EXTENSION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/include");

/// The release whose headers `src/abi` follows. Later ones only add: at the end of a structure, and at the start of
/// `verbs_context`, which ends where programs hold it.
const RELEASE: u32 = 44;

#[test]
fn structures_and_numbers_are_those_of_the_headers() {
    let Some(release) = installed() else {
        return oarlock_sim::not_run(
            "programs",
            "a C compiler, or the headers of rdma-core, are not installed",
        );
    };
    if release < RELEASE {
        return oarlock_sim::not_run(
            "programs",
            format!("the headers are those of rdma-core {release}"),
        );
    }
    let printed = run(&program());
    let theirs = |what: &str| {
        *printed
            .get(what)
            .unwrap_or_else(|| panic!("{what} was not printed"))
    };
    let mut wrong = Vec::new();
    let mut compared = 0;
    let mut compare = |what: &str, ours: i64, theirs: i64, may_grow: bool| {
        compared += 1;
        if theirs != ours && !(may_grow && release > RELEASE && theirs > ours) {
            wrong.push(format!("{what}: {ours}, in the headers {theirs}"));
        }
    };
    for of in TYPES {
        compare(of.name, of.size as i64, theirs(of.name), true);
        let added_before = if of.name == "verbs_context" {
            theirs(of.name) - of.size as i64
        } else {
            0
        };
        for field in of.fields {
            let name = format!("{}.{}", of.name, field.name);
            compare(
                &name,
                field.offset as i64 + added_before,
                theirs(&name),
                false,
            );
            let name = format!("{name} size");
            compare(&name, field.size as i64, theirs(&name), true);
        }
    }
    for (name, number) in NUMBERS {
        compare(name, *number, theirs(name), false);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 1000, "{compared} were compared");
}

/// The header of our extension is C99 and C++, without a warning, and refers to our functions weakly: a program that uses it is
/// linked with whatever library is there.
#[test]
fn the_header_of_the_extension_is_c_and_cpp() {
    if installed().is_none() {
        return oarlock_sim::not_run("programs", "no C compiler, or no headers of rdma-core");
    }
    let source = "#include <oarlock/memory_events.h>\n\
                  int main(void) { return oarlock_has_memory_events(); }\n";
    let folder = tempfile::tempdir().unwrap();
    for (compiler, name, language) in [
        ("cc", "header.c", "-std=c99"),
        ("cc", "header.c", "-std=c11"),
        ("c++", "header.cpp", "-std=c++11"),
        ("c++", "header.cpp", "-std=c++17"),
    ] {
        let file = folder.path().join(name);
        std::fs::write(&file, source).unwrap();
        let program = folder.path().join("program");
        let built = Command::new(compiler)
            .args([
                "-I",
                EXTENSION,
                language,
                "-pedantic",
                "-Wall",
                "-Wextra",
                "-Werror",
            ])
            .arg("-o")
            .arg(&program)
            .arg(&file)
            .output();
        let Ok(output) = built else {
            oarlock_sim::not_run("programs", format!("{compiler} is not installed"));
            continue;
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{language}: {errors}");
        let status = Command::new(&program).status().unwrap();
        assert!(status.success(), "{language}: no library has it");
    }
}

/// The release of rdma-core whose headers a C program finds.
fn installed() -> Option<u32> {
    let source = "#include <rdma/rdma_cma.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\nint main(void) { return 0; }\n";
    compile(source, Path::new("/dev/null")).ok()?;
    let version = Command::new("pkg-config")
        .args(["--modversion", "libibverbs"])
        .output()
        .ok()?;
    // 1.14.44.0: the third number is the release.
    let version = String::from_utf8(version.stdout).ok()?;
    Some(
        version
            .trim()
            .split('.')
            .nth(2)
            .and_then(|release| release.parse().ok())
            .unwrap_or(RELEASE),
    )
}

fn program() -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
         #include <infiniband/sa-kern-abi.h>\n#include <rdma/rdma_cma.h>\n#include <oarlock/memory_events.h>\n\
         #define SIZE(t, n) printf(\"%s\\t%lld\\n\", n, (long long)sizeof(t))\n\
         #define FIELD(t, f, n) printf(\"%s\\t%lld\\n%s size\\t%lld\\n\", n, (long long)offsetof(t, f), n, (long long)sizeof(((t *)0)->f))\n\
         #define NUMBER(v) printf(\"%s\\t%lld\\n\", #v, (long long)(v))\n\
         int main(void) {\n",
    );
    for Type {
        keyword,
        name,
        fields,
        ..
    } in TYPES
    {
        writeln!(text, "SIZE({keyword} {name}, \"{name}\");").unwrap();
        for Field { name: field, .. } in *fields {
            writeln!(
                text,
                "FIELD({keyword} {name}, {field}, \"{name}.{field}\");"
            )
            .unwrap();
        }
    }
    for (number, _) in NUMBERS {
        writeln!(text, "NUMBER({number});").unwrap();
    }
    text.push_str("return 0; }\n");
    text
}

fn run(source: &str) -> BTreeMap<String, i64> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("layout");
    compile(source, &program).unwrap_or_else(|errors| panic!("{errors}"));
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| {
            let (what, number) = line.split_once('\t').unwrap();
            (what.to_owned(), number.parse().unwrap())
        })
        .collect()
}

fn compile(source: &str, program: &Path) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layout.c");
    std::fs::write(&file, source).unwrap();
    let output = Command::new("cc")
        .args(["-I", EXTENSION, "-o"])
        .arg(program)
        .arg(&file)
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
