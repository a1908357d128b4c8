//! SET_OPTION: the kernel's options, and our own.

use std::time::Duration;

use oarlock_ucm::abi::{Command, SetOption, option_level, option_oarlock};
use oarlock_ucm::client::{self, IdNumber};
use oarlock_wire::{IbTimeout, RnrTimer, Time};

use crate::errno::{EFAULT, EINVAL, ENOENT, ENOSYS};
use crate::errors::raw;
use crate::world::{PORT, World, address, kind};

fn option(id: u32, level: u32, optname: u32, optlen: u32) -> Vec<u8> {
    raw(
        Command::SET_OPTION,
        &SetOption {
            optval: 0,
            id,
            level,
            optname,
            optlen,
        },
    )
}

#[test]
fn set_option_tells_levels_names_and_lengths_apart() {
    let mut w = World::new(1);
    let file = w.open(0);
    let id = w.create(0, file, 1).0;
    let rows: [(&str, Vec<u8>, &[u8], i32); 15] = [
        (
            "too long for any option, before the identifier",
            option(99, 0, 0, u32::MAX),
            &[],
            EINVAL,
        ),
        ("unknown identifier", option(99, 9, 9, 1), &[1], ENOENT),
        ("the value is not there", option(id, 9, 9, 4), &[1], EFAULT),
        ("unknown level", option(id, 9, 0, 1), &[1], ENOSYS),
        ("unknown name", option(id, 0, 9, 1), &[1], ENOSYS),
        (
            "a path record of one byte",
            option(id, 1, 1, 1),
            &[1],
            EINVAL,
        ),
        ("no path record", option(id, 1, 1, 0), &[], EINVAL),
        (
            "unknown name of the transport",
            option(id, 1, 2, 1),
            &[1],
            ENOSYS,
        ),
        (
            "type of service in four bytes",
            option(id, 0, 0, 4),
            &[1; 4],
            EINVAL,
        ),
        ("reuseaddr in one byte", option(id, 0, 1, 1), &[1], EINVAL),
        ("afonly in one byte", option(id, 0, 2, 1), &[1], EINVAL),
        (
            "ack timeout in four bytes",
            option(id, 0, 3, 4),
            &[1; 4],
            EINVAL,
        ),
        (
            "ack timeout beyond five bits",
            option(id, 0, 3, 1),
            &[32],
            EINVAL,
        ),
        ("nothing at all", option(id, 0, 0, 0), &[], EINVAL),
        ("ack timeout", option(id, 0, 3, 1), &[31], 0),
    ];
    for (what, request, value, errno) in rows {
        assert_eq!(w.errno(0, file, &request, value), errno, "{what}");
    }
    let id = IdNumber(id);
    w.ok(0, file, &client::set_tos(id, 8));
    w.ok(0, file, &client::set_reuseaddr(id, true));
    w.ok(0, file, &client::set_afonly(id, true));
    w.ok(0, file, &client::bind(id, (address(0), PORT).into()));
    w.ok(0, file, &client::listen(id, 1));
    let late = client::set_reuseaddr(id, true);
    assert_eq!(
        w.errno(0, file, late.request(), late.inline()),
        EINVAL,
        "not while listening"
    );
}

#[test]
fn our_own_options_are_checked_as_the_kernels_are() {
    let mut w = World::new(1);
    let file = w.open(0);
    let id = w.create(0, file, 1).0;
    let ours = |name, len| option(id, option_level::OARLOCK, name, len);
    let rows: [(&str, Vec<u8>, &[u8], i32); 9] = [
        ("an unknown name", ours(4, 1), &[1], ENOSYS),
        (
            "an RNR timer beyond five bits",
            ours(option_oarlock::MIN_RNR_TIMER, 1),
            &[32],
            EINVAL,
        ),
        (
            "a response timeout beyond five bits",
            ours(option_oarlock::CM_RESPONSE_TIMEOUT, 1),
            &[32],
            EINVAL,
        ),
        (
            "retries beyond four bits",
            ours(option_oarlock::MAX_CM_RETRIES, 1),
            &[16],
            EINVAL,
        ),
        (
            "a deadline in one byte",
            ours(option_oarlock::CONNECT_DEADLINE, 1),
            &[1],
            EINVAL,
        ),
        (
            "the longest RNR timer",
            ours(option_oarlock::MIN_RNR_TIMER, 1),
            &[0],
            0,
        ),
        (
            "the longest response timeout",
            ours(option_oarlock::CM_RESPONSE_TIMEOUT, 1),
            &[31],
            0,
        ),
        (
            "no retries",
            ours(option_oarlock::MAX_CM_RETRIES, 1),
            &[0],
            0,
        ),
        (
            "the longest deadline",
            ours(option_oarlock::CONNECT_DEADLINE, 4),
            &[0xFF; 4],
            0,
        ),
    ];
    for (what, request, value, errno) in rows {
        assert_eq!(w.errno(0, file, &request, value), errno, "{what}");
    }
}

/// How long an identifier with these options is connecting to a host that never answers.
fn unreachable_after(options: impl Fn(IdNumber) -> Vec<client::Call<()>>) -> Duration {
    let mut w = World::new(2);
    let file = w.open(0);
    let id = w.routed(0, file, 1, 1);
    for call in options(id) {
        w.ok(0, file, &call);
    }
    w.hosts.truncate(1);
    w.connect(0, file, id, 0x11);
    w.rest();
    assert_eq!(w.expect(0, file, kind::UNREACHABLE).status, -110);
    w.now - Time::ZERO
}

#[test]
fn an_attempt_ends_when_its_options_say() {
    // Twice the packet life time of 256 ms and the response time, sixteen times.
    assert_eq!(
        unreachable_after(|_| vec![]),
        Duration::from_millis(16 * (2 * 256 + 4096))
    );
    assert_eq!(
        unreachable_after(|id| vec![
            client::set_cm_response_timeout(id, IbTimeout::truncate(14)),
            client::set_max_cm_retries(id, 2),
        ]),
        Duration::from_millis(3 * (2 * 256 + 64))
    );
    assert_eq!(
        unreachable_after(|id| vec![client::set_connect_deadline(
            id,
            Some(Duration::from_micros(700_001))
        )]),
        Duration::from_millis(701),
        "rounded up"
    );
    assert_eq!(
        unreachable_after(|id| vec![
            client::set_connect_deadline(id, Some(Duration::ZERO)),
            client::set_connect_deadline(id, None),
            client::set_max_cm_retries(id, 0),
        ]),
        Duration::from_millis(2 * 256 + 4096),
        "without a deadline again"
    );
}

#[test]
fn the_rnr_timer_of_an_identifier_is_in_its_recipe() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    w.listener(1, passive, 100);
    let (id, child) = w.established(active, passive);
    w.ok(
        0,
        active,
        &client::set_min_rnr_timer(id, RnrTimer::truncate(3)),
    );
    assert_eq!(
        w.ok(0, active, &client::init_qp_attr(id, 2)).min_rnr_timer,
        3
    );
    assert_eq!(
        w.ok(1, passive, &client::init_qp_attr(child, 2))
            .min_rnr_timer,
        12
    );
}
