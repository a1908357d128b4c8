//! The parts of error messages that depend on values: who the other side is, and what can be done.

use oarlock_wire::{RejReason, SidrStatus};
use std::net::SocketAddr;

pub(crate) fn by(peer: Option<SocketAddr>) -> String {
    preposition("by", peer)
}

pub(crate) fn from(peer: Option<SocketAddr>) -> String {
    preposition("from", peer)
}

pub(crate) fn to(peer: Option<SocketAddr>) -> String {
    preposition("to", peer)
}

pub(crate) fn at(peer: Option<SocketAddr>) -> String {
    preposition("at", peer)
}

pub(crate) fn with(peer: Option<SocketAddr>) -> String {
    preposition("with", peer)
}

fn preposition(word: &str, peer: Option<SocketAddr>) -> String {
    peer.map_or_else(String::new, |peer| format!(" {word} {peer}"))
}

pub(crate) fn events(count: usize) -> String {
    format!("{count} event{}", if count == 1 { "" } else { "s" })
}

/// What follows for a thread that holds events of its own.
pub(crate) fn held(done: Option<&'static str>) -> String {
    done.map_or_else(
        || String::from("; acknowledge or drop first"),
        |done| format!(", so they were not waited for; the identifier has {done} all the same"),
    )
}

/// What is behind a rejection, as far as its reason tells (IBA Vol. 1 ch. 12, REJ, reason codes).
pub(crate) fn rejected(reason: RejReason, peer: Option<SocketAddr>) -> String {
    let text = match reason {
        RejReason::INVALID_SERVICE_ID => {
            return peer.map_or_else(
                || String::from(": nobody listens there"),
                |peer| format!(": nobody listens on {peer}"),
            );
        }
        RejReason::NO_QP => "that host has no queue pair left",
        RejReason::NO_RESOURCES => {
            "that host has no room for another connection now; try again later"
        }
        RejReason::TIMEOUT => "that side gave up waiting for an answer",
        RejReason::STALE_CONNECTION => {
            "that side still knew an earlier connection of this queue pair number, and has ended it now; try again"
        }
        RejReason::INVALID_GID | RejReason::INVALID_ALTERNATE_GID => {
            "that host does not have the address, or knows no way back"
        }
        RejReason::INVALID_PATH_MTU => "that side cannot take packets of the path's MTU",
        RejReason::INSUFFICIENT_RESPONDER_RESOURCES => {
            "that side accepts fewer outstanding reads and atomics; ask for a smaller initiator_depth"
        }
        RejReason::PORT_AND_CM_REDIRECTION | RejReason::PORT_REDIRECTION => {
            "the service has moved; the additional information names the new place"
        }
        RejReason::CONSUMER_DEFINED => "by the program there",
        RejReason::VENDOR_OPTION_NOT_SUPPORTED => {
            "the program there does not accept the vendor options"
        }
        _ => return String::new(),
    };
    format!(": {text}")
}

/// What is behind the refusal of a datagram service (IBA Vol. 1 ch. 12, SIDR_REP, status).
pub(crate) fn service_refused(status: SidrStatus, peer: Option<SocketAddr>) -> String {
    match (status, peer) {
        (SidrStatus::UNSUPPORTED, Some(peer)) => {
            format!(": nobody listens for datagrams on {peer}")
        }
        (SidrStatus::UNSUPPORTED, None) => String::from(": nobody listens for datagrams there"),
        (SidrStatus::REJECT, _) => String::from(": by the program there"),
        _ => String::new(),
    }
}

/// What may be behind silence.
pub(crate) fn unreachable(status: i32) -> &'static str {
    if status == -libc::ETIMEDOUT {
        ": is a host service running there, and UDP port 4791 open both ways?"
    } else {
        ""
    }
}
