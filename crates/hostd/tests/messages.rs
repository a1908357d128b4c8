//! What programs send to a service, good and bad.

mod support;

use oarlock_hostd::Host;
use oarlock_port::fdpass;
use oarlock_ucm::proto::{RefusalCode, Reply, Request};
use std::os::fd::{AsFd, OwnedFd};
use support::namespace::in_own_namespace;
use support::program::{raw, refused};
use support::*;

fn exchange(socket: &OwnedFd, message: &[u8], fds: &[&OwnedFd]) -> Reply {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    fdpass::send(socket, message, &fds, true).unwrap();
    let mut buffer = vec![0; 1 << 18];
    assert!(
        is_readable_within(socket, PATIENCE),
        "no answer to {} bytes",
        message.len()
    );
    let received = fdpass::receive(socket, &mut buffer, true).unwrap();
    assert!(received.len > 0, "the connection was closed");
    Reply::decode(&buffer[..received.len]).unwrap().1
}

#[test]
fn bad_messages_are_refused_and_never_end_the_service_or_the_connection() {
    in_own_namespace(
        "bad_messages_are_refused_and_never_end_the_service_or_the_connection",
        || {
            let host = Host::serve().unwrap();
            let socket = raw();
            let hello = Request::Hello {
                pid: 1,
                name: "test".to_owned(),
            }
            .encode(7);
            assert_eq!(
                refused(&exchange(&socket, &Request::OpenChannel.encode(1), &[])),
                RefusalCode::HELLO_FIRST
            );
            for len in 1..hello.len() {
                assert_eq!(
                    refused(&exchange(&socket, &hello[..len], &[])),
                    RefusalCode::MALFORMED,
                    "cut at {len}"
                );
            }
            assert_eq!(
                refused(&exchange(&socket, &vec![0x5A; 1 << 17], &[])),
                RefusalCode::MALFORMED
            );
            assert_eq!(
                refused(&exchange(&socket, &vec![0x5A; (1 << 17) + 1], &[])),
                RefusalCode::MALFORMED
            );
            let mut other_version = hello.clone();
            other_version[4] += 1;
            assert_eq!(
                refused(&exchange(&socket, &other_version, &[])),
                RefusalCode::VERSION
            );
            let mut unknown = Request::OpenChannel.encode(1);
            unknown[6..8].copy_from_slice(&0x7777u16.to_le_bytes());
            assert_eq!(
                refused(&exchange(&socket, &unknown, &[])),
                RefusalCode::UNKNOWN_REQUEST
            );
            let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
            assert_eq!(
                refused(&exchange(&socket, &hello, &[&null])),
                RefusalCode::DESCRIPTOR
            );
            assert!(matches!(exchange(&socket, &hello, &[]), Reply::Hello(_)));
            let ours = Channel::new(&host);
            let close = Request::CloseChannel {
                token: ours.channel.token(),
            }
            .encode(3);
            assert_eq!(
                refused(&exchange(&socket, &close, &[])),
                RefusalCode::UNKNOWN_CHANNEL
            );
            assert_eq!(
                refused(&exchange(&socket, &Request::Trace.encode(4), &[])),
                RefusalCode::DESCRIPTOR
            );
            assert_eq!(
                refused(&exchange(&socket, &Request::Trace.encode(4), &[&null])),
                RefusalCode::DESCRIPTOR
            );
            assert_eq!(
                refused(&exchange(
                    &socket,
                    &Request::ReturnSlot { slot: 9 }.encode(5),
                    &[]
                )),
                RefusalCode::LIMIT
            );
            // Every bit of a message flipped, one at a time.
            let good = Request::Devices { first: 0 }.encode(9);
            for bit in 0..good.len() * 8 {
                let mut message = good.clone();
                message[bit / 8] ^= 1 << (bit % 8);
                // A flip of the sequence number to 0, which wants no answer, cannot happen: 9 has two bits.
                exchange(&socket, &message, &[]);
            }
            assert!(matches!(exchange(&socket, &good, &[]), Reply::Devices(_)));
            drop(socket);
            ours.create(1);
            assert!(counter(&host, "service_requests_refused") > 40);
        },
    );
}

#[test]
fn a_program_that_does_not_read_its_answers_blocks_nobody() {
    in_own_namespace(
        "a_program_that_does_not_read_its_answers_blocks_nobody",
        || {
            let host = Host::serve().unwrap();
            let socket = raw();
            let hello = Request::Hello {
                pid: 1,
                name: "deaf".to_owned(),
            }
            .encode(7);
            assert!(matches!(exchange(&socket, &hello, &[]), Reply::Hello(_)));
            let devices = Request::Devices { first: 0 }.encode(9);
            let mut sent = 0;
            // Until its own requests find no room: the service has stopped reading them.
            for _ in 0..100_000 {
                match fdpass::send(&socket, &devices, &[], false) {
                    Ok(_) => sent += 1,
                    Err(_) => {
                        host.devices().unwrap();
                        if fdpass::send(&socket, &devices, &[], false).is_err() {
                            break;
                        }
                        sent += 1;
                    }
                }
            }
            assert!(sent > 10 && sent < 100_000, "{sent}");
            host.ps().unwrap();
            // Once it reads again, every request is answered.
            let mut buffer = vec![0; 1 << 17];
            for _ in 0..sent {
                assert!(is_readable_within(&socket, PATIENCE));
                assert!(fdpass::receive(&socket, &mut buffer, true).unwrap().len > 0);
            }
        },
    );
}
