//! The service's name: an abstract Unix address, which is the lock of its network namespace.

use crate::Error;
use oarlock_port::fdpass;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Takes the name, without listening yet: until [`start_listening`] nobody can connect, so that a service that fails to
/// start after all is never joined.
///
/// # Errors
/// `AlreadyRunning`, `OtherUser`: somebody has it.
pub(crate) fn take_name() -> Result<OwnedFd, Error> {
    let deadline = Instant::now() + TAKE_LIMIT;
    loop {
        let socket = seqpacket()?;
        match bind(&socket, &name()) {
            Ok(()) => return Ok(socket),
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(Error::errno("take the name of the host service")(errno)),
        }
        // Connecting tells who has the name. A holder that does not listen is just starting or ending.
        match connect_to_service() {
            Ok(socket) => {
                let peer = fdpass::peer(&socket)
                    .map_err(Error::system("learn who holds the host service's name"))?;
                let program = rustix::process::geteuid().as_raw();
                return Err(match peer.uid {
                    uid if uid == program => Error::AlreadyRunning { pid: peer.pid },
                    service => Error::OtherUser { service, program },
                });
            }
            Err(Error::NoService) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5))
            }
            Err(Error::NoService) => {
                return Err(Error::errno("take the name of the host service")(
                    Errno::ADDRINUSE,
                ));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Lets programs connect.
pub(crate) fn start_listening(socket: &OwnedFd) -> Result<(), Error> {
    listen(socket, BACKLOG).map_err(Error::errno("listen for programs"))
}

/// Connects to the service.
///
/// # Errors
/// `NoService`: nobody listens.
pub(crate) fn connect_to_service() -> Result<OwnedFd, Error> {
    let socket = seqpacket()?;
    // A signal can end the wait for room among those that are to be let in; the socket is then as before.
    match rustix::io::retry_on_intr(|| connect(&socket, &name())) {
        Ok(()) => Ok(socket),
        Err(Errno::CONNREFUSED) => Err(Error::NoService),
        Err(errno) => Err(Error::errno("connect to the host service")(errno)),
    }
}

fn seqpacket() -> Result<OwnedFd, Error> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(Error::errno("make a Unix socket"))
}

fn name() -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(NAME).expect("the name is short")
}

const NAME: &[u8] = b"oarlock.host";
const BACKLOG: i32 = 1024;
/// Longer than a service takes to start, the wait for its port included.
const TAKE_LIMIT: Duration = Duration::from_secs(10);
