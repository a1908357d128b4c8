//! The slots through which the objects of a process call functions of others: what the dynamic linker fills in.
//!
//! Layouts: the ELF-64 object file format; kinds of relocations: the processors' supplements to the System V ABI.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that calls by this name are to reach.
pub(super) struct Function {
    pub(super) name: &'static CStr,
    pub(super) address: usize,
}

/// Lets every object of the process but this one call `functions` for those of their names. Objects that are loaded later are
/// as they were made. May be called again.
///
/// # Safety
/// Each function takes and gives what the one of its name does.
pub(super) unsafe fn rebind(functions: &[Function]) {
    let mut functions = functions;
    // SAFETY: `object` takes what is given here.
    unsafe { libc::dl_iterate_phdr(Some(object), (&raw mut functions).cast()) };
}

unsafe extern "C" fn object(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    functions: *mut c_void,
) -> c_int {
    // SAFETY: of `rebind`, which waits for the walk.
    let functions = unsafe { *functions.cast::<&[Function]>() };
    // SAFETY: the linker's own, for this call.
    let found = unsafe { Object::of(&*info) };
    if let Some(object) = found
        && !object.holds(rebind as *const () as usize)
    {
        for function in functions {
            object.rebind(function);
        }
    }
    0
}

/// What the dynamic linker knows of a loaded object.
struct Object<'a> {
    base: usize,
    headers: &'a [libc::Elf64_Phdr],
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    relocations: [&'a [Relocation]; 2],
}

#[repr(C)]
struct Entry {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

impl<'a> Object<'a> {
    /// `None`: it has no slots that are understood here.
    ///
    /// # Safety
    /// It is of the linker, and the object stays loaded.
    unsafe fn of(info: &libc::dl_phdr_info) -> Option<Self> {
        let base = info.dlpi_addr as usize;
        // SAFETY: the caller's promise.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let dynamic = headers.iter().find(|header| header.p_type == PT_DYNAMIC)?;
        let mut at = (base + dynamic.p_vaddr as usize) as *const Entry;
        let mut values = [None; LAST_TAG];
        // SAFETY: a table that ends with a zero.
        unsafe {
            while (*at).tag != 0 {
                let tag = usize::try_from((*at).tag).ok();
                if let Some(value) = tag.and_then(|tag| values.get_mut(tag)) {
                    *value = Some((*at).value);
                }
                at = at.add(1);
            }
        }
        // The linker has made addresses of what the file says, but not in every object.
        let address =
            |tag: usize| values[tag].map(|value| if value < base { base + value } else { value });
        if values[DT_PLTREL].is_some_and(|kind| kind != DT_RELA) {
            return None;
        }
        let table = |start: usize, bytes: usize| match (address(start), values[bytes]) {
            (Some(start), Some(bytes)) => {
                let len = bytes / size_of::<Relocation>();
                // SAFETY: the object says that it has them there.
                unsafe { slice::from_raw_parts(start as *const Relocation, len) }
            }
            _ => &[],
        };
        Some(Self {
            base,
            headers,
            symbols: address(DT_SYMTAB)? as *const libc::Elf64_Sym,
            names: address(DT_STRTAB)? as *const c_char,
            relocations: [table(DT_JMPREL, DT_PLTRELSZ), table(DT_RELA, DT_RELASZ)],
        })
    }

    fn within(&self, header: &libc::Elf64_Phdr, address: usize) -> bool {
        let start = self.base + header.p_vaddr as usize;
        (start..start + header.p_memsz as usize).contains(&address)
    }

    fn holds(&self, address: usize) -> bool {
        let mut loaded = self
            .headers
            .iter()
            .filter(|header| header.p_type == PT_LOAD);
        loaded.any(|header| self.within(header, address))
    }

    fn rebind(&self, function: &Function) {
        for relocation in self.relocations.into_iter().flatten() {
            let (symbol, kind) = ((relocation.info >> 32) as usize, relocation.info as u32);
            if symbol == 0 || !KINDS.contains(&kind) {
                continue;
            }
            // SAFETY: the relocation is about that symbol, whose name is a C string.
            let name = unsafe {
                let name = (*self.symbols.add(symbol)).st_name as usize;
                CStr::from_ptr(self.names.add(name))
            };
            if name == function.name {
                self.write(self.base + relocation.offset as usize, function.address);
            }
        }
    }

    /// Slots that the linker has made read-only are so again afterwards.
    fn write(&self, slot: usize, address: usize) {
        // SAFETY: a slot of the object, aligned, which other threads read at any time.
        let value = unsafe { AtomicUsize::from_ptr(slot as *mut usize) };
        if value.load(Ordering::Acquire) == address {
            return;
        }
        // SAFETY: asks only.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.cast_unsigned() as usize;
        let page_of = |address: usize| address & !(page - 1);
        // The linker seals whole pages: one that such a segment ends in stays as it is.
        let is_sealed = self.headers.iter().any(|header| {
            let first = self.base + header.p_vaddr as usize;
            let sealed = page_of(first)..page_of(first + header.p_memsz as usize);
            header.p_type == PT_GNU_RELRO && sealed.contains(&slot)
        });
        let start = ptr::with_exposed_provenance_mut::<c_void>(page_of(slot));
        let protect = |access| {
            // SAFETY: the page of the slot, which is mapped and stays so.
            unsafe { libc::mprotect(start, page, access) == 0 }
        };
        if is_sealed && !protect(libc::PROT_READ | libc::PROT_WRITE) {
            return;
        }
        value.store(address, Ordering::Release);
        if is_sealed {
            protect(libc::PROT_READ);
        }
    }
}

/// Kinds of relocations that stand for a slot with the address of a function: the lazily bound ones, and the others.
#[cfg(target_arch = "x86_64")]
const KINDS: [u32; 2] = [7, 6];
#[cfg(target_arch = "aarch64")]
const KINDS: [u32; 2] = [1026, 1025];
#[cfg(target_arch = "riscv64")]
const KINDS: [u32; 2] = [5, 2];
/// Calls go another way there: programs find nothing, as on a host without RDMA.
#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
)))]
const KINDS: [u32; 0] = [];

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;

const DT_PLTRELSZ: usize = 2;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_PLTREL: usize = 20;
const DT_JMPREL: usize = 23;
const LAST_TAG: usize = DT_JMPREL + 1;
