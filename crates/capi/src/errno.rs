//! How a refused call is told: `errno` is exact, and the sentence goes to the log.

use std::ffi::c_int;
use std::fmt;
use std::io;

use oarlock_device as device;
use oarlock_hostd as hostd;
use oarlock_memwatch as memwatch;
use oarlock_transport as transport;

/// An error number of the system, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

/// Why a call is refused: a number for the program and a sentence for whoever reads the log.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) errno: Errno,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    Sentence(String),
    /// Made a sentence only for a log that wants it: a program may ask again and again for room in a full queue.
    Device(device::Error),
}

pub(crate) type Result<T> = std::result::Result<T, Refused>;

impl Refused {
    pub(crate) fn new(errno: c_int, sentence: impl Into<String>) -> Self {
        Self {
            errno: Errno(errno),
            reason: Reason::Sentence(sentence.into()),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Sentence(sentence) => f.write_str(sentence),
            Reason::Device(error) => error.fmt(f),
        }
    }
}

/// Sets `errno` of the calling thread.
pub(crate) fn set(errno: Errno) {
    // SAFETY: the C library gives each thread a place of its own.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// For calls that answer 0, or -1 with `errno`: those of librdmacm.
pub(crate) fn minus_one(call: &'static str, result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(refused) => {
            tell(call, &refused);
            -1
        }
    }
}

/// For calls that answer 0, or a positive error number: most of libibverbs. `errno` is set, too.
pub(crate) fn positive(call: &'static str, result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(refused) => {
            tell(call, &refused);
            refused.errno.0
        }
    }
}

/// For calls that answer a new object, or null with `errno`.
pub(crate) fn object<T>(call: &'static str, result: Result<*mut T>) -> *mut T {
    match result {
        Ok(object) => object,
        Err(refused) => {
            tell(call, &refused);
            std::ptr::null_mut()
        }
    }
}

/// For calls that answer how many, or -1 with `errno`.
pub(crate) fn count(call: &'static str, result: Result<usize>) -> c_int {
    match result {
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(refused) => {
            tell(call, &refused);
            -1
        }
    }
}

fn tell(call: &'static str, refused: &Refused) {
    crate::process::log::start();
    // An empty queue is an answer, not a fault.
    if refused.errno.0 == libc::EAGAIN {
        tracing::trace!("{call}: {refused}");
    } else {
        tracing::warn!("{call}: {refused} (errno {})", refused.errno.0);
    }
    set(refused.errno);
}

impl From<device::Error> for Refused {
    fn from(error: device::Error) -> Self {
        Self {
            errno: Errno(of_device(&error)),
            reason: Reason::Device(error),
        }
    }
}

impl From<memwatch::Error> for Refused {
    fn from(error: memwatch::Error) -> Self {
        Self::new(of_memory(&error), error.to_string())
    }
}

impl From<hostd::Error> for Refused {
    fn from(error: hostd::Error) -> Self {
        Self::new(of_host(&error), error.to_string())
    }
}

impl From<oarlock_verbs::Error> for Refused {
    fn from(error: oarlock_verbs::Error) -> Self {
        let errno = match &error {
            oarlock_verbs::Error::Host(error) => of_host(error),
            oarlock_verbs::Error::Device(error) => of_device(error),
            oarlock_verbs::Error::Memory(error) => of_memory(error),
            oarlock_verbs::Error::NoSuchDevice { .. } => libc::ENODEV,
            _ => libc::EINVAL,
        };
        Self::new(errno, error.to_string())
    }
}

fn of_device(error: &device::Error) -> c_int {
    use device::Error;
    match error {
        Error::NotMapped { .. } | Error::RangeOverflow { .. } => libc::EFAULT,
        Error::OutOfMemory { .. }
        | Error::TooManyRegions { .. }
        | Error::TooManyWindows { .. }
        | Error::TooManyQueuePairs { .. }
        | Error::TooManySrqs { .. }
        | Error::TooManyXrcDomains { .. }
        | Error::TooManyGroups { .. } => libc::ENOMEM,
        Error::NoPort { source } => source
            .downcast_ref::<hostd::Error>()
            .map_or(libc::ENOMEM, of_host),
        Error::ForeignMemoryForbidden { .. } => libc::EPERM,
        Error::UnsupportedAccess { .. }
        | Error::ImplicitOnDemand
        | Error::UnsupportedQpType(_)
        | Error::XrcDomainOfFile
        | Error::Watched => libc::EOPNOTSUPP,
        Error::WindowsBound { .. } => libc::EBUSY,
        // The memory changed while it was registered, or since.
        Error::WouldBlock | Error::Invalidated { .. } => libc::EAGAIN,
        Error::DeviceFatal => libc::EIO,
        Error::Forked => libc::EPERM,
        Error::QueuePair(error) => of_queue_pair(error),
        Error::CannotJoin { source, .. } | Error::System { source, .. } => of_system(source),
        _ => libc::EINVAL,
    }
}

fn of_memory(error: &memwatch::Error) -> c_int {
    use memwatch::{Error, Reason};
    match error {
        Error::Unavailable { reason, errno } => match reason {
            Reason::NotPermitted => libc::EACCES,
            Reason::NoResources => *errno,
            _ => libc::EOPNOTSUPP,
        },
        Error::NotWatchable { .. } | Error::CannotValidate { .. } => libc::EOPNOTSUPP,
        Error::Conflict { .. } => libc::EBUSY,
        Error::NotMapped { .. } => libc::EFAULT,
        Error::BadRange { len, .. } if *len > 0 => libc::EFAULT,
        Error::OutOfMappings { .. } | Error::TooManyRegions { .. } => libc::ENOMEM,
        Error::TooManyWatchers { .. } => libc::EMFILE,
        Error::CookieInUse { .. } => libc::EEXIST,
        Error::Forked => libc::EPERM,
        Error::Broken => libc::EOWNERDEAD,
        Error::System { source, .. } => of_system(source),
        _ => libc::EINVAL,
    }
}

fn of_queue_pair(error: &transport::Error) -> c_int {
    match error {
        transport::Error::QueueFull { .. } => libc::ENOMEM,
        transport::Error::QueueInUse { .. } => libc::EBUSY,
        transport::Error::AttributeNotSupported { .. } => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}

fn of_host(error: &hostd::Error) -> c_int {
    use hostd::Error;
    match error {
        Error::NoService
        | Error::NoProgram { .. }
        | Error::NotExecutable { .. }
        | Error::StartFailed { .. } => libc::ENODEV,
        Error::LoopbackDown => libc::ENETDOWN,
        Error::OtherUser { .. } => libc::EACCES,
        Error::ServiceGone => libc::EIO,
        Error::Forked { .. } => libc::EPERM,
        Error::NoDescriptor => libc::EMFILE,
        // The service has one code for whatever its system does not let it do.
        Error::Refused(refusal) if refusal.sentence == Error::LoopbackDown.to_string() => {
            libc::ENETDOWN
        }
        Error::Refused(_) => libc::ENOMEM,
        Error::System { source, .. } => of_system(source),
        Error::FaultRules(_)
        | Error::FaultRecord(_)
        | Error::FaultVariables(_)
        | Error::FaultFile { .. } => libc::EINVAL,
        _ => libc::EIO,
    }
}

fn of_system(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}
