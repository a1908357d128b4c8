//! One test body for both ends of a connection, on two private devices in threads, and in two processes over UDP 4791.
//!
//! The body is called once for each end, and tells by [`End::is_first`] which one it is. The ends talk over a channel of
//! their own ([`Control`]), never by shared state, so that one body serves both places.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use oarlock_device::{DeviceInfo, Qp, QpInit, Srq};
use oarlock_port::{ForwardToken, MemWire, Port, UdpPort, UdpSlots, netlink};
use oarlock_transport::{AccessFlags, AttrMask, QpAttr, QpState, QpType, UdDestination};
use oarlock_wire::{AddressVector, Gid, IbTimeout, Mtu, PKey, Psn, Qpn, RetryCount, Srqn};

use super::control::Control;
use super::{KEY, Side, Source, device, gid, host};

/// One end of a test.
pub(crate) struct End {
    pub(crate) side: Side,
    peer_gid: Gid,
    is_first: bool,
    control: Control,
}

/// What a connection is made with.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) mtu: Mtu,
    /// What the peer may do.
    pub(crate) access: AccessFlags,
    /// Of both kinds, both ways.
    pub(crate) reads: u8,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) first_psn: u32,
}

impl Default for Link {
    /// Everything is allowed; patient enough for a busy machine.
    fn default() -> Self {
        Self {
            mtu: Mtu::MTU_1024,
            access: AccessFlags::LOCAL_WRITE
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC,
            reads: 4,
            timeout: 18,
            retries: 7,
            rnr_timer: 1,
            rnr_retry: 7,
            // So that the number wraps in any longer test.
            first_psn: 0xff_fff0,
        }
    }
}

/// Runs both ends on private devices, each on a thread.
pub(crate) fn in_threads(body: fn(&mut End)) {
    let wire = MemWire::new();
    let (here, there) = UnixStream::pair().expect("a pair of sockets");
    let end = |last: u8, peer: u8, slot: u8, control: UnixStream| {
        let port = host(&wire, last).open(slot).expect("slot");
        let info = DeviceInfo {
            netdev_mtu: 9000,
            ..device("mem0", gid(last))
        };
        End::new(
            Side::with_device(Source::new(Port::Mem(port)), info),
            gid(peer),
            last == 1,
            control,
        )
    };
    let mut first = end(1, 2, 3, here);
    let mut second = end(2, 1, 7, there);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || body(&mut second));
        body(&mut first);
        // The channel closes: a second end that still waits for this one fails now.
        drop(first);
        if let Err(panic) = other.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs both ends in processes of their own over UDP 4791, in a network namespace; `test` is the name of the calling test.
pub(crate) fn in_processes(test: &str, body: fn(&mut End)) {
    if let Ok(address) = std::env::var(PEER) {
        // We are the second process: the slot's socket is our standard input.
        let address = SocketAddr::from_abstract_name(address).expect("a name");
        let control = UnixStream::connect_addr(&address).expect("the first process listens");
        let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("dup");
        body(&mut end_on(socket, SECOND_SLOT, false, control));
        return;
    }
    oarlock_sim::in_namespace(&["-Urn"], test, || {
        netlink::bring_up(LOOPBACK).expect("loopback up");
        let slots = UdpSlots::open().expect("port 4791");
        let socket = |slot| {
            let socket = slots.lend(slot).expect("options").expect("socket");
            socket.try_clone_to_owned().expect("dup")
        };
        let name = format!("oarlock-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = UnixListener::bind_addr(&address).expect("listen");
        let peer = Command::new(std::env::current_exe().expect("a test is a program"))
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(PEER, &name)
            .stdin(Stdio::from(socket(SECOND_SLOT)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a second process");
        // A second process that fails before it connects must not leave us here.
        listener.set_nonblocking(true).expect("non-blocking");
        let mut control = None;
        super::eventually("the second process", || {
            control = listener.accept().ok();
            control.is_some()
        });
        let (control, _) = control.expect("it has connected");
        control.set_nonblocking(false).expect("blocking");
        let mut first = end_on(socket(FIRST_SLOT), FIRST_SLOT, true, control);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&mut first)));
        drop(first);
        let output = peer.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "second process: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

fn end_on(socket: OwnedFd, slot: u8, is_first: bool, control: UnixStream) -> End {
    let port = UdpPort::new(slot, socket, ForwardToken(1)).expect("port");
    let here = Gid::from_ip([127, 0, 0, 1].into());
    let info = DeviceInfo {
        netdev_mtu: 65_536,
        ..device("lo", here)
    };
    let side = Side::with_device(Source::new(Port::Udp(port)), info);
    End::new(side, here, is_first, control)
}

impl Deref for End {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl DerefMut for End {
    fn deref_mut(&mut self) -> &mut Control {
        &mut self.control
    }
}

impl End {
    fn new(side: Side, peer_gid: Gid, is_first: bool, control: UnixStream) -> Self {
        Self {
            side,
            peer_gid,
            is_first,
            control: Control::new(control, PATIENCE),
        }
    }

    /// Which of the two it is.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    /// The number of an XRC queue of the other end, which calls [`tell`](Control::tell) with its own.
    pub(crate) fn told_srqn(&mut self) -> Srqn {
        let [number] = self.told();
        Srqn::truncate(number as u32)
    }

    /// Tells the other end the number of a queue of ours.
    pub(crate) fn tell_srqn(&mut self, srq: &Srq) {
        let number = srq.number().expect("a queue of XRC");
        self.tell(&[number.get().into()]);
    }

    /// A queue pair that is connected to one that the other end makes at the same point, with the same `link`.
    pub(crate) fn connected(&mut self, init: QpInit, link: &Link) -> Qp {
        let qp = self.side.qp(init);
        self.connect(&qp, link);
        qp
    }

    /// Connects a queue pair to one that the other end connects at the same point. Reset to RTS (an XRC target: RTR).
    pub(crate) fn connect(&mut self, qp: &Qp, link: &Link) {
        let [peer] = self.swap([qp.qpn().get().into()]);
        for attr in steps(
            qp.qp_type(),
            self.side.gid,
            self.peer_gid,
            Qpn::truncate(peer as u32),
            link,
        ) {
            qp.modify(&attr).expect("modify");
        }
        // Both can receive now.
        self.meet();
    }

    /// A datagram queue pair in RTS, and the way to the other end's.
    pub(crate) fn datagrams(&mut self, init: QpInit) -> (Qp, UdDestination) {
        let qp = self.side.qp(QpInit {
            qp_type: QpType::Ud,
            ..init
        });
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, AttrMask::STATE),
            (QpState::Rts, AttrMask::STATE | AttrMask::SQ_PSN),
        ] {
            qp.modify(&QpAttr {
                mask,
                state,
                qkey: KEY,
                ..QpAttr::default()
            })
            .expect("modify");
        }
        let [peer] = self.swap([qp.qpn().get().into()]);
        let to = UdDestination {
            av: AddressVector::new(self.side.gid, self.peer_gid),
            remote_qpn: Qpn::truncate(peer as u32),
            remote_qkey: KEY,
        };
        self.meet();
        (qp, to)
    }
}

/// The way of a connected queue pair from Reset to where it works.
pub(crate) fn steps(
    qp_type: QpType,
    local: Gid,
    remote: Gid,
    peer: Qpn,
    link: &Link,
) -> Vec<QpAttr> {
    use AttrMask as M;
    let attr = QpAttr {
        pkey: PKey::DEFAULT,
        port_num: 1,
        access: link.access,
        av: AddressVector::new(local, remote),
        path_mtu: link.mtu,
        dest_qpn: peer,
        rq_psn: Psn::truncate(link.first_psn),
        sq_psn: Psn::truncate(link.first_psn),
        max_dest_rd_atomic: link.reads,
        max_rd_atomic: link.reads,
        min_rnr_timer: link.rnr_timer,
        timeout: IbTimeout::truncate(link.timeout),
        retry_count: RetryCount::truncate(link.retries),
        rnr_retry: RetryCount::truncate(link.rnr_retry),
        ..QpAttr::default()
    };
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let responds = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let retries = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    let (rtr, rts) = match qp_type {
        QpType::Uc => (rtr, M::SQ_PSN),
        QpType::XrcInitiator => (rtr, M::SQ_PSN | retries),
        QpType::XrcTarget => (rtr | responds, M::SQ_PSN | M::TIMEOUT),
        _ => (rtr | responds, M::SQ_PSN | retries),
    };
    [
        (QpState::Init, init),
        (QpState::Rtr, rtr),
        (QpState::Rts, rts),
    ]
    .map(|(state, mask)| QpAttr {
        mask: mask | M::STATE,
        state,
        ..attr
    })
    .into()
}

/// A new namespace's loopback interface is its first (Linux `LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
const FIRST_SLOT: u8 = 4;
const SECOND_SLOT: u8 = 9;
/// Names the first process's control channel to the second.
const PEER: &str = "OARLOCK_TEST_PEER";
const PATIENCE: Duration = Duration::from_secs(300);

/// Makes the two tests of a body that serves both ends, in a module of the name given.
#[allow(unused_macros, reason = "each test file uses its part")]
macro_rules! both_ways {
    ($($(#[$doc:meta])* $name:ident: $body:expr;)*) => {$(
        $(#[$doc])*
        mod $name {
            #[allow(unused_imports, reason = "a body may be a path of this file")]
            use super::*;

            #[test]
            fn on_private_devices() {
                $crate::support::ends::in_threads($body);
            }

            #[test]
            fn between_processes_on_port_4791() {
                let test = concat!(stringify!($name), "::between_processes_on_port_4791");
                $crate::support::ends::in_processes(test, $body);
            }
        }
    )*};
}
#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use both_ways;
