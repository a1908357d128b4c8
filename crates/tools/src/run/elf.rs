//! What the dynamic linker looks at in a program or library, read from its segments: a file may have no sections.

use object::elf;
use object::read::ReadCache;
use object::read::elf::{Dyn as _, FileHeader, ProgramHeader as _};
use object::{Endianness, ReadRef as _};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

type Data<'a> = &'a ReadCache<File>;

/// A file in the format of programs and libraries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Elf {
    /// Of another kind of machine than this program; then nothing else is read.
    pub(super) foreign: Option<&'static str>,
    /// The dynamic linker that a program asks for.
    pub(super) interpreter: Option<PathBuf>,
    /// Libraries by name.
    pub(super) needed: Vec<String>,
    /// Where to look for them before and after `LD_LIBRARY_PATH`.
    pub(super) rpath: Option<String>,
    pub(super) runpath: Option<String>,
    /// Versions that have to be there: library and node. Not those that a program can do without.
    pub(super) version_needs: Vec<(String, String)>,
    /// Versions that it has.
    pub(super) nodes: Vec<String>,
}

impl Elf {
    /// Reads a file; `None`: it has another format.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        let data = ReadCache::new(File::open(path)?);
        let data = &data;
        let Ok(ident) = data.read_bytes_at(0, 20) else {
            return Ok(None);
        };
        if ident[..4] != elf::ELFMAG {
            return Ok(None);
        }
        if let Some(foreign) = foreign(ident) {
            return Ok(Some(Self {
                foreign: Some(foreign),
                ..Self::default()
            }));
        }
        // A file that breaks the format is for the system to refuse.
        Ok(Self::of(data).ok().flatten())
    }

    fn of(data: Data<'_>) -> object::Result<Option<Self>> {
        let header = elf::FileHeader64::<Endianness>::parse(data)?;
        let endian = header.endian()?;
        let segments = header.program_headers(endian, data)?;
        let mut file = Self::default();
        let mut dynamic = None;
        for segment in segments {
            if let Some(path) = segment.interpreter(endian, data)? {
                let path = String::from_utf8_lossy(path).into_owned();
                file.interpreter = Some(PathBuf::from(path));
            }
            dynamic = dynamic.or(segment.dynamic(endian, data)?);
        }
        let Some(dynamic) = dynamic else {
            return Ok(Some(file));
        };
        let value = |tag| {
            let mut entries = dynamic
                .iter()
                .take_while(|entry| entry.tag(endian) != elf::DT_NULL);
            entries
                .find(|entry| entry.tag(endian) == tag)
                .map(|entry| entry.val(endian))
        };
        let at = |address: u64| {
            segments
                .iter()
                .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
                .find_map(|segment| {
                    let (offset, size) = segment.file_range(endian);
                    let within = address.checked_sub(segment.p_vaddr(endian))?;
                    (within < size).then_some(offset + within)
                })
        };
        let start = value(elf::DT_STRTAB).and_then(at).unwrap_or(0);
        let len = value(elf::DT_STRSZ).unwrap_or(0).min(MAX_STRINGS);
        let strings = Strings(data.read_bytes_at(start, len).unwrap_or(&[]));
        for entry in dynamic
            .iter()
            .take_while(|entry| entry.tag(endian) != elf::DT_NULL)
        {
            let text = || strings.at(entry.val(endian));
            match entry.tag(endian) {
                elf::DT_NEEDED => file.needed.push(text()),
                elf::DT_RPATH => file.rpath = Some(text()),
                elf::DT_RUNPATH => file.runpath = Some(text()),
                _ => {}
            }
        }
        if let (Some(start), Some(count)) = (
            value(elf::DT_VERNEED).and_then(at),
            value(elf::DT_VERNEEDNUM),
        ) {
            file.version_needs = version_needs(data, endian, start, count, &strings);
        }
        if let (Some(start), Some(count)) =
            (value(elf::DT_VERDEF).and_then(at), value(elf::DT_VERDEFNUM))
        {
            file.nodes = version_definitions(data, endian, start, count, &strings);
        }
        Ok(Some(file))
    }

    /// The newest version that it needs of those that begin so, as the numbers after that.
    pub(super) fn newest_need(&self, start: &str) -> Option<&str> {
        let numbers = |node: &str| -> Option<Vec<u32>> {
            node.strip_prefix(start)?
                .split('.')
                .map(|part| part.parse().ok())
                .collect()
        };
        self.version_needs
            .iter()
            .filter_map(|(_, node)| Some((numbers(node)?, node.as_str())))
            .max()
            .map(|(_, node)| node)
    }
}

/// What another machine's file is for.
fn foreign(ident: &[u8]) -> Option<&'static str> {
    const BITS_64: u8 = 2;
    const LITTLE: u8 = 1;
    if ident[4] != BITS_64 {
        return Some("32-bit programs");
    }
    if ident[5] != LITTLE {
        return Some("a big-endian machine");
    }
    let machine = elf::Machine(u16::from_le_bytes([ident[18], ident[19]]));
    let ours = match std::env::consts::ARCH {
        "x86_64" => elf::EM_X86_64,
        "aarch64" => elf::EM_AARCH64,
        "riscv64" => elf::EM_RISCV,
        "powerpc64" => elf::EM_PPC64,
        "loongarch64" => elf::EM_LOONGARCH,
        _ => return None,
    };
    (machine != ours).then_some(match machine {
        elf::EM_X86_64 => "x86-64",
        elf::EM_AARCH64 => "64-bit ARM",
        elf::EM_RISCV => "RISC-V",
        elf::EM_PPC64 => "64-bit POWER",
        _ => "another kind of machine",
    })
}

struct Strings<'a>(&'a [u8]);

impl Strings<'_> {
    fn at(&self, offset: u64) -> String {
        let start = usize::try_from(offset).ok();
        let text = start.and_then(|start| self.0.get(start..)).unwrap_or(&[]);
        let end = text
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }
}

fn version_needs(
    data: Data<'_>,
    endian: Endianness,
    mut at: u64,
    count: u64,
    strings: &Strings<'_>,
) -> Vec<(String, String)> {
    let mut needs = Vec::new();
    for _ in 0..count.min(MAX_VERSIONS) {
        let Ok(need) = data.read_at::<elf::Verneed<Endianness>>(at) else {
            break;
        };
        let library = strings.at(need.vn_file.get(endian).into());
        let mut name_at = at + u64::from(need.vn_aux.get(endian));
        for _ in 0..need.vn_cnt.get(endian) {
            let Ok(name) = data.read_at::<elf::Vernaux<Endianness>>(name_at) else {
                break;
            };
            if name.vna_flags.get(endian).0 & elf::VER_FLG_WEAK.0 == 0 {
                needs.push((
                    library.clone(),
                    strings.at(name.vna_name.get(endian).into()),
                ));
            }
            name_at += u64::from(name.vna_next.get(endian));
        }
        at += u64::from(need.vn_next.get(endian));
    }
    needs
}

fn version_definitions(
    data: Data<'_>,
    endian: Endianness,
    mut at: u64,
    count: u64,
    strings: &Strings<'_>,
) -> Vec<String> {
    let mut nodes = Vec::new();
    for _ in 0..count.min(MAX_VERSIONS) {
        let Ok(definition) = data.read_at::<elf::Verdef<Endianness>>(at) else {
            break;
        };
        let name_at = at + u64::from(definition.vd_aux.get(endian));
        let Ok(name) = data.read_at::<elf::Verdaux<Endianness>>(name_at) else {
            break;
        };
        nodes.push(strings.at(name.vda_name.get(endian).into()));
        at += u64::from(definition.vd_next.get(endian));
    }
    nodes
}

/// More than any library has.
const MAX_VERSIONS: u64 = 4096;
/// The names of a very large program are more, but those that matter are at the start.
const MAX_STRINGS: u64 = 16 << 20;
