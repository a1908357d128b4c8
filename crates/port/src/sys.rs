//! The system calls for which there is no safe face: socket options by number, the port's steering program,
//! `recvmmsg` and `sendmsg`, the signals of threads and of files that grow too long, and the fork handler. The only `unsafe` code of this crate.
#![allow(unsafe_code, reason = "system calls without a safe wrapper")]

pub(crate) mod file;
pub mod fork;
mod receive;
mod send;
mod system_call;
pub mod thread;

pub(crate) use receive::{Received, receive_many};
pub(crate) use send::send;
pub use system_call::system_call;

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// Sets an integer socket option.
pub(crate) fn set_option(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed and so open; the pointer is to a live i32 and the length is its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Number of datagrams that a socket has dropped since it was made, for want of room as a rule.
pub(crate) fn dropped(socket: impl AsFd) -> io::Result<u32> {
    let mut info = [0u32; MEMINFO_LEN];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and so open; the pointers are to a live array and to its size, and every bit
    // pattern that the kernel writes is one of u32.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 {
        Ok(info[libc::SK_MEMINFO_DROPS as usize])
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Who is at the other end of a connected Unix socket: process and user. A process that this pid namespace does not have
/// is 0, for which the safe wrappers have no value.
pub(crate) fn peer_credentials(socket: impl AsFd) -> io::Result<(u32, u32)> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and so open; the pointers are to a live ucred and to its size, and every bit
    // pattern that the kernel writes is a ucred.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if result == 0 {
        Ok((credentials.pid.unsigned_abs(), credentials.uid))
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Lets the kernel choose among the sockets of a port by the upper 8 bits of the destination QP number.
///
/// The program sees the UDP payload from offset 0, which is the BTH. A load beyond the packet's end ends the program
/// with 0: the first socket, which is the host service's.
pub(crate) fn attach_slot_steering(socket: impl AsFd) -> io::Result<()> {
    let instruction = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 4),
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0x00FF_FFFF),
        instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 16),
        instruction(libc::BPF_RET | libc::BPF_A, 0),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the descriptor is borrowed and so open; `filter` is a live sock_fprog of the given size whose pointer
    // and length describe `program`, which outlives the call; the kernel copies it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// From Linux 4.12; include/uapi/asm-generic/socket.h.
const SO_MEMINFO: libc::c_int = 55;
/// SK_MEMINFO_VARS of include/uapi/linux/sock_diag.h; the last is the number of drops.
const MEMINFO_LEN: usize = 9;
