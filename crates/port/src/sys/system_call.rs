//! System calls on the way of data, without a function of the C library around them.
//!
//! Its functions for these calls are points where a program's thread may be cancelled, and a call and a return more: after the kernel
//! has been entered, each return that the processor has not predicted costs as much as a third of the shortest system call.

use std::io;

/// Makes the system call `number` (`libc::SYS_write` and so on) with up to six arguments; what it returned.
///
/// # Errors
/// What the kernel says.
///
/// # Safety
/// That of the call: what its arguments point to must be valid for what the kernel does with it.
///
/// # Examples
/// ```
/// // SAFETY: takes no arguments.
/// let parent = unsafe { oarlock_port::system_call(libc::SYS_getppid, []) }.expect("never fails");
/// assert_eq!(parent, std::os::unix::process::parent_id() as usize);
/// ```
#[inline(always)]
pub unsafe fn system_call<const N: usize>(
    number: libc::c_long,
    arguments: [usize; N],
) -> io::Result<usize> {
    const { assert!(N <= 6, "the kernel takes six at most") };
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: the caller's promise. Arguments that the call does not have are ignored.
    unsafe { enter(number, all) }
}

/// The kernel's own convention (the psABI of x86-64, appendix A.2.1): an error is its negated number, at most 4095.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn enter(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> io::Result<usize> {
    let result: isize;
    // SAFETY: the caller's promise; the kernel changes rcx and r11 besides, and restores the flags.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    match result {
        -4095..=-1 => Err(io::Error::from_raw_os_error(-result as i32)),
        _ => Ok(result.cast_unsigned()),
    }
}

/// Elsewhere the C library's function for calls that it has no other for.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn enter(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn all_six_arguments_arrive_and_errors_are_told() {
        let file = tempfile();
        let page = 4096;
        // SAFETY: a new mapping of a file of ours, wherever the kernel has room.
        let mapped = unsafe {
            let arguments = [
                0,
                page,
                libc::PROT_READ as usize,
                libc::MAP_PRIVATE as usize,
                file.as_raw_fd() as usize,
                page,
            ];
            system_call(libc::SYS_mmap, arguments)
        };
        // SAFETY: just mapped, a page long.
        let bytes =
            unsafe { std::slice::from_raw_parts(mapped.expect("mapped") as *const u8, page) };
        assert!(bytes.iter().all(|byte| *byte == b'b'), "the second page");
        // SAFETY: passes no memory.
        let error = unsafe { system_call(libc::SYS_close, [usize::MAX]) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }

    fn tempfile() -> std::fs::File {
        use std::io::Write;
        use std::os::fd::FromRawFd;
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"pages".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: opened just now, and nobody else knows it.
        let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
        file.write_all(&[[b'a'; 4096], [b'b'; 4096]].concat())
            .expect("written");
        file
    }
}
