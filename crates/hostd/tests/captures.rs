//! Captures in pcapng: of a whole host, of one program, and their ends. On the real port, in a namespace of their own.

mod support;

use oarlock_hostd::{Error, Host, Port};
use oarlock_port::fdpass;
use oarlock_port::pcap::{Direction, Reader};
use oarlock_ucm::proto::{CaptureScope, RefusalCode, Reply, Request};
use oarlock_wire::{AddressVector, Gid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use support::namespace::in_own_namespace;
use support::*;

fn new_file() -> (tempfile::NamedTempFile, File) {
    let named = tempfile::NamedTempFile::new().unwrap();
    let file = named.reopen().unwrap();
    (named, file)
}

/// Packets by interface, and of those how many were received.
fn packets(file: &tempfile::NamedTempFile) -> BTreeMap<usize, (usize, usize)> {
    let mut reader = Reader::new(File::open(file.path()).unwrap()).unwrap();
    let mut all = BTreeMap::new();
    while let Some(record) = reader.next_record().unwrap() {
        let (sent, received) = all.entry(record.interface).or_insert((0, 0));
        match record.direction {
            Direction::Sent => *sent += 1,
            _ => *received += 1,
        }
    }
    all
}

fn interfaces(file: &tempfile::NamedTempFile) -> usize {
    let mut reader = Reader::new(File::open(file.path()).unwrap()).unwrap();
    while reader.next_record().unwrap().is_some() {}
    let mine = format!("({})", std::process::id());
    let names = reader.interfaces().iter().map(|of| &of.name);
    assert!(names.clone().all(|name| name.ends_with(&mine)));
    assert!(names.clone().next().unwrap().starts_with("host service ("));
    names.count()
}

fn send(from: &Port, to: &Port) {
    let gid = Gid::from_ip("127.0.0.1".parse().unwrap());
    let packet = [4, 0, 0xFF, 0xFF, 0, to.slot(), 0, 1, 0, 0, 0, 0, 1, 2, 3, 4];
    from.send(&AddressVector::new(gid, gid), &packet).unwrap();
}

/// Reads all of a port's packets, of which there are so many.
fn receive(port: &Port, count: usize) {
    let mut batch = oarlock_port::Batch::default();
    let mut received = 0;
    until("all packets", || {
        received += port.recv(&mut batch).unwrap();
        received == count
    });
}

fn is_readable(fd: impl AsFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)) == Ok(1)
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> (RefusalCode, String) {
    match result.unwrap_err() {
        Error::Refused(refusal) => (refusal.code, refusal.sentence),
        error => panic!("{error}"),
    }
}

/// One request and its answer.
fn exchange(socket: &OwnedFd, request: &Request) -> Reply {
    fdpass::send(socket, &request.encode(5), &[], true).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let received = fdpass::receive(socket, &mut buffer, true).unwrap();
    Reply::decode(&buffer[..received.len]).unwrap().1
}

/// A program that is there already hears of it, one that comes later begins with it, and both stop at its end.
#[test]
fn a_host_capture_holds_every_program_from_its_first_packet_to_the_end() {
    in_own_namespace(
        "a_host_capture_holds_every_program_from_its_first_packet_to_the_end",
        || {
            let host = Host::serve().unwrap();
            let (early, late, tracer) = (
                Host::join().unwrap(),
                Host::join().unwrap(),
                Host::join().unwrap(),
            );
            let first = early.take_slot().unwrap();
            let (named, file) = new_file();
            let capture = tracer.capture_host(&file).unwrap();
            assert_eq!((capture.state().programs, capture.state().missed), (1, 0));
            // As the engine of a device does.
            let feed = early.changes_fd().unwrap().unwrap();
            until("the news", || is_readable(&feed));
            assert_eq!(early.take_changes(), []);
            let second = late.take_slot().unwrap();
            for _ in 0..3 {
                send(&first, &second);
            }
            send(&second, &first);
            receive(&second, 3);
            receive(&first, 1);
            // The service is the first interface, and each packet stands there once, as sent.
            assert_eq!(packets(&named), BTreeMap::from([(1, (3, 0)), (2, (1, 0))]));
            assert_eq!(interfaces(&named), 3);
            // Datagrams of the service: a resolution of the loopback address needs none, a connection does.
            let (active, passive) = (Channel::new(&early), Channel::new(&late));
            let (_, to) = passive.listen(1, "127.0.0.1:0");
            establish(&active, &passive, to, 0x20_0011);
            let with_service = packets(&named);
            assert_eq!(with_service[&0].0, 3, "REQ, REP and RTU");
            let state = capture.end().unwrap();
            assert_eq!((state.programs, state.failure), (2, None));
            assert!(!is_readable(&capture), "programs have not heard of it");
            let feed = late.changes_fd().unwrap().unwrap();
            until("the end, early", || {
                let _ = early.take_changes();
                let _ = late.take_changes();
                is_readable(&capture)
            });
            drop(feed);
            send(&first, &second);
            assert_eq!(packets(&named), with_service);
            let (code, sentence) = refused(capture.end());
            assert_eq!(code, RefusalCode::LIMIT);
            assert_eq!(sentence, "this program does not trace the host");
            host.close();
        },
    );
}

#[test]
fn one_program_traces_a_host_at_a_time_and_a_dead_one_is_not_in_the_way() {
    in_own_namespace(
        "one_program_traces_a_host_at_a_time_and_a_dead_one_is_not_in_the_way",
        || {
            let host = Host::serve().unwrap();
            let (one, other) = (Host::join().unwrap(), Host::join().unwrap());
            let port = other.take_slot().unwrap();
            let (_, file) = new_file();
            let (second_named, second_file) = new_file();
            let capture = one.capture_host(&file).unwrap();
            let (code, sentence) = refused(other.capture_host(&second_file));
            assert_eq!(code, RefusalCode::LIMIT);
            let pid = std::process::id();
            assert!(
                sentence.starts_with(&format!("process {pid} ("))
                    && sentence.contains(&format!("`kill -INT {pid}`")),
                "{sentence}"
            );
            assert_eq!(second_named.as_file().metadata().unwrap().len(), 0);
            // Nor may a program's own go to the same file.
            let (_, sentence) = refused(other.capture(&file));
            assert!(sentence.contains("choose another"), "{sentence}");
            // It dies, as far as the service can see.
            one.close();
            until("the end", || {
                let _ = other.take_changes();
                is_readable(&capture)
            });
            let capture = other.capture_host(&second_file).unwrap();
            until("the beginning", || {
                let _ = other.take_changes();
                send(&port, &port);
                packets(&second_named).contains_key(&1)
            });
            capture.end().unwrap();
            host.close();
        },
    );
}

/// Two programs, one file, an interface each: what passes between them stands there as sent and as received.
#[test]
fn programs_that_name_one_file_share_it() {
    in_own_namespace("programs_that_name_one_file_share_it", || {
        let host = Host::serve().unwrap();
        let (one, two) = (Host::join().unwrap(), Host::join().unwrap());
        let (named, file) = new_file();
        // Whether the slot or the capture comes first.
        let first = one.take_slot().unwrap();
        one.capture(&file).unwrap();
        two.capture(named.reopen().unwrap()).unwrap();
        let second = two.take_slot().unwrap();
        send(&first, &second);
        receive(&second, 1);
        assert_eq!(packets(&named), BTreeMap::from([(1, (1, 0)), (2, (0, 1))]));
        assert_eq!(interfaces(&named), 3);
        // A third program's capture of the host does not touch it.
        let tracer = Host::join().unwrap();
        let (of_host, file) = new_file();
        let capture = tracer.capture_host(&file).unwrap();
        until("news for both", || {
            let _ = one.take_changes();
            let _ = two.take_changes();
            send(&first, &second);
            packets(&of_host).contains_key(&1)
        });
        capture.end().unwrap();
        let before = packets(&named)[&1];
        let _ = one.take_changes();
        send(&first, &second);
        assert_eq!(packets(&named)[&1].0, before.0 + 1);
        // With its programs a file is free for others.
        drop((first, second));
        one.close();
        two.close();
        until("the file is let go", || {
            tracer.capture_host(named.reopen().unwrap()).is_ok()
        });
        host.close();
    });
}

#[test]
fn what_is_no_file_for_a_capture_is_refused_with_the_reason() {
    let host = Host::private().unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (_named, text) = new_file();
    std::io::Write::write_all(&mut &text, b"a text").unwrap();
    let cases = [
        (write.as_fd(), "regular file"),
        (text.as_fd(), "neither empty nor a pcapng file"),
    ];
    for (fd, words) in cases {
        for (code, sentence) in [refused(host.capture_host(fd)), refused(host.capture(fd))] {
            assert_eq!(code, RefusalCode::DESCRIPTOR);
            assert!(sentence.contains(words), "{sentence}");
        }
    }
    drop(read);
    // Many at a time are one program's mistake.
    let files: Vec<_> = (0..9).map(|_| new_file()).collect();
    for (_, file) in &files[..8] {
        host.capture(file).unwrap();
    }
    let (code, sentence) = refused(host.capture(&files[8].1));
    assert_eq!(code, RefusalCode::LIMIT);
    assert!(sentence.contains("8 traces"), "{sentence}");
}

/// The first packet that a program cannot write ends the capture for all, and says whose it was.
#[test]
fn a_failure_of_one_program_ends_the_capture_of_all() {
    in_own_namespace("a_failure_of_one_program_ends_the_capture_of_all", || {
        let host = Host::serve().unwrap();
        let (one, tracer) = (Host::join().unwrap(), Host::join().unwrap());
        let _port = one.take_slot().unwrap();
        let (_named, file) = new_file();
        let capture = tracer.capture_host(&file).unwrap();
        // A client that was told of it, by hand: what its library posts when a write fails.
        let client = program::raw();
        let hello = Request::Hello {
            pid: std::process::id(),
            name: "by hand".into(),
        };
        assert!(matches!(exchange(&client, &hello), Reply::Hello(_)));
        let message = Request::CaptureFailed {
            scope: CaptureScope::Host,
            errno: 28,
        };
        let reply = exchange(&client, &message);
        assert_eq!(reply, Reply::Done);
        // One that was not told has no say.
        let _ = one.take_changes();
        assert!(!is_readable(&capture));
        let join = exchange(&client, &Request::JoinCapture);
        assert!(matches!(join, Reply::Capture(news) if news.interface.is_some()));
        exchange(&client, &message);
        until("the end", || {
            let _ = one.take_changes();
            is_readable(&capture)
        });
        let failure = capture.end().unwrap().failure.unwrap();
        assert_eq!((failure.pid, failure.errno), (std::process::id(), 28));
        host.close();
    });
}
