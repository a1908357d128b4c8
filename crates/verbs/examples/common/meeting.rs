//! How two programs meet over TCP before they talk over queue pairs, and how a queue pair is connected by hand.

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use oarlock_hostd::Host;
use oarlock_verbs::{
    Access, AddressHandle, AddressHandleAttr, AttrMask, Context, ProtectionDomain, QpAttr, QpState,
    QueuePair,
};
use oarlock_wire::{Gid, IbTimeout, Mtu, Psn, QKey, Qpn, RetryCount};

/// Waits for the client, or calls the server, which may be a moment late.
pub(crate) fn meet(server: Option<&str>, port: u16) -> Result<TcpStream, Box<dyn Error>> {
    let Some(server) = server else {
        // One socket for both IP versions, where there are both.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
        let (stream, _) = listener.accept()?;
        return Ok(stream);
    };
    let mut attempts_left = ATTEMPTS;
    loop {
        match TcpStream::connect((server, port)) {
            Ok(stream) => return Ok(stream),
            Err(error) if attempts_left == 0 => {
                return Err(format!("couldn't connect to {server}:{port}: {error}").into());
            }
            Err(_) => {
                attempts_left -= 1;
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// This program's end of a path: a device and one of its addresses.
pub(crate) struct Local {
    pub(crate) context: Context,
    pub(crate) pd: ProtectionDomain,
    pub(crate) gid_index: u8,
    pub(crate) gid: Gid,
    pub(crate) psn: Psn,
}

/// Which device and address are wanted; else those of the TCP connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    pub(crate) device: Option<String>,
    pub(crate) gid_index: Option<u8>,
}

impl Local {
    pub(crate) fn open(
        host: &Host,
        wish: &Wish,
        met_at: SocketAddr,
    ) -> Result<Self, Box<dyn Error>> {
        let devices = Context::devices(host)?;
        let met_at = Gid::from_ip(met_at.ip().to_canonical());
        let found = match &wish.device {
            Some(name) => devices.iter().find(|device| device.name == *name),
            None => devices
                .iter()
                .find(|device| device.gids.contains(&met_at))
                .or_else(|| devices.iter().find(|device| !device.is_loopback))
                .or_else(|| devices.first()),
        };
        let device = found.ok_or("no such device")?;
        let context = Context::open(host, device.index)?;
        let gids = context.gids();
        let same = gids.iter().position(|gid| *gid == met_at);
        let index = wish.gid_index.map_or(same.unwrap_or(0), usize::from);
        let gid = *gids
            .get(index)
            .ok_or_else(|| format!("device {} has no GID with index {index}", device.name))?;
        Ok(Self {
            pd: context.default_pd(),
            context,
            gid_index: u8::try_from(index)?,
            gid,
            psn: Psn::truncate(RandomState::new().hash_one(met_at) as u32),
        })
    }

    /// The way to the peer.
    pub(crate) fn path(&self, remote: Gid) -> Result<AddressHandle, Box<dyn Error>> {
        if remote.is_unspecified() {
            return Err("the peer has no GID: RoCE needs one (-g there)".into());
        }
        Ok(AddressHandle::new(
            &self.pd,
            AddressHandleAttr {
                remote,
                sgid_index: self.gid_index,
                ..AddressHandleAttr::default()
            },
        )?)
    }
}

/// What a connection is made of, beside the path.
pub(crate) struct Terms {
    pub(crate) remote_qpn: Qpn,
    pub(crate) remote_psn: Psn,
    pub(crate) mtu: Mtu,
    /// READs and atomics under way, both ways.
    pub(crate) rd_atomic: u8,
}

/// From Reset to Init: receives can be posted.
pub(crate) fn init(qp: &QueuePair) -> Result<(), oarlock_verbs::Error> {
    let step = QpAttr {
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        qkey: QKEY,
        ..QpAttr::default()
    };
    advance(qp, QpState::Init, step)
}

/// From Init to RTS.
pub(crate) fn connect(
    qp: &QueuePair,
    local: &Local,
    remote: Gid,
    terms: &Terms,
) -> Result<(), Box<dyn Error>> {
    let all = QpAttr {
        av: local.path(remote)?.address_vector(),
        path_mtu: terms.mtu,
        dest_qpn: terms.remote_qpn,
        rq_psn: terms.remote_psn,
        sq_psn: local.psn,
        max_rd_atomic: terms.rd_atomic,
        max_dest_rd_atomic: terms.rd_atomic,
        // 0.64 ms; 67 ms, seven times; for ever.
        min_rnr_timer: 12,
        timeout: IbTimeout::truncate(14),
        retry_count: RetryCount::truncate(7),
        rnr_retry: RetryCount::truncate(7),
        qkey: QKEY,
        ..QpAttr::default()
    };
    advance(qp, QpState::Rtr, all)?;
    advance(qp, QpState::Rts, all)?;
    Ok(())
}

/// Goes to the next state with the attributes that the type of queue pair needs for it.
fn advance(qp: &QueuePair, state: QpState, attr: QpAttr) -> Result<(), oarlock_verbs::Error> {
    let step = qp.qp_type().transition(qp.state(), state);
    let required = step.map_or(AttrMask::empty(), |step| step.required);
    qp.modify(&QpAttr {
        mask: required | AttrMask::STATE,
        state,
        ..attr
    })
}

/// A GID in the text of the exchanges: 32 hexadecimal digits.
pub(crate) fn gid_text(gid: Gid) -> String {
    gid.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn parse_gid(text: &str) -> Option<Gid> {
    if text.len() != 32 {
        return None;
    }
    u128::from_str_radix(text, 16)
        .ok()
        .map(|bits| Gid(bits.to_be_bytes()))
}

/// The value of an option.
pub(crate) fn value<T>(
    option: &str,
    arguments: &mut impl Iterator<Item = String>,
) -> Result<T, Box<dyn Error>>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let text = arguments
        .next()
        .ok_or_else(|| format!("{option} wants a value"))?;
    text.parse()
        .map_err(|error| format!("{option} {text}: {error}").into())
}

/// What the datagram program demands.
pub(crate) const QKEY: QKey = QKey(0x1111_1111);
/// How long one step may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);
