//! Against a service of version 1.1, played by hand.

use super::*;
use crate::Injection;
use oarlock_port::fdpass;
use oarlock_ucm::proto::{Header, NO_ANSWER, Refusal, RefusalCode};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Answers as a service of version 1.1 does; gives the kinds of what it was asked and did not know.
fn serve_1_1(socket: &OwnedFd) -> Vec<u16> {
    let mut unknown = Vec::new();
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        let message = match fdpass::receive(socket, &mut buffer, true) {
            Ok(message) if message.len > 0 => message,
            _ => return unknown,
        };
        let (header, body) = Header::read(&buffer[..message.len]).unwrap();
        let (_lifeline, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let (reply, fds) = match Request::decode(&header, body).unwrap() {
            Request::Hello { .. } => {
                let hello = Hello {
                    pid: 1,
                    uid: 0,
                    client: 1,
                };
                (Reply::Hello(hello), vec![theirs.as_fd()])
            }
            _ => {
                unknown.push(header.kind);
                let refusal = Refusal {
                    code: RefusalCode::UNKNOWN_REQUEST,
                    sentence: "this service, version 1.1, does not know the request".to_owned(),
                };
                (Reply::Refused(refusal), Vec::new())
            }
        };
        if header.sequence != NO_ANSWER {
            let mut answer = reply.encode(header.sequence);
            answer[5] = 1;
            fdpass::send(socket, &answer, &fds, true).unwrap();
        }
    }
}

/// What an older service does not know is not there, or an error that says so; nothing is taken for done.
#[test]
fn an_older_service_has_no_feed_no_faults_and_no_counters() {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let service = std::thread::spawn(move || serve_1_1(&theirs));
    let host = Host::over(ours, None, None).unwrap();
    assert!(host.changes_fd().unwrap().is_none());
    assert!(host.take_changes().is_empty());
    host.share_statistics();
    host.publish_statistics(&[]);
    let unknown = |error: Error| matches!(&error, Error::Refused(refusal) if refusal.code == RefusalCode::UNKNOWN_REQUEST);
    assert!(unknown(host.statistics().unwrap_err()));
    // A program's own faults need no service.
    let own = Injection::Rules("drop:opcode=ack".parse().unwrap());
    assert!(host.inject(own, None).unwrap().is_some());
    let managed = Injection::Rules("drop:opcode=cm".parse().unwrap());
    assert!(unknown(host.inject(managed, None).unwrap_err()));
    host.close();
    assert_eq!(service.join().unwrap(), [11, 14, 15, 12]);
}
