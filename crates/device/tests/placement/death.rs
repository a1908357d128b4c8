//! The sender dies half-way: two processes over UDP 4791.
//!
//! Packets are the only way between two processes so far. A same-host copy by the sender itself does not exist yet: when it
//! does, it has to pass these tests too.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use oarlock_device::{Access, DeviceInfo, Qp, QpInit, Region};
use oarlock_port::{ForwardToken, Port, UdpPort, UdpSlots, netlink};
use oarlock_sim::Rng;
use oarlock_transport::{Counter, QpState, RemoteAddress, SendOp};
use oarlock_wire::{Gid, Mtu, Qpn, RKey};

use crate::chaos::{REMOTE, post};
use crate::pages::{PAGE, Pages};
use crate::support::ends::{Link, steps};
use crate::support::{Side, Source, device, eventually};

const NAME: &str = "death::a_sender_that_dies_half_way_leaves_nothing_behind";
/// Queue pair, address and key of the target, for the sender.
const TARGET: &str = "OARLOCK_TEST_TARGET";
const SAYS: &str = "sender ";
const LOOPBACK: u32 = 1;
const RECEIVER_SLOT: u8 = 4;
const SENDERS: u8 = 4;
const LEN: usize = 64 * PAGE;
const WRITTEN: u8 = 0xA5;
const MARK: u8 = 0x55;

#[test]
fn a_sender_that_dies_half_way_leaves_nothing_behind() {
    if let Ok(target) = std::env::var(TARGET) {
        be_sender(&target);
        return;
    }
    oarlock_sim::in_namespace(&["-Urn"], NAME, || {
        netlink::bring_up(LOOPBACK).expect("loopback up");
        let slots = UdpSlots::open().expect("port 4791");
        let socket = |slot| {
            let socket = slots.lend(slot).expect("options").expect("socket");
            socket.try_clone_to_owned().expect("dup")
        };
        let receiver = side(RECEIVER_SLOT, socket(RECEIVER_SLOT));
        oarlock_sim::for_each_seed(u64::from(SENDERS), |seed| {
            let slot = RECEIVER_SLOT + 1 + (seed % 200) as u8;
            kill_one(&receiver, socket(slot), slot, seed);
        });
    });
}

fn side(slot: u8, socket: OwnedFd) -> Side {
    let port = UdpPort::new(slot, socket, ForwardToken(1)).expect("port");
    let info = DeviceInfo {
        netdev_mtu: 65_536,
        ..device("lo", here())
    };
    Side::with_device(Source::new(Port::Udp(port)), info)
}

fn here() -> Gid {
    Gid::from_ip([127, 0, 0, 1].into())
}

fn connect(qp: &Qp, peer: Qpn) {
    let link = Link {
        mtu: Mtu::MTU_4096,
        access: REMOTE,
        ..Link::default()
    };
    for attr in steps(qp.qp_type(), here(), here(), peer, &link) {
        qp.modify(&attr).expect("modify");
    }
}

/// Writes the whole target again and again, until it is killed.
fn be_sender(target: &str) {
    let mut words = target
        .split(' ')
        .map(|word| word.parse::<u64>().expect("a number"));
    let mut word = || words.next().expect("as many as were told");
    let (slot, peer, addr, rkey) = (word(), word(), word(), word());
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.expect("the slot's socket");
    let side = side(slot as u8, socket);
    let qp = side.qp(QpInit::default());
    let source = side.pd.allocate(LEN, Access::empty()).expect("region");
    source.copy_in(0, &[WRITTEN; LEN]).expect("inside");
    connect(&qp, Qpn::truncate(peer as u32));
    println!("{SAYS}{}", qp.qpn().get());
    let remote = RemoteAddress {
        addr,
        rkey: RKey(rkey as u32),
    };
    // A bound for a test that has lost its parent: far more than it lets happen.
    for wr_id in 0..1_000_000 {
        if wr_id >= 4 {
            side.collect(1);
        }
        post(
            &qp,
            wr_id,
            SendOp::Write(remote),
            Some((&source, 0, LEN as u32)),
        );
    }
}

/// Killed when the test ends, however it does.
struct Sender(Child);

impl Sender {
    fn start(slot: u8, socket: OwnedFd, qp: &Qp, region: &Region) -> (Self, Qpn) {
        let target = [
            slot.into(),
            u64::from(qp.qpn().get()),
            region.iova(),
            region.rkey().0.into(),
        ];
        let mut child = Command::new(std::env::current_exe().expect("a test is a program"))
            .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
            .env(TARGET, target.map(|word| word.to_string()).join(" "))
            .stdin(Stdio::from(socket))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a second process");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let sender = Self(child);
        let qpn = lines.find_map(|line| {
            let line = line.expect("text");
            // The harness has begun the line with the name of the test.
            let (_, number) = line.split_once(SAYS)?;
            number.parse().ok()
        });
        (sender, Qpn::truncate(qpn.expect("it says its number")))
    }

    fn kill(mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("its end");
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Both fail only where it has ended and been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kill_one(receiver: &Side, socket: OwnedFd, slot: u8, seed: u64) {
    let mut rng = Rng::new(seed);
    let pages = Pages::new(LEN / PAGE);
    let region = pages.register(receiver, REMOTE).expect("register");
    let qp = receiver.qp(QpInit::default());
    let (sender, its_qpn) = Sender::start(slot, socket, &qp, &region);
    connect(&qp, its_qpn);
    let byte = |at: usize| {
        let mut byte = [0];
        region.copy_out(at as u64, &mut byte).expect("mapped");
        byte[0]
    };
    // In the middle of the first message, or of a later one.
    let seen_first = rng.index(LEN);
    eventually("the first bytes", || byte(seen_first) == WRITTEN);
    for _ in 0..rng.index(20) {
        std::thread::yield_now();
    }
    sender.kill();

    // What it has sent may still lie in the socket. The right is taken away, and the memory used for something else.
    region.deregister().expect("no windows");
    let bytes = pages.bytes(0, LEN);
    assert!(
        bytes.iter().all(|byte| [0, WRITTEN].contains(byte)),
        "foreign bytes"
    );
    pages.fill(0, LEN, MARK);
    let mut received = 0;
    let mut quiet = 0;
    // Until nothing has come for a while: what comes meets a dead key.
    eventually("the last packet", || {
        assert_eq!(receiver.cq.poll(&mut [const { None }; 4]).expect("poll"), 0);
        let now = qp.counters().get(Counter::PacketsReceived);
        quiet = if now == received { quiet + 1 } else { 0 };
        received = now;
        quiet > 50
    });
    assert!(received > 0, "the sender has sent nothing");
    let after = pages.bytes(0, LEN);
    assert!(
        after.iter().all(|byte| *byte == MARK),
        "placed after deregistration"
    );
    assert!(pages.canaries_live());
    // The connection is of use to nobody, but the device is: the next sender finds it as the first did.
    let state = qp.state();
    assert!(matches!(state, QpState::Rts | QpState::Error), "{state:?}");
    assert_eq!(receiver.context.region_count(), 0);
    std::thread::sleep(Duration::from_millis(1));
}
