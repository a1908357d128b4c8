//! What can be seen, and what cannot.

use std::ffi::{c_int, c_uint};

use oarlock_memwatch::{Capabilities, Mapping, Mode, Operation, Promise};
use oarlock_port::thread::Uncancelled;

use super::channel::{kind, max_regions};
use super::given;
use crate::abi::{
    OARLOCK_MEMORY_MODE_ANONYMOUS, OARLOCK_MEMORY_MODE_FULL, OARLOCK_MEMORY_MODE_SHARED,
    OARLOCK_MEMORY_NOT_APPLICABLE, OARLOCK_MEMORY_NOT_WATCHABLE, OARLOCK_MEMORY_REFUSED,
    OARLOCK_MEMORY_REPORTED, OARLOCK_MEMORY_SILENT, OARLOCK_MEMORY_SPURIOUS, OARLOCK_MEMORY_STRICT,
    OARLOCK_MEMORY_UNCHANGED, OARLOCK_MEMORY_UNKNOWN, ibv_context, oarlock_memory_capabilities,
};
use crate::errno::{self, Refused, Result};
use crate::verbs::context::Context;

fn query(context: &Context) -> Result<oarlock_memory_capabilities> {
    context.birth.check()?;
    let by_channel = context
        .memory
        .look(|channel| channel.watcher.capabilities());
    let capabilities = match by_channel {
        Some(capabilities) => capabilities,
        None => Capabilities::probe()?,
    };
    Ok(oarlock_memory_capabilities {
        mode: mode_number(capabilities.mode()),
        flags: if capabilities.is_strict() {
            OARLOCK_MEMORY_STRICT
        } else {
            0
        },
        max_regions: max_regions(context) as u64,
    })
}

fn mode_number(mode: Mode) -> u32 {
    match mode {
        Mode::Anonymous => OARLOCK_MEMORY_MODE_ANONYMOUS,
        Mode::Shared => OARLOCK_MEMORY_MODE_SHARED,
        // `Mode::Full`, and more.
        _ => OARLOCK_MEMORY_MODE_FULL,
    }
}

/// What is promised, and the kind of the event, if there is one.
fn promise(mode: c_uint, operation: c_uint, mapping: c_uint) -> Result<(u32, u32)> {
    let unknown = |what: &str, number: c_uint| {
        Refused::new(libc::EINVAL, format!("{what} {number} is not known"))
    };
    let mode = match mode {
        OARLOCK_MEMORY_MODE_ANONYMOUS => Mode::Anonymous,
        OARLOCK_MEMORY_MODE_SHARED => Mode::Shared,
        OARLOCK_MEMORY_MODE_FULL => Mode::Full,
        other => return Err(unknown("mode", other)),
    };
    // The header's numbers are places in these lists.
    let operation = *Operation::ALL
        .get(operation as usize)
        .ok_or_else(|| unknown("operation", operation))?;
    let mapping = *Mapping::ALL
        .get(mapping as usize)
        .ok_or_else(|| unknown("mapping", mapping))?;
    Ok(match Capabilities::of(mode).promise(operation, mapping) {
        Promise::Reported(of) => (OARLOCK_MEMORY_REPORTED, kind(of)),
        Promise::Spurious(of) => (OARLOCK_MEMORY_SPURIOUS, kind(of)),
        Promise::Unchanged => (OARLOCK_MEMORY_UNCHANGED, OARLOCK_MEMORY_UNKNOWN),
        Promise::Refused => (OARLOCK_MEMORY_REFUSED, OARLOCK_MEMORY_UNKNOWN),
        Promise::NotWatchable => (OARLOCK_MEMORY_NOT_WATCHABLE, OARLOCK_MEMORY_UNKNOWN),
        Promise::NotApplicable => (OARLOCK_MEMORY_NOT_APPLICABLE, OARLOCK_MEMORY_UNKNOWN),
        // `Promise::Silent`, and what nobody relies on yet.
        _ => (OARLOCK_MEMORY_SILENT, OARLOCK_MEMORY_UNKNOWN),
    })
}

/// `oarlock_query_memory_events(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_query_memory_events(
    context: *mut ibv_context,
    capabilities: *mut oarlock_memory_capabilities,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    let told = given(context, "context").and_then(|context| {
        let capabilities = given(capabilities, "room for the answer")?;
        // SAFETY: the program's promise.
        let found = query(unsafe { Context::of(context) })?;
        // SAFETY: the program's promise: there is room.
        unsafe { capabilities.write(found) };
        Ok(())
    });
    errno::positive("oarlock_query_memory_events", told)
}

/// `oarlock_memory_promise(3)`: one of `enum oarlock_memory_promised`, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn oarlock_memory_promise(
    mode: c_uint,
    operation: c_uint,
    mapping: c_uint,
    of_kind: *mut c_uint,
) -> c_int {
    let promised = promise(mode, operation, mapping).map(|(promised, kind)| {
        if !of_kind.is_null() {
            // SAFETY: the program's promise.
            unsafe { of_kind.write(kind) };
        }
        promised as usize
    });
    errno::count("oarlock_memory_promise", promised)
}

#[cfg(test)]
#[path = "capability/tests.rs"]
mod tests;
