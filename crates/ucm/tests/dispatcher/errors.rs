//! What is checked for every command alike, in the kernel's order.

use zerocopy::IntoBytes;

use oarlock_ucm::FileId;
use oarlock_ucm::abi::{self, COMMANDS, Command};
use oarlock_ucm::client::{self, IdNumber};

use crate::errno::{EAGAIN, EBADF, EFAULT, EINVAL, ENOENT, ENOSPC, ENOSYS, ENXIO};
use crate::world::{PORT, World, address, device, kind, param};

/// A whole request of a command with zeros in its structure.
pub(crate) fn zeros(command: Command, out_len: u16) -> Vec<u8> {
    let info = command.info().expect("known");
    let header = abi::Header {
        cmd: command.0,
        in_len: info.request as u16,
        out_len,
    };
    [header.as_bytes(), &vec![0; info.request]].concat()
}

fn with_id(mut request: Vec<u8>, command: Command, id: u32) -> Vec<u8> {
    let at = 8 + command.id_offset().expect("it means an identifier");
    request[at..at + 4].copy_from_slice(&id.to_ne_bytes());
    request
}

/// A request that passes every check before the identifier is looked up.
pub(crate) fn plausible(command: Command, id: u32) -> Vec<u8> {
    let id = IdNumber(id);
    let addr = (address(0), PORT).into();
    match command {
        Command::BIND_IP => {
            let body = abi::BindIp {
                response: 0,
                addr: abi::SockaddrIn6::from(addr),
                id: id.0,
            };
            raw(command, &body)
        }
        Command::RESOLVE_IP => {
            let dst_addr = abi::SockaddrIn6::from(addr);
            raw(
                command,
                &abi::ResolveIp {
                    src_addr: abi::SockaddrIn6::NONE,
                    dst_addr,
                    id: id.0,
                    timeout_ms: 1,
                },
            )
        }
        Command::BIND => client::bind(id, addr).into_parts().0,
        Command::RESOLVE_ADDR => client::resolve_addr(id, None, addr, 1).into_parts().0,
        Command::CONNECT => {
            client::connect(id, &param(1))
                .expect("short")
                .into_parts()
                .0
        }
        Command::JOIN_IP_MCAST => {
            let body = abi::JoinIpMcast {
                response: 0,
                uid: 0,
                addr: abi::SockaddrIn6::from(group()),
                id: id.0,
            };
            raw(command, &body)
        }
        Command::JOIN_MCAST => client::join_multicast(id, 0, group(), 0).into_parts().0,
        Command::WRITE_CM_EVENT => client::write_cm_event(id, 18, 0, 0).into_parts().0,
        Command::SET_OPTION => client::set_tos(id, 1).into_parts().0,
        other => with_id(zeros(other, u16::MAX), other, id.0),
    }
}

fn group() -> std::net::SocketAddr {
    "224.1.1.1:0".parse().expect("an address")
}

pub(crate) fn raw<T: IntoBytes + zerocopy::Immutable>(command: Command, body: &T) -> Vec<u8> {
    let header = abi::Header {
        cmd: command.0,
        in_len: size_of::<T>() as u16,
        out_len: 336,
    };
    [header.as_bytes(), body.as_bytes()].concat()
}

fn implemented() -> impl Iterator<Item = Command> {
    let commands = COMMANDS.iter().map(|info| info.command);
    commands.filter(|command| *command != Command::GET_OPTION)
}

fn inline_of(command: Command, old: FileId) -> Vec<u8> {
    match command {
        Command::MIGRATE_ID => old.0.to_le_bytes().to_vec(),
        Command::SET_OPTION => vec![1],
        _ => vec![],
    }
}

/// What `write` checks before any command, in its order.
#[test]
fn the_checks_before_any_command() {
    let mut w = World::new(1);
    let file = w.open(0);
    let header = |cmd: u32, in_len: u16| {
        abi::Header {
            cmd,
            in_len,
            out_len: 336,
        }
        .as_bytes()
        .to_vec()
    };
    let rows: [(&str, Vec<u8>, i32); 9] = [
        ("nothing", vec![], EINVAL),
        ("seven bytes", vec![0; 7], EINVAL),
        ("a number beyond the table", header(25, 0), EINVAL),
        ("the largest number", header(u32::MAX, 0), EINVAL),
        (
            "in larger than what follows",
            header(Command::LISTEN.0, 1),
            EINVAL,
        ),
        (
            "in larger than what follows, and not implemented",
            header(Command::GET_OPTION.0, 1),
            EINVAL,
        ),
        ("not implemented", header(Command::GET_OPTION.0, 0), ENOSYS),
        (
            "a structure that is not there",
            header(Command::LISTEN.0, 0),
            EFAULT,
        ),
        (
            "an empty channel",
            header(Command::GET_EVENT.0, 0)
                .into_iter()
                .chain([0; 8])
                .collect(),
            EAGAIN,
        ),
    ];
    for (what, request, errno) in rows {
        assert_eq!(w.errno(0, file, &request, &[]), errno, "{what}");
    }
    let closed = w.open(0);
    let now = w.now;
    w.hosts[0].close(now, closed);
    assert_eq!(w.errno(0, closed, &[], &[]), EBADF);
}

#[test]
fn the_command_that_no_kernel_has_answers_enosys_by_name() {
    let mut w = World::new(1);
    let file = w.open(0);
    let failure = w.hosts[0]
        .write(
            w.now,
            file,
            &zeros(Command::GET_OPTION, 336),
            &[],
            &mut Vec::new(),
        )
        .expect_err("no kernel has it");
    assert_eq!(failure.errno().0, ENOSYS);
    assert_eq!(
        failure.to_string(),
        "GET_OPTION is not implemented, as in every kernel"
    );
    assert_eq!(implemented().count(), 24);
}

/// Every command, what all of them check: room for the answer, the structure, the identifier, its channel, its device.
#[test]
fn the_checks_that_commands_share() {
    let mut w = World::new(1);
    let (file, other) = (w.open(0), w.open(0));
    let id = w.create(0, file, 1).0;
    for command in implemented() {
        let info = command.info().expect("known");
        if command.id_offset().is_none() {
            continue;
        }
        let inline = inline_of(command, file);
        // Where the request is written, and where the identifier would have to be.
        let (right, wrong) = match command {
            Command::MIGRATE_ID => (other, inline_of(command, other)),
            _ => (file, inline.clone()),
        };
        let strange_file = if command == Command::MIGRATE_ID {
            right
        } else {
            other
        };
        let unknown = w.errno(0, right, &plausible(command, 99), &inline);
        assert_eq!(unknown, ENOENT, "{command}: unknown identifier");
        let elsewhere = w.errno(0, strange_file, &plausible(command, id), &wrong);
        assert_eq!(
            elsewhere, EINVAL,
            "{command}: an identifier of another channel"
        );
        if info.needs_device {
            let failure = w.hosts[0].write(
                w.now,
                file,
                &plausible(command, id),
                &inline,
                &mut Vec::new(),
            );
            let failure = failure.expect_err("no device");
            assert_eq!(failure.errno().0, EINVAL, "{command}");
            assert!(
                failure
                    .to_string()
                    .contains("state IDLE and has no device yet"),
                "{failure}"
            );
        }
        // The structure cut short: after the room for the answer, before the identifier.
        let mut short = plausible(command, 99);
        short.truncate(short.len() - 1);
        let in_len = (short.len() - 8) as u16;
        short[4..6].copy_from_slice(&in_len.to_ne_bytes());
        let expected = if info.request_min < info.request {
            ENOENT
        } else {
            EFAULT
        };
        assert_eq!(
            w.errno(0, right, &short, &inline),
            expected,
            "{command}: cut short"
        );
    }
}

/// Room for the answer is checked first of all, even before the structure is looked at. MIGRATE_ID alone does not ask.
#[test]
fn no_room_for_the_answer_is_enospc() {
    let mut w = World::new(1);
    let file = w.open(0);
    let id = w.create(0, file, 1).0;
    let rows = [
        (Command::CREATE_ID, 4),
        (Command::DESTROY_ID, 4),
        (Command::QUERY_ROUTE, 200),
        (Command::INIT_QP_ATTR, 144),
        (Command::GET_EVENT, 324),
        (Command::JOIN_IP_MCAST, 4),
        (Command::JOIN_MCAST, 4),
        (Command::LEAVE_MCAST, 4),
    ];
    for (command, least) in rows {
        let header = abi::Header {
            cmd: command.0,
            in_len: 0,
            out_len: least - 1,
        };
        assert_eq!(
            w.errno(0, file, header.as_bytes(), &[]),
            ENOSPC,
            "{command}"
        );
        let header = abi::Header {
            out_len: least,
            ..header
        };
        assert_eq!(
            w.errno(0, file, header.as_bytes(), &[]),
            EFAULT,
            "{command}"
        );
    }
    // QUERY looks at its option, and so at the identifier, first.
    for (option, least) in [(0_u32, 272_u16), (1, 8), (2, 272)] {
        let query = |id, out_len| {
            let body = abi::Query {
                response: 0,
                id,
                option,
            };
            let mut request = raw(Command::QUERY, &body);
            request[6..8].copy_from_slice(&u16::to_ne_bytes(out_len));
            request
        };
        assert_eq!(w.errno(0, file, &query(99, least - 1), &[]), ENOENT);
        assert_eq!(
            w.errno(0, file, &query(id, least - 1), &[]),
            ENOSPC,
            "option {option}"
        );
        let mut answer = Vec::new();
        w.hosts[0]
            .write(w.now, file, &query(id, least), &[], &mut answer)
            .expect("just enough room");
        assert_eq!(
            answer.len(),
            usize::from(least),
            "an older caller gets what it knows"
        );
    }
    let query_route = with_id(zeros(Command::QUERY_ROUTE, 200), Command::QUERY_ROUTE, id);
    let mut answer = Vec::new();
    w.hosts[0]
        .write(w.now, file, &query_route, &[], &mut answer)
        .expect("just enough room");
    assert_eq!(answer.len(), 200);
}

#[test]
fn an_older_caller_gets_an_event_without_its_new_fields() {
    let mut w = World::new(2);
    let file = w.open(0);
    let id = w.create(0, file, 1);
    w.ok(
        0,
        file,
        &client::resolve_addr(id, None, (address(1), PORT).into(), 1000),
    );
    let mut answer = Vec::new();
    w.hosts[0]
        .write(
            w.now,
            file,
            &zeros(Command::GET_EVENT, 324),
            &[],
            &mut answer,
        )
        .expect("room for the old event");
    assert_eq!(answer.len(), 324);
}

/// A device that went away: every call but DESTROY_ID answers ENXIO.
#[test]
fn after_the_device_has_gone_only_destroying_is_left() {
    let mut w = World::new(2);
    let (file, other) = (w.open(0), w.open(0));
    let id = w.routed(0, file, 1, 1);
    let now = w.now;
    w.hosts[0].set_devices(now, vec![]);
    w.settle();
    assert_eq!(w.expect(0, file, kind::DEVICE_REMOVAL).id, id);
    for command in implemented()
        .filter(|command| command.id_offset().is_some() && *command != Command::DESTROY_ID)
    {
        let on = if command == Command::MIGRATE_ID {
            other
        } else {
            file
        };
        let errno = w.errno(0, on, &plausible(command, id.0), &inline_of(command, file));
        // REJECT and INIT_QP_ATTR look at their values first, which are valid here.
        assert_eq!(errno, ENXIO, "{command}");
    }
    w.hosts[0].set_devices(now, vec![device(0)]);
    assert_eq!(
        w.errno(0, file, &plausible(Command::LISTEN, id.0), &[]),
        ENXIO,
        "it does not come back"
    );
    assert_eq!(w.ok(0, file, &client::destroy_id(id)).0, 3);
    assert_eq!(
        w.errno(0, file, client::destroy_id(id).request(), &[]),
        ENOENT
    );
}
