//! The slots through which the objects of a process call functions of others: what the dynamic linker fills in.
//!
//! Layouts: the ELF-64 object file format; kinds of relocations: the processors' supplements to the System V ABI.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use oarlock_port::fork::without_forks;

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
    // The walk holds a lock of the dynamic linker's, which a child would wait for.
    // SAFETY: `object` takes what is given here.
    without_forks(|| unsafe { libc::dl_iterate_phdr(Some(object), (&raw mut functions).cast()) });
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
            let (name, is_variable) = unsafe {
                let symbol = &*self.symbols.add(symbol);
                let name = CStr::from_ptr(self.names.add(symbol.st_name as usize));
                (name, symbol.st_info & 0xf == STT_OBJECT)
            };
            if name == function.name && !is_variable {
                self.write(self.base + relocation.offset as usize, function.address);
            }
        }
    }

    /// Whether a slot has what the file says: the linker is about to put in what it is to be, or to add the object's
    /// address. An object is seen here from the moment on that it is mapped.
    fn is_as_in_file(&self, value: usize) -> bool {
        let ends = self.headers.iter().filter(|one| one.p_type == PT_LOAD);
        let end = ends.map(|one| one.p_vaddr + one.p_memsz).max();
        self.base != 0 && end.is_some_and(|end| (value as u64) < end)
    }

    /// Slots that the linker has made read-only are so again afterwards.
    fn write(&self, slot: usize, address: usize) {
        // SAFETY: a slot of the object, aligned, which other threads read at any time.
        let value = unsafe { AtomicUsize::from_ptr(slot as *mut usize) };
        let before = value.load(Ordering::Acquire);
        if before == address || self.is_as_in_file(before) {
            return;
        }
        // SAFETY: asks only.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.cast_unsigned() as usize;
        let page_of = |address: usize| address & !(page - 1);
        // The linker seals whole pages: one that such a segment ends in stays as it is.
        let to_be_sealed = self.headers.iter().any(|header| {
            let first = self.base + header.p_vaddr as usize;
            let sealed = page_of(first)..page_of(first + header.p_memsz as usize);
            header.p_type == PT_GNU_RELRO && sealed.contains(&slot)
        });
        let start = ptr::with_exposed_provenance_mut::<c_void>(page_of(slot));
        // A linker that has not sealed the page has more to write there. (Before Linux 5.14 the answer is always no.)
        // SAFETY: changes no byte.
        let is_sealed =
            to_be_sealed && unsafe { libc::madvise(start, page, libc::MADV_POPULATE_WRITE) != 0 };
        let protect = |access| {
            // SAFETY: the page of the slot, which is mapped and stays so.
            unsafe { libc::mprotect(start, page, access) == 0 }
        };
        // It may seal the page at any moment.
        if to_be_sealed && !protect(libc::PROT_READ | libc::PROT_WRITE) {
            return;
        }
        // Another value meanwhile is the linker's, which binds the function at this moment: it stays for this time.
        let _ = value.compare_exchange(before, address, Ordering::Release, Ordering::Relaxed);
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

const STT_OBJECT: u8 = 1;

const DT_PLTRELSZ: usize = 2;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_PLTREL: usize = 20;
const DT_JMPREL: usize = 23;
const LAST_TAG: usize = DT_JMPREL + 1;

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// A page of an object that the linker is to seal, with a slot at its start.
    struct Loaded {
        page: *mut AtomicUsize,
        headers: [libc::Elf64_Phdr; 2],
    }

    impl Loaded {
        fn new() -> Self {
            // SAFETY: a new mapping, wherever there is room.
            let page = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    PAGE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            assert_ne!(page, libc::MAP_FAILED);
            let header = |kind| libc::Elf64_Phdr {
                p_type: kind,
                p_flags: 0,
                p_offset: 0,
                p_vaddr: 0,
                p_paddr: 0,
                p_filesz: PAGE as u64,
                p_memsz: PAGE as u64,
                p_align: PAGE as u64,
            };
            Self {
                page: page.cast(),
                headers: [header(PT_LOAD), header(PT_GNU_RELRO)],
            }
        }

        fn slot(&self) -> &AtomicUsize {
            // SAFETY: mapped, aligned, and initialized by the kernel.
            unsafe { &*self.page }
        }

        fn write(&self, address: usize) {
            let object = Object {
                base: self.page.expose_provenance(),
                headers: &self.headers,
                symbols: ptr::null(),
                names: ptr::null(),
                relocations: [&[], &[]],
            };
            object.write(object.base, address);
        }

        fn seal(&self) {
            // SAFETY: the page is this value's.
            let status = unsafe { libc::mprotect(self.page.cast(), PAGE, libc::PROT_READ) };
            assert_eq!(status, 0);
        }

        fn is_writable(&self) -> bool {
            let page = self.page.cast();
            // SAFETY: changes no byte.
            unsafe { libc::madvise(page, PAGE, libc::MADV_POPULATE_WRITE) == 0 }
        }
    }

    impl Drop for Loaded {
        fn drop(&mut self) {
            // SAFETY: mapped by `new`, and nobody looks at it any more.
            unsafe { libc::munmap(self.page.cast(), PAGE) };
        }
    }

    const BEFORE: usize = 0x5555_5555_0000;
    const AFTER: usize = 0x7777_7777_0000;

    #[test]
    fn a_sealed_slot_is_written_and_sealed_again() {
        let loaded = Loaded::new();
        loaded.slot().store(BEFORE, Ordering::Relaxed);
        loaded.seal();
        loaded.write(AFTER);
        assert_eq!(loaded.slot().load(Ordering::Relaxed), AFTER);
        assert!(!loaded.is_writable());
    }

    #[test]
    fn a_page_that_the_linker_still_writes_is_not_sealed_before_it_does() {
        let loaded = Loaded::new();
        if !loaded.is_writable() {
            eprintln!("not run: before Linux 5.14 nothing tells whether a page is sealed");
            return;
        }
        loaded.slot().store(BEFORE, Ordering::Relaxed);
        loaded.write(AFTER);
        assert_eq!(loaded.slot().load(Ordering::Relaxed), AFTER);
        assert!(loaded.is_writable());
    }

    #[test]
    fn a_slot_that_the_linker_has_not_filled_yet_is_left_to_it() {
        // Nothing, and the address of a stub, which has the object's own still to be added.
        for in_file in [0, PAGE - 8] {
            let loaded = Loaded::new();
            loaded.slot().store(in_file, Ordering::Relaxed);
            loaded.write(AFTER);
            assert_eq!(loaded.slot().load(Ordering::Relaxed), in_file);
        }
    }
}
