//! The symbols of the built shared object and their versions, against `symbols.txt`, against what rdma-core of this system has,
//! and against what the list says of each: a refused call is refused with its error number.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::{ElfFile64, FileHeader as _, SectionHeader as _, Sym as _};

/// NAME@@NODE or NAME@NODE.
type Symbols = BTreeSet<String>;

/// The shared object that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("liboarlock_capi.so")
}

/// The list: symbol, and what it does.
fn listed() -> BTreeMap<String, &'static str> {
    let lines = include_str!("../symbols.txt").lines();
    let mut listed = BTreeMap::new();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let [name, node, does] = words[..] else {
            panic!("three words: {line}")
        };
        assert!(
            listed.insert(format!("{name}{node}"), does).is_none(),
            "twice: {line}"
        );
    }
    listed
}

/// What an object defines, with versions; the names of the nodes themselves are left out.
fn defined(path: &Path) -> Symbols {
    let data = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = ElfFile64::<object::Endianness>::parse(&*data).unwrap();
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let versions = sections
        .versions(endian, &*data)
        .unwrap()
        .expect("the object has versions");
    let (table, symbols) = sections
        .iter()
        .enumerate()
        .find(|(_, section)| section.sh_type(endian) == elf::SHT_DYNSYM)
        .map(|(at, _)| {
            (
                at,
                sections.symbols(endian, &*data, elf::SHT_DYNSYM).unwrap(),
            )
        })
        .expect("the object has dynamic symbols");
    assert!(table > 0 && file.elf_header().is_type_64());
    let mut found = Symbols::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.is_undefined(endian) || symbol.st_bind() == elf::STB_LOCAL {
            continue;
        }
        let name = std::str::from_utf8(symbol.name(endian, symbols.strings()).unwrap()).unwrap();
        let version = versions.version_index(endian, index);
        let node = match versions.version(version.into()).unwrap() {
            Some(version) => std::str::from_utf8(version.name()).unwrap(),
            None => "",
        };
        if name == node || symbol.st_shndx(endian) == elf::SHN_ABS {
            continue;
        }
        let at = if version.is_hidden() { "@" } else { "@@" };
        found.insert(format!("{name}{at}{node}"));
    }
    found
}

/// The list: every symbol that is promised is there, under its node, and nothing else is.
#[test]
fn the_object_defines_what_the_list_says_and_nothing_else() {
    let defined = defined(&library());
    let listed: Symbols = listed().into_keys().collect();
    let missing: Vec<_> = listed.difference(&defined).collect();
    let unknown: Vec<_> = defined.difference(&listed).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "missing: {missing:#?}\nnot in the list: {unknown:#?}"
    );
}

/// Whatever rdma-core's libraries of this system define is in the list, with the same version.
#[test]
fn the_systems_libraries_define_nothing_that_is_not_in_the_list() {
    let listed = listed();
    let mut seen = 0;
    for name in ["librdmacm.so.1", "libibverbs.so.1"] {
        let Some(path) = system_library(name) else {
            oarlock_sim::not_run("rdma-core", format!("{name} is not installed"));
            continue;
        };
        let symbols = defined(&path);
        let missing: Vec<_> = symbols
            .iter()
            .filter(|symbol| !listed.contains_key(*symbol))
            .collect();
        assert!(missing.is_empty(), "{}: {missing:#?}", path.display());
        seen += symbols.len();
    }
    assert!(seen == 0 || seen > 60, "{seen} symbols were compared");
}

fn system_library(name: &str) -> Option<PathBuf> {
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/lib64",
        "/usr/lib",
    ];
    folders
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists())
}

/// What a program's version needs are checked against by the dynamic linker: the nodes, each the heir of the one before.
#[test]
fn the_nodes_are_chained_as_in_rdma_core() {
    let data = std::fs::read(library()).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*data).unwrap();
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let (mut definitions, link) = sections
        .gnu_verdef(endian, &*data)
        .unwrap()
        .expect("version definitions");
    let strings = sections.strings(endian, &*data, link).unwrap();
    let mut nodes: Vec<Vec<String>> = Vec::new();
    while let Some((definition, mut names)) = definitions.next().unwrap() {
        if definition.vd_flags.get(endian).0 & elf::VER_FLG_BASE.0 != 0 {
            continue;
        }
        let mut node = Vec::new();
        while let Some(name) = names.next().unwrap() {
            node.push(String::from_utf8(name.name(endian, strings).unwrap().to_vec()).unwrap());
        }
        nodes.push(node);
    }
    let of = |name: &str| {
        nodes
            .iter()
            .find(|node| node[0] == name)
            .unwrap_or_else(|| panic!("no node {name}"))
    };
    for (node, parent) in [
        ("RDMACM_1.1", "RDMACM_1.0"),
        ("RDMACM_1.5", "RDMACM_1.4"),
        ("IBVERBS_1.1", "IBVERBS_1.0"),
        ("IBVERBS_1.5", "IBVERBS_1.1"),
        ("IBVERBS_1.18", "IBVERBS_1.17"),
    ] {
        assert_eq!(of(node)[1..], [parent.to_owned()]);
    }
    for alone in [
        "RDMACM_1.0",
        "IBVERBS_1.0",
        "IBVERBS_PRIVATE_34",
        "IBVERBS_PRIVATE_65",
        "OARLOCK_1.0",
    ] {
        assert_eq!(of(alone).len(), 1);
    }
}

/// The list says of each function that is not there yet, or never will be, how it fails: with that error number, whatever
/// its arguments, as its answer or in `errno`.
#[test]
fn what_is_refused_is_refused_with_the_error_number_of_the_list() {
    let path = CString::new(library().as_os_str().as_bytes()).unwrap();
    // SAFETY: the library has no constructors but those of the standard library.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    let mut refused = 0;
    for (symbol, does) in listed() {
        let (name, node) = symbol.split_once('@').unwrap();
        let node = node.trim_start_matches('@');
        let (c_name, c_node) = (CString::new(name).unwrap(), CString::new(node).unwrap());
        // SAFETY: a handle of dlopen, C strings.
        let function = unsafe { dlvsym(library, c_name.as_ptr(), c_node.as_ptr()) };
        let number = match does {
            "works" => continue,
            "void" => None,
            "refused ENOSYS" => Some(libc::ENOSYS),
            "refused EOPNOTSUPP" => Some(libc::EOPNOTSUPP),
            "refused EBADF" => Some(libc::EBADF),
            other => panic!("{symbol}: {other}"),
        };
        assert!(!function.is_null(), "{symbol} is missing");
        // SAFETY: a function that is refused looks at none of its arguments, and none has more than six in registers.
        let (answer, errno) = unsafe {
            let function: Function = std::mem::transmute(function);
            *libc::__errno_location() = 0;
            let answer = function(0, 0, 0, 0, 0, 0);
            (answer, *libc::__errno_location())
        };
        let Some(number) = number else { continue };
        // An int leaves the upper half of the register as it was.
        let as_int = answer as c_int;
        assert!(
            as_int == number || (errno == number && (as_int == -1 || answer == 0)),
            "{symbol}: answers {as_int}, errno {errno}, not {number}"
        );
        refused += 1;
    }
    assert!(refused > 300, "{refused}");
}

type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;

unsafe extern "C" {
    fn dlvsym(
        library: *mut c_void,
        name: *const libc::c_char,
        version: *const libc::c_char,
    ) -> *mut c_void;
}
