//! The linker's version script and the names with a version of their own, made of `symbols.txt`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

pub(super) struct Symbol {
    name: String,
    node: String,
    /// Two versions of one name: this one is only for programs that ask for it.
    old: bool,
}

pub(super) fn symbols(text: &str) -> Vec<Symbol> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut words = line.split(' ');
            let name = words.next().expect("a line of symbols.txt has a name");
            let node = words
                .next()
                .unwrap_or_else(|| panic!("symbols.txt: {name} has no node"));
            Symbol {
                name: name.to_owned(),
                node: node.trim_start_matches('@').to_owned(),
                old: !node.starts_with("@@"),
            }
        })
        .collect()
}

/// The nodes in the order of the file, each the heir of the one before it of the same library. What no node names is hidden,
/// and it is the first node that says so: no name of it has an old version, which this would hide as well.
pub(super) fn version_script(symbols: &[Symbol]) -> String {
    let mut nodes: Vec<&str> = Vec::new();
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for symbol in symbols {
        if nodes.last() != Some(&symbol.node.as_str()) {
            nodes.push(&symbol.node);
        }
        let names = names.entry(&symbol.node).or_default();
        // The others carry their version themselves.
        if !symbol.old && !is_private(&symbol.node) {
            names.push(&symbol.name);
        }
    }
    let mut script = String::new();
    for (at, node) in nodes.iter().enumerate() {
        write!(script, "{node} {{").expect("a string takes text");
        if !names[node].is_empty() {
            write!(script, " global: {};", names[node].join("; ")).expect("a string takes text");
        }
        if at == 0 {
            script.push_str(" local: *;");
        }
        let parent = nodes[..at]
            .last()
            .filter(|before| library(before) == library(node) && !is_private(node));
        writeln!(
            script,
            " }}{};",
            parent
                .map(|parent| format!(" {parent}"))
                .unwrap_or_default()
        )
        .expect("a string takes text");
    }
    script
}

fn library(node: &str) -> &str {
    node.split('_').next().unwrap_or(node)
}

fn is_private(node: &str) -> bool {
    node.contains("_PRIVATE_")
}

/// One function stands for many names of the private nodes: `src/private.rs` has them, and this is assembled beside it.
pub(super) fn private_aliases(symbols: &[Symbol]) -> String {
    aliases(
        symbols.iter().filter(|symbol| is_private(&symbol.node)),
        |name| match name {
            "ibv_query_gid_type" => "oarlock_private_query_gid_type",
            "ibv_wr_opcode_str" => "oarlock_private_wr_opcode_str",
            "ibv_read_ibdev_sysfs_file" => "oarlock_private_minus_one",
            "verbs_allow_disassociate_destroy" => "oarlock_private_variable",
            "__verbs_log" | "verbs_init_cq" | "verbs_set_ops" | "verbs_uninit_context" => {
                "oarlock_private_nothing"
            }
            "ibv_dmabuf_heap_destroy" | "ibv_dmabuf_heap_free" => "oarlock_private_nothing",
            "_verbs_init_and_alloc_context" | "verbs_open_device" => "oarlock_private_no_object",
            "ibv_dmabuf_heap_alloc" => "oarlock_private_no_object",
            registration if registration.starts_with("verbs_register_driver_") => {
                "oarlock_private_nothing"
            }
            _ => "oarlock_private_command",
        },
    )
}

/// The same for the interface of 2006, in `src/compat.rs`.
pub(super) fn old_aliases(symbols: &[Symbol]) -> String {
    aliases(
        symbols
            .iter()
            .filter(|symbol| symbol.old && !is_private(&symbol.node)),
        |name| {
            let words: Vec<&str> = name.split('_').collect();
            match (words[1], name) {
                ("free" | "ack" | "register", _) => "oarlock_old_nothing",
                (_, "ibv_get_device_guid") => "oarlock_old_no_guid",
                (_, "ibv_get_device_list" | "ibv_get_device_name") => "oarlock_old_no_object",
                ("open" | "alloc" | "create" | "reg", _) => "oarlock_old_no_object",
                ("get", _) | (_, "ibv_query_gid" | "ibv_query_pkey" | "ibv_close_device") => {
                    "oarlock_old_minus_one"
                }
                _ => "oarlock_old_number",
            }
        },
    )
}

fn aliases<'a>(
    symbols: impl Iterator<Item = &'a Symbol>,
    function: impl Fn(&str) -> &'static str,
) -> String {
    let mut text = String::new();
    for Symbol { name, node, old } in symbols {
        let alias = format!("oarlock_{}_{name}", node.replace('.', "_"));
        let at = if *old { "@" } else { "@@" };
        write!(
            text,
            ".globl {alias}\n.set {alias}, {}\n.symver {alias}, {name}{at}{node}\n",
            function(name)
        )
        .expect("a string takes text");
    }
    text
}
