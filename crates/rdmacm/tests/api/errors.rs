//! Messages: each tells the rule that was broken, the values, who the other side is, and where something can be done, what.

use oarlock_rdmacm::{Error, JoinKind, RejReason, SidrStatus};
use oarlock_verbs::{QpType, WcStatus};
use std::net::SocketAddr;
use std::time::Duration;

fn peer() -> Option<SocketAddr> {
    Some("192.0.2.7:7471".parse().unwrap())
}

/// Every kind, with its values in the text.
#[test]
fn every_error_tells_its_values() {
    const ESTABLISHED: &str = "RDMA_CM_EVENT_ESTABLISHED";
    const DISCONNECTED: &str = "RDMA_CM_EVENT_DISCONNECTED";
    const AWAITED: &str = "the connection";
    let events = vec![ESTABLISHED, DISCONNECTED];
    let status = -libc::ETIMEDOUT;
    let call = "connect";
    let awaited = AWAITED;
    let cases: Vec<(Error, i32, &[&str])> = vec![
        (
            Error::Refused {
                call,
                errno: libc::EADDRINUSE,
                sentence: "192.0.2.7:7471 is bound by another identifier".into(),
            },
            libc::EADDRINUSE,
            &["connect: 192.0.2.7:7471 is bound", "Address already in use"],
        ),
        (
            Error::ServiceGone,
            libc::EIO,
            &["device fatal", "host service is gone"],
        ),
        (
            Error::Answer { call, got: 3 },
            libc::EPROTO,
            &["connect", "3 bytes"],
        ),
        (
            Error::Channel(std::io::Error::from_raw_os_error(libc::EMFILE)),
            libc::EMFILE,
            &["event channel", "Too many open files"],
        ),
        (
            Error::Unreachable {
                peer: peer(),
                status,
            },
            libc::ETIMEDOUT,
            &[
                "no answer from 192.0.2.7:7471",
                "timed out",
                "UDP port 4791",
            ],
        ),
        (
            Error::AddressResolution {
                destination: peer(),
                status,
            },
            libc::ETIMEDOUT,
            &["way to 192.0.2.7:7471", "address resolution", "timed out"],
        ),
        (
            Error::RouteResolution {
                destination: peer(),
                status,
            },
            libc::ETIMEDOUT,
            &["path to 192.0.2.7:7471", "route resolution", "timed out"],
        ),
        (
            Error::ConnectFailed {
                peer: peer(),
                status: -libc::EINVAL,
                sentence: None,
            },
            libc::EINVAL,
            &["connecting to 192.0.2.7:7471 failed", "Invalid argument"],
        ),
        (
            Error::ConnectFailed {
                peer: peer(),
                status: -libc::EINVAL,
                sentence: Some("the queue pair is in state Error".into()),
            },
            libc::EINVAL,
            &["connecting to 192.0.2.7:7471 failed: the queue pair is in state Error"],
        ),
        (
            Error::DisconnectedEarly {
                peer: peer(),
                awaited,
            },
            libc::ECONNRESET,
            &["disconnected by 192.0.2.7:7471", AWAITED],
        ),
        (
            Error::UnexpectedEvent {
                peer: peer(),
                awaited,
                got: ESTABLISHED,
            },
            libc::EPROTO,
            &[ESTABLISHED, AWAITED, "with 192.0.2.7:7471"],
        ),
        (
            Error::TimedOut {
                peer: peer(),
                awaited,
            },
            libc::ETIMEDOUT,
            &["deadline", "the connection with 192.0.2.7:7471"],
        ),
        (
            Error::DeviceRemoved { call },
            libc::ENODEV,
            &["connect", "device is gone"],
        ),
        (
            Error::ServiceRefused {
                peer: peer(),
                status: SidrStatus::UNSUPPORTED,
                private_data: None,
            },
            libc::ECONNREFUSED,
            &[
                "refused by 192.0.2.7:7471",
                "(1)",
                "nobody listens for datagrams on 192.0.2.7:7471",
            ],
        ),
        (
            Error::QKeyMismatch { peer: peer() },
            libc::EINVAL,
            &["at 192.0.2.7:7471", "Q_Key"],
        ),
        (
            Error::JoinFailed {
                group: "239.1.2.3".parse().unwrap(),
                status: -libc::ENOBUFS,
                sentence: None,
            },
            libc::ENOBUFS,
            &["239.1.2.3", "No buffer space"],
        ),
        (
            Error::NoRuntime {
                call: "AsyncHost::new",
            },
            libc::EINVAL,
            &["AsyncHost::new", "tokio"],
        ),
        (Error::RuntimeGone, libc::EPIPE, &["runtime", "ended"]),
        (Error::Closed { call }, libc::ENOENT, &["connect", "closed"]),
        (
            Error::EventHeldByCaller {
                call: "migrate",
                events: events.clone(),
                done: None,
            },
            libc::EDEADLK,
            &[
                "migrate",
                "2 events",
                ESTABLISHED,
                DISCONNECTED,
                "drop first",
            ],
        ),
        (
            Error::EventHeldByCaller {
                call: "close",
                events: events.clone(),
                done: Some("been destroyed"),
            },
            libc::EDEADLK,
            &[
                "close",
                "2 events",
                ESTABLISHED,
                DISCONNECTED,
                "has been destroyed all the same",
            ],
        ),
        (Error::AlreadyLeft, libc::ENOENT, &["leave", "left before"]),
        (
            Error::Unacknowledged {
                call: "close",
                events: events.clone(),
                done: "been destroyed",
            },
            libc::ETIMEDOUT,
            &[
                "close",
                "2 events",
                ESTABLISHED,
                DISCONNECTED,
                "has been destroyed",
            ],
        ),
        (
            Error::OtherHost { call: "migrate" },
            libc::EINVAL,
            &["migrate", "another host"],
        ),
        (
            Error::AlreadySynchronous,
            libc::EINVAL,
            &["synchronous already"],
        ),
        (
            Error::NotSynchronous { call },
            libc::EINVAL,
            &["connect", "synchronous"],
        ),
        (
            Error::NotDatagram { call },
            libc::EINVAL,
            &["connect", "UDP and IPOIB"],
        ),
        (
            Error::NoDevice { call },
            libc::EINVAL,
            &["connect", "resolve an address"],
        ),
        (
            Error::NoQueuePair { call },
            libc::EINVAL,
            &["connect", "create_qp"],
        ),
        (
            Error::QueuePairExists { call },
            libc::EINVAL,
            &["connect", "already"],
        ),
        (
            Error::OtherDevice {
                given: "soft_eth0".into(),
                bound: "soft_lo".into(),
            },
            libc::EINVAL,
            &["soft_eth0", "soft_lo"],
        ),
        (
            Error::OtherQpType {
                call,
                given: QpType::Rc,
                wanted: QpType::Ud,
            },
            libc::EINVAL,
            &["connect", "Rc", "Ud"],
        ),
        (
            Error::MoreThanDevice {
                call,
                name: "initiator_depth",
                given: 200,
                max: 128,
            },
            libc::EINVAL,
            &["connect", "initiator_depth", "200", "128"],
        ),
        (
            Error::MoreThanOffered {
                name: "responder_resources",
                given: 9,
                offered: 4,
            },
            libc::EINVAL,
            &["accept", "responder_resources", "9", "4"],
        ),
        (
            Error::PrivateDataTooLong {
                call,
                given: 57,
                max: 56,
            },
            libc::EINVAL,
            &["connect", "57", "56"],
        ),
        (
            Error::MessageTooLong {
                given: 5000,
                max: 4096,
            },
            libc::EMSGSIZE,
            &["5000", "4096"],
        ),
        (
            Error::ReceiveFailed {
                status: WcStatus::LOC_LEN_ERR,
            },
            libc::EIO,
            &["receive", "queue pair has failed"],
        ),
        (
            Error::ReasonNotForPrograms(RejReason::TIMEOUT),
            libc::EINVAL,
            &["timeout (4)", "28", "35"],
        ),
        (
            Error::TimeoutOutOfRange {
                call,
                given: Duration::ZERO,
                max: Duration::from_secs(9),
            },
            libc::EINVAL,
            &["connect", "0ns", "1 ms", "9s"],
        ),
    ];
    for (error, errno, parts) in cases {
        let message = error.to_string();
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
        assert_eq!(error.errno(), errno, "{message}");
        // Readable after "error: ".
        assert!(
            !message.ends_with('.') && !message.contains("  "),
            "{message}"
        );
    }
}

/// Public faults 26, 20: every reason of the specification by name and number; those that something can be done about
/// say what.
#[test]
fn every_reason_of_a_rejection_has_its_name() {
    for code in (1..=33).chain([35]) {
        let reason = RejReason(code);
        let error = Error::Rejected {
            peer: peer(),
            reason,
            private_data: None,
        };
        let message = error.to_string();
        let name = reason.name().expect("the specification names it");
        let begin = format!("connection rejected by 192.0.2.7:7471: {name} ({code})");
        assert!(message.starts_with(&begin), "{message}");
        assert_eq!(error.errno(), libc::ECONNREFUSED);
    }
    let with = |reason| {
        let private_data = None;
        Error::Rejected {
            peer: peer(),
            reason,
            private_data,
        }
        .to_string()
    };
    for (reason, hint) in [
        (
            RejReason::INVALID_SERVICE_ID,
            "nobody listens on 192.0.2.7:7471",
        ),
        (RejReason::NO_RESOURCES, "try again later"),
        (RejReason::STALE_CONNECTION, "try again"),
        (RejReason::TIMEOUT, "gave up"),
        (RejReason::INVALID_GID, "knows no way back"),
        (
            RejReason::INSUFFICIENT_RESPONDER_RESOURCES,
            "smaller initiator_depth",
        ),
        (RejReason::CONSUMER_DEFINED, "by the program there"),
        (RejReason::VENDOR_OPTION_NOT_SUPPORTED, "vendor options"),
    ] {
        assert!(with(reason).contains(hint), "{}", with(reason));
    }
    // One that nobody has named yet is a number.
    assert!(
        with(RejReason(99)).contains("reason 99"),
        "{}",
        with(RejReason(99))
    );
}

/// Without an address the sentences are whole, too.
#[test]
fn messages_without_an_address() {
    let error = Error::Rejected {
        peer: None,
        reason: RejReason::INVALID_SERVICE_ID,
        private_data: None,
    };
    let message = "connection rejected: invalid service ID (8): nobody listens there";
    assert_eq!(error.to_string(), message);
    assert_ne!(JoinKind::FullMember, JoinKind::SendOnlyFullMember);
}
