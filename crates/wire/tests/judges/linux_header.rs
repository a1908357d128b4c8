//! Linux's own table of the CM messages (`include/rdma/ibta_vol1_c12.h`), where the kernel's headers are installed, lists the
//! same bits as ours, for the messages too that no kernel sends over RoCE (LAP, APR).

use oarlock_sim::not_run;
use oarlock_wire::layout::Field;
use oarlock_wire::{Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Byte after the MAD header, first bit, width.
type Place = (usize, u32, u32);

const HEADER: &str = "include/rdma/ibta_vol1_c12.h";

/// The header: in the directory that `OARLOCK_LINUX_HEADERS` names, or of any kernel in `/usr/src`.
fn header() -> Option<String> {
    let roots: Vec<PathBuf> = match std::env::var_os("OARLOCK_LINUX_HEADERS") {
        Some(root) => vec![root.into()],
        None => fs::read_dir("/usr/src")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect(),
    };
    let text = roots
        .iter()
        .find_map(|root| fs::read_to_string(Path::new(root).join(HEADER)).ok());
    if text.is_none() {
        not_run(
            "linux-headers",
            format_args!("agreement with Linux's table: no {HEADER} in /usr/src"),
        );
    }
    text
}

/// The fields of each message, by the kernel's name of it: `cm_lap_msg`. Left out are fields that are wider than a GID: private
/// data and additional information.
fn places(header: &str) -> BTreeMap<String, BTreeSet<Place>> {
    let mut places: BTreeMap<String, BTreeSet<Place>> = BTreeMap::new();
    for line in header.replace("\\\n", "").replace('\t', " ").lines() {
        let Some((kind, arguments)) = line
            .split_once(char::is_whitespace)
            .and_then(|(_, definition)| definition.split_once(" CM_FIELD"))
            .and_then(|(_, value)| value.split_once("(struct "))
            .filter(|(kind, _)| kind.ends_with("LOC"))
        else {
            continue;
        };
        let arguments: Vec<_> = arguments
            .trim()
            .trim_end_matches(')')
            .split(',')
            .map(str::trim)
            .collect();
        let number = |index: usize| arguments[index].parse::<u32>().expect("a number");
        let (bit, width) = match kind {
            "64_LOC" => (0, 64),
            "_BLOC" => (number(2), number(3)),
            _ => (0, number(2)),
        };
        if width <= 128 {
            let byte = arguments[1].parse().expect("a number");
            let message = places.entry(arguments[0].to_owned()).or_default();
            assert!(message.insert((byte, bit, width)), "{line}");
        }
    }
    places
}

fn ours(table: &[Field]) -> BTreeSet<Place> {
    table
        .iter()
        .map(|field| (field.byte(), field.bit(), field.width()))
        .collect()
}

#[test]
fn linux_lists_the_same_bits_for_every_message() {
    let Some(header) = header() else { return };
    let theirs = places(&header);
    let tables: [(&str, &[Field]); 11] = [
        ("cm_req_msg", Req::FIELDS),
        ("cm_mra_msg", Mra::FIELDS),
        ("cm_rej_msg", Rej::FIELDS),
        ("cm_rep_msg", Rep::FIELDS),
        ("cm_rtu_msg", Rtu::FIELDS),
        ("cm_dreq_msg", Dreq::FIELDS),
        ("cm_drep_msg", Drep::FIELDS),
        ("cm_lap_msg", Lap::FIELDS),
        ("cm_apr_msg", Apr::FIELDS),
        ("cm_sidr_req_msg", SidrReq::FIELDS),
        ("cm_sidr_rep_msg", SidrRep::FIELDS),
    ];
    // Whether suggested alternate paths are understood: neither we nor Linux send or take those, so the bit is reserved to us.
    const SAP_SUPPORTED: (&str, Place) = ("cm_req_msg", (139, 5, 1));
    for (message, table) in tables {
        let mut ours = ours(table);
        if message == SAP_SUPPORTED.0 {
            assert!(ours.insert(SAP_SUPPORTED.1));
        }
        assert_eq!(ours, theirs[message], "{message}");
    }
    assert_eq!(theirs.len(), tables.len());
}

#[test]
fn the_reader_of_the_header_understands_its_forms() {
    let text = "#define CM_X_A CM_FIELD32_LOC(struct cm_x_msg, 0, 24)\n\
        #define CM_X_B CM_FIELD_BLOC(struct cm_x_msg, 3, 4, 1)\n\
        #define CM_X_C \\\n\tCM_FIELD64_LOC(struct cm_x_msg, 8)\n\
        #define CM_X_D CM_FIELD_MLOC(struct cm_x_msg, 16, 128, union ib_gid)\n\
        #define CM_X_PRIVATE_DATA CM_FIELD_MLOC(struct cm_x_msg, 32, 736, void)\n\
        CM_STRUCT(struct cm_x_msg, 32 * 8 + 736);\n";
    let wanted = BTreeSet::from([(0, 0, 24), (3, 4, 1), (8, 0, 64), (16, 0, 128)]);
    assert_eq!(
        places(text),
        BTreeMap::from([("cm_x_msg".to_owned(), wanted)])
    );
}
