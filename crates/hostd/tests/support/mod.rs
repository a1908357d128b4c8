//! A program's side of the rdma_ucm ABI, as thin as tests need it.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod namespace;
pub(crate) mod program;

use oarlock_hostd::{Call, ClientChannel, Host, Reply, Wake};
use oarlock_ucm::client::{self, Event, IdNumber, Param};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

pub(crate) const TCP: u16 = 0x0106;
pub(crate) const RC: u8 = 2;
pub(crate) const ADDR_RESOLVED: u32 = 0;
pub(crate) const ROUTE_RESOLVED: u32 = 2;
pub(crate) const CONNECT_REQUEST: u32 = 4;
pub(crate) const CONNECT_RESPONSE: u32 = 5;
pub(crate) const REJECTED: u32 = 8;
pub(crate) const ESTABLISHED: u32 = 9;
pub(crate) const DISCONNECTED: u32 = 10;
pub(crate) const TIMEWAIT_EXIT: u32 = 15;
pub(crate) const EAGAIN: i32 = 11;

/// An event channel with typed calls.
pub(crate) struct Channel {
    pub(crate) channel: ClientChannel,
}

impl Channel {
    pub(crate) fn new(host: &Host) -> Self {
        Self {
            channel: host.open_channel().unwrap(),
        }
    }

    pub(crate) fn try_call<A: client::Answer>(&self, call: client::Call<A>) -> Result<A, Reply> {
        let item = Call {
            channel: self.channel.token(),
            request: call.request().to_vec(),
            inline: call.inline().to_vec(),
            id_from: None,
        };
        let reply = self.channel.host().call(&[item]).unwrap().remove(0);
        match reply.errno {
            0 => Ok(call.decode(&reply.response).unwrap()),
            _ => Err(reply),
        }
    }

    pub(crate) fn call<A: client::Answer>(&self, call: client::Call<A>) -> A {
        self.try_call(call)
            .unwrap_or_else(|reply| panic!("{reply:?}"))
    }

    /// The next event, in the way a library takes it: a byte, then the event.
    pub(crate) fn event(&self) -> Event {
        for _ in 0..100 {
            assert!(
                is_readable_within(&self.channel, PATIENCE),
                "no event within {PATIENCE} s"
            );
            match self.channel.take_wake(1).unwrap() {
                Wake::Events(1) => {}
                Wake::Nothing => continue,
                other => panic!("{other:?}"),
            }
            match self.try_call(client::get_event()) {
                Ok(event) => return event,
                Err(reply) if reply.errno == EAGAIN => {}
                Err(reply) => panic!("{reply:?}"),
            }
        }
        panic!("a hundred bytes without an event");
    }

    pub(crate) fn expect(&self, kind: u32) -> Event {
        let event = self.event();
        assert_eq!((event.kind, event.status), (kind, 0), "{event:?}");
        event
    }

    pub(crate) fn create(&self, uid: u64) -> IdNumber {
        self.call(client::create_id(uid, TCP, RC))
    }

    /// Binds and listens; gives the address with its port.
    pub(crate) fn listen(&self, uid: u64, address: &str) -> (IdNumber, SocketAddr) {
        let id = self.create(uid);
        self.call(client::bind(id, address.parse().unwrap()));
        self.call(client::listen(id, 0));
        (id, self.call(client::query_addr(id)).local.unwrap())
    }

    /// From nothing to ROUTE_RESOLVED.
    pub(crate) fn resolve(&self, uid: u64, to: SocketAddr) -> IdNumber {
        let id = self.create(uid);
        self.call(client::resolve_addr(id, None, to, 2000));
        assert_eq!(self.expect(ADDR_RESOLVED).uid, uid);
        self.call(client::resolve_route(id, 2000));
        assert_eq!(self.expect(ROUTE_RESOLVED).uid, uid);
        id
    }

    pub(crate) fn connect(&self, id: IdNumber, qp_num: u32, data: &[u8]) {
        let param = Param {
            private_data: data.to_vec(),
            qp_num,
            retry_count: 7,
            rnr_retry_count: 7,
            ..Param::default()
        };
        self.call(client::connect(id, &param).unwrap());
    }

    pub(crate) fn accept(&self, id: IdNumber, uid: u64, qp_num: u32, data: &[u8]) {
        let param = Param {
            private_data: data.to_vec(),
            qp_num,
            rnr_retry_count: 7,
            ..Param::default()
        };
        self.call(client::accept(id, uid, &param).unwrap());
    }
}

/// A connection between two channels, of one host or two; the ids of the active and of the passive side.
pub(crate) fn establish(
    active: &Channel,
    passive: &Channel,
    to: SocketAddr,
    qp_num: u32,
) -> (IdNumber, IdNumber) {
    let id = active.resolve(u64::from(qp_num), to);
    active.connect(id, qp_num, b"hello");
    let request = passive.expect(CONNECT_REQUEST);
    assert_eq!(
        request.param.private_data.as_deref().map(|data| &data[..5]),
        Some(&b"hello"[..])
    );
    assert_eq!(request.param.qp_num, qp_num);
    passive.accept(request.id, u64::from(qp_num) + 1, qp_num + 1, b"welcome");
    let response = active.expect(CONNECT_RESPONSE);
    assert_eq!(
        response
            .param
            .private_data
            .as_deref()
            .map(|data| &data[..7]),
        Some(&b"welcome"[..])
    );
    assert_eq!(response.param.qp_num, qp_num + 1);
    active.call(client::establish(id));
    let established = passive.expect(ESTABLISHED);
    assert_eq!(established.id, request.id);
    (id, request.id)
}

/// How many seconds something that comes may take on a busy machine.
pub(crate) const PATIENCE: i64 = 300;

pub(crate) fn is_readable_within(fd: impl AsFd, seconds: i64) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        }),
    )
    .unwrap()
        > 0
}

pub(crate) fn counter(host: &Host, name: &str) -> u64 {
    let state = host.ps().unwrap();
    let found = state.host.counters.iter().find(|(n, _)| n == name);
    found
        .unwrap_or_else(|| panic!("no counter {name} in {:?}", state.host.counters))
        .1
}

/// Looks until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(PATIENCE.unsigned_abs());
    while !is_so() {
        assert!(Instant::now() < end, "not within {PATIENCE} s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
