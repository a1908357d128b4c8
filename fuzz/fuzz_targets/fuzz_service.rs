//! What a program sends to the host service: any bytes are answered or refused, never a panic; what decodes reads back the
//! same; and any list of the 25 commands leaves nothing that cannot be destroyed.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use oarlock_cm::Seed;
use oarlock_cma::{Config, Device, Errno, Limits, LookupError, MembershipAction, Route};
use oarlock_ucm::abi::COMMANDS;
use oarlock_ucm::client::{self, IdNumber};
use oarlock_ucm::proto::{Header, Reply, Request, WriteBatch, WriteItem};
use oarlock_ucm::{FileId, Owner, Ucm};
use oarlock_wire::{Guid, Time};

const OWNER: Owner = Owner(1);

fuzz_target!(|data: &[u8]| {
    messages(data);
    commands(data);
});

fn messages(data: &[u8]) {
    let _ = Reply::decode(data);
    if let Ok((header, body)) = Header::read(data)
        && header.check().is_ok()
        && let Ok(request) = Request::decode(&header, body)
    {
        let again = request.encode(header.sequence);
        let (header, body) = Header::read(&again).expect("encoded");
        assert_eq!(Request::decode(&header, body).expect("encoded"), request);
    }
}

/// Bytes as commands on two files of a host that talks to itself: a command's number, how much of its structure follows,
/// and the structure; the rest is zero. Four bytes beside it are the value of an option, or name the old file.
fn commands(data: &[u8]) {
    let mut host = Host::new();
    let files = [host.open(), host.open()];
    let mut rest = data;
    for _ in 0..64 {
        let [number, len, flags, more @ ..] = rest else {
            break;
        };
        let info = &COMMANDS[usize::from(*number) % COMMANDS.len()];
        let (given, more) = more.split_at(usize::from(*len).min(more.len()));
        rest = more;
        let mut body = given.to_vec();
        body.resize(info.request.max(body.len()), 0);
        let mut request = info.command.0.to_ne_bytes().to_vec();
        request.extend_from_slice(&u16::try_from(body.len()).expect("short").to_ne_bytes());
        request.extend_from_slice(&(u16::from(flags >> 4) * 32).to_ne_bytes());
        request.extend_from_slice(&body);
        let file = files[usize::from(flags & 1)];
        let inline = match flags & 0b1110 {
            0 => files[0].0.to_le_bytes().to_vec(),
            2 => files[1].0.to_le_bytes().to_vec(),
            4 => vec![*len],
            6 => i32::from(*len).to_ne_bytes().to_vec(),
            8 => [0x2B_u32.to_ne_bytes().to_vec(), vec![0; 4], given.to_vec()].concat(),
            _ => given.to_vec(),
        };
        host.write(file, request, inline);
        if flags & 0b1100 == 0b1100 {
            host.time_passes();
        }
    }
    host.destroy_everything();
}

struct Host {
    now: Time,
    ucm: Ucm,
}

impl Host {
    fn new() -> Self {
        let mut ucm = Ucm::new(Config::default(), Seed([3; 32]));
        let device = Device {
            index: 0,
            name: "dev0".into(),
            guid: Guid(1),
            port_num: 1,
            ifindex: 2,
            is_loopback: false,
            netdev_mtu: 1500,
            addresses: vec![IpAddr::from([0, 1, 0, 1]), IpAddr::from([10, 0, 0, 1])],
            limits: Limits::default(),
        };
        ucm.set_devices(Time::ZERO, vec![device]);
        Self {
            now: Time::ZERO,
            ucm,
        }
    }

    fn open(&mut self) -> FileId {
        self.ucm.open(OWNER).expect("room for a file")
    }

    fn write(&mut self, file: FileId, request: Vec<u8>, inline: Vec<u8>) {
        let item = WriteItem {
            channel: file.0,
            request,
            inline,
            id_from: None,
        };
        let batch = WriteBatch {
            items: vec![item],
            ..WriteBatch::default()
        };
        let replies = self.ucm.write_batch(self.now, OWNER, batch);
        let [reply] = &replies[..] else {
            panic!("one answer for each request")
        };
        assert_eq!(reply.errno == 0, reply.sentence.is_empty(), "{reply:?}");
        self.settle();
    }

    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "it never comes to rest");
            if let Some(lookup) = self.ucm.poll_lookup() {
                let answer = match lookup.destination {
                    IpAddr::V4(destination) => Ok(Route {
                        source: lookup.source.unwrap_or([10, 0, 0, 1].into()),
                        ifindex: 2,
                        gateway: None,
                        hop_limit: 64,
                        mtu: 1500,
                        is_local: destination.octets()[0] == 10,
                    }),
                    IpAddr::V6(_) => Err(LookupError::Unreachable(Errno(101))),
                };
                self.ucm.handle_lookup(self.now, lookup.token, answer);
            } else if let Some(membership) = self.ucm.poll_membership() {
                if membership.action == MembershipAction::Join {
                    let outcome = match membership.group {
                        IpAddr::V4(group) if group.octets()[3] == 9 => Err(Errno(105)),
                        _ => Ok(()),
                    };
                    self.ucm
                        .handle_membership(self.now, membership.token, outcome);
                }
            } else if let Some(transmit) = self.ucm.poll_transmit() {
                self.ucm
                    .handle_mad(self.now, &transmit.av.reversed(), &transmit.mad);
            } else {
                break;
            }
        }
        while self.ucm.poll_wake().is_some() {}
    }

    fn time_passes(&mut self) {
        if let Some(next) = self.ucm.poll_timeout() {
            self.now = self.now.max(next);
            self.ucm.handle_timeout(self.now);
            self.settle();
        }
    }

    /// Whatever was done: each identifier can be destroyed on the file that it is on, and then nothing is left.
    fn destroy_everything(&mut self) {
        let ids: Vec<_> = self.ucm.id_infos(None, |_| 0).collect();
        for info in ids {
            let (request, inline) = client::destroy_id(IdNumber(info.id)).into_parts();
            let written = self.ucm.write(
                self.now,
                FileId(info.channel),
                &request,
                &inline,
                &mut Vec::new(),
            );
            written.expect("an identifier can be destroyed");
            self.settle();
        }
        assert_eq!(
            (self.ucm.ids(), self.ucm.joins(), self.ucm.cma().len()),
            (0, 0, 0)
        );
        assert!(self.ucm.ports().is_empty());
        for _ in 0..10_000 {
            if self.ucm.poll_timeout().is_none() {
                break;
            }
            self.time_passes();
        }
        assert_eq!(self.ucm.cma().connections(), 0, "TIMEWAIT ends");
    }
}
