//! A table of every structure, field and number of `src/abi`, for the test that compares them with the headers: the compiler
//! tells offsets only of fields that are named in the source.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Types of ours for what has no name in the headers: a structure or union inside another.
const NAMELESS: [&str; 17] = [
    "ibv_async_event_element",
    "ibv_gid_global",
    "ibv_odp_per_transport_caps",
    "ibv_send_wr_atomic",
    "ibv_send_wr_bind_mw",
    "ibv_send_wr_data",
    "ibv_send_wr_extra",
    "ibv_send_wr_qp_type",
    "ibv_send_wr_rdma",
    "ibv_send_wr_target",
    "ibv_send_wr_tso",
    "ibv_send_wr_ud",
    "ibv_send_wr_xrc",
    "ibv_wc_data",
    "rdma_addr_destination",
    "rdma_addr_source",
    "rdma_cm_event_param",
];
/// Fields of such a type that have no name there either: the fields in them are reached as the outer structure's own.
const ANONYMOUS: [(&str, &str); 5] = [
    ("ibv_send_wr", "data"),
    ("ibv_send_wr", "extra"),
    ("ibv_wc", "data"),
    ("rdma_addr", "source"),
    ("rdma_addr", "destination"),
];
/// Fields that are called something else there.
const RENAMED: [(&str, &str, &str); 7] = [
    ("ibv_mw", "type_", "type"),
    ("oarlock_memory_event", "type_", "type"),
    ("rdma_addr", "ibaddr", "addr.ibaddr"),
    ("verbs_context", "priv_", "priv"),
    ("verbs_context", "abi_placeholder1", "ABI_placeholder1"),
    ("verbs_context", "abi_placeholder2", "ABI_placeholder2"),
    ("verbs_context", "_abi_placeholder3", "_ABI_placeholder3"),
];

struct Type {
    keyword: &'static str,
    fields: Vec<(String, String)>,
}

/// The table, as source.
pub(super) fn table(folder: &Path) -> String {
    let mut types: BTreeMap<String, Type> = BTreeMap::new();
    let mut numbers = Vec::new();
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("src/abi is a folder")
        .map(|entry| entry.expect("src/abi can be listed").path())
        .collect();
    files.sort();
    for file in files {
        let text =
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut current: Option<String> = None;
        for line in text.lines() {
            if let Some(name) = declared(line, "pub(crate) const ", ':') {
                numbers.push(name);
            } else if let Some(name) = declared(line, "pub(crate) struct ", ' ') {
                current = Some(open(&mut types, name, "struct"));
            } else if let Some(name) = declared(line, "pub(crate) union ", ' ') {
                current = Some(open(&mut types, name, "union"));
            } else if line == "}" {
                current = None;
            } else if let (Some(of), Some(name)) =
                (&current, declared(line, "    pub(crate) ", ':'))
            {
                let of_type = line
                    .split_once(": ")
                    .map_or("", |(_, rest)| rest.trim_end_matches(','));
                types
                    .get_mut(of)
                    .expect("the type is open")
                    .fields
                    .push((name, of_type.to_owned()));
            }
        }
    }
    let mut table = String::from("pub(crate) const TYPES: &[Type] = &[\n");
    for (name, Type { keyword, fields }) in &types {
        if NAMELESS.contains(&name.as_str()) || fields.is_empty() {
            continue;
        }
        writeln!(
            table,
            "    Type {{ keyword: \"{keyword}\", name: \"{name}\", size: size_of::<abi::{name}>(), fields: &["
        )
        .expect("a string takes text");
        add_fields(&mut table, &types, name, name, &[], "");
        table.push_str("    ] },\n");
    }
    table.push_str("];\npub(crate) const NUMBERS: &[(&str, i64)] = &[\n");
    for name in numbers {
        writeln!(table, "    (\"{name}\", abi::{name} as i64),").expect("a string takes text");
    }
    table.push_str("];\n");
    table
}

fn add_fields(
    table: &mut String,
    types: &BTreeMap<String, Type>,
    root: &str,
    of: &str,
    ours: &[&str],
    theirs: &str,
) {
    for (field, of_type) in &types[of].fields {
        let ours: Vec<&str> = ours.iter().copied().chain([field.as_str()]).collect();
        let separator = if theirs.is_empty() { "" } else { "." };
        let name = RENAMED
            .iter()
            .find(|(renamed_of, ours, _)| *renamed_of == of && ours == field)
            .map_or(field.as_str(), |(_, _, theirs)| theirs);
        let named = format!("{theirs}{separator}{name}");
        let is_anonymous = ANONYMOUS.contains(&(of, field));
        if !is_anonymous {
            let path = ours.join(".");
            writeln!(
                table,
                "        Field {{ name: \"{named}\", offset: offset_of!(abi::{root}, {path}), \
                 size: size_of_field(|of: *const abi::{root}| unsafe {{ &raw const (*of).{path} }}) }},"
            )
            .expect("a string takes text");
        }
        if NAMELESS.contains(&of_type.as_str()) {
            add_fields(
                table,
                types,
                root,
                of_type,
                &ours,
                if is_anonymous { theirs } else { &named },
            );
        }
    }
}

fn open(types: &mut BTreeMap<String, Type>, name: String, keyword: &'static str) -> String {
    let fields = Vec::new();
    types.insert(name.clone(), Type { keyword, fields });
    name
}

/// The name in a line that declares something.
fn declared(line: &str, start: &str, end: char) -> Option<String> {
    let (name, _) = line.strip_prefix(start)?.split_once(end)?;
    Some(name.to_owned())
}
