//! The layouts of `conformance/layout.txt`, and values going in and out of bytes by them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Int(i128),
    Bytes(Vec<u8>),
    Addr(Addr),
    /// A native InfiniBand address, as `native:$LOCAL` in the rows.
    Native(Addr),
    None,
}

/// An address with its port and interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addr {
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    pub(crate) scope: u32,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) if *value < 256 => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value:#x}"),
            Self::Bytes(bytes) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Self::Addr(addr) => write!(f, "{}:{}%{}", addr.ip, addr.port, addr.scope),
            Self::Native(addr) => write!(f, "native:{}", addr.ip),
            Self::None => f.write_str("none"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Bytes in the order of the machine.
    Host {
        signed: bool,
    },
    /// Big endian, of any width.
    Bits,
    Data,
    Sock,
    Gid,
    Ip,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    kind: Kind,
    byte: usize,
    bit: usize,
    /// In bits.
    width: usize,
}

/// A named field.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    place: Place,
    /// Where the used length stands.
    len: Option<Place>,
    /// The value where a row gives none, as it stands in the file.
    pub(crate) default: Option<String>,
}

/// A structure or a message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) number: u32,
    pub(crate) size: usize,
    /// The fields in the order of the file, so that a later default wins.
    pub(crate) fields: Vec<(String, Field)>,
}

impl Layout {
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields
            .iter()
            .rev()
            .find(|(field, _)| field == name)
            .map(|(_, field)| field)
    }

    pub(crate) fn offset(&self, name: &str) -> Option<usize> {
        self.field(name).map(|field| field.place.byte)
    }
}

/// Everything in the file.
#[derive(Debug, Default)]
pub(crate) struct Layouts {
    pub(crate) commands: BTreeMap<String, Layout>,
    pub(crate) answers: BTreeMap<String, Layout>,
    pub(crate) messages: BTreeMap<String, Layout>,
    names: BTreeMap<(String, String), i128>,
}

impl Layouts {
    pub(crate) fn parse(text: &str) -> Self {
        let mut layouts = Self::default();
        let mut parts: BTreeMap<String, Layout> = BTreeMap::new();
        let mut open: Option<(String, String, Layout)> = None;
        let mut names: Option<String> = None;
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            let at = || format!("layout.txt:{}: {line}", number + 1);
            if line.starts_with(' ') {
                if let Some(kind) = &names {
                    layouts
                        .names
                        .insert((kind.clone(), words[0].into()), int(words[1], &at));
                    continue;
                }
                let (_, _, layout) = open
                    .as_mut()
                    .unwrap_or_else(|| panic!("{}: no structure", at()));
                if words[0] == "use" {
                    let shift: usize = words[2].parse().unwrap_or_else(|_| panic!("{}", at()));
                    let part = parts
                        .get(words[1])
                        .unwrap_or_else(|| panic!("{}: no such part", at()));
                    layout.fields.extend(
                        part.fields
                            .iter()
                            .map(|(n, f)| (n.clone(), f.shifted(shift))),
                    );
                } else {
                    layout.fields.push((words[0].into(), field(&words, &at)));
                }
                continue;
            }
            if let Some(done) = open.take() {
                layouts.close(done, &mut parts);
            }
            names = None;
            let named = |number: u32, size: usize| Layout {
                number,
                size,
                fields: Vec::new(),
            };
            match words[..] {
                ["names", kind] => names = Some(kind.into()),
                ["part", name] => open = Some(("part".into(), name.into(), named(0, 0))),
                ["command", n, name, size] => {
                    let layout = named(int(n, &at) as u32, int(size, &at) as usize);
                    open = Some(("command".into(), name.into(), layout));
                }
                ["answer", name, size] => {
                    open = Some((
                        "answer".into(),
                        name.into(),
                        named(0, int(size, &at) as usize),
                    ));
                }
                ["message", n, name] => {
                    open = Some((
                        "message".into(),
                        name.into(),
                        named(int(n, &at) as u32, 232),
                    ));
                }
                _ => panic!("{}: not understood", at()),
            }
        }
        if let Some(done) = open.take() {
            layouts.close(done, &mut parts);
        }
        layouts
    }

    fn close(
        &mut self,
        (what, name, layout): (String, String, Layout),
        parts: &mut BTreeMap<String, Layout>,
    ) {
        let into = match what.as_str() {
            "part" => parts,
            "command" => &mut self.commands,
            "answer" => &mut self.answers,
            _ => &mut self.messages,
        };
        into.insert(name, layout);
    }

    /// The number behind a name of a kind.
    pub(crate) fn number(&self, kind: &str, name: &str) -> Option<i128> {
        self.names.get(&(kind.into(), name.into())).copied()
    }

    /// The name of a number.
    pub(crate) fn name(&self, kind: &str, number: i128) -> String {
        let found = self
            .names
            .iter()
            .find(|((k, _), n)| k == kind && **n == number);
        found.map_or_else(|| number.to_string(), |((_, name), _)| name.clone())
    }
}

/// A decimal or hexadecimal number.
pub(crate) fn number(text: &str) -> Option<i128> {
    match text.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn int(text: &str, at: &dyn Fn() -> String) -> i128 {
    number(text).unwrap_or_else(|| panic!("{}: {text} is no number", at()))
}

fn place(at: &str, kind: &str, line: &dyn Fn() -> String) -> Place {
    let (byte, bit) = at.split_once('.').unwrap_or((at, "0"));
    let digits = kind.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let width = |times: i128| {
        usize::try_from(int(digits, line) * times).unwrap_or_else(|_| panic!("{}", line()))
    };
    let (kind, width) = match &kind[..kind.len() - digits.len()] {
        "u" => (Kind::Host { signed: false }, width(1)),
        "i" => (Kind::Host { signed: true }, width(1)),
        "be" | "b" => (Kind::Bits, width(1)),
        "data" => (Kind::Data, width(8)),
        "sock" => (Kind::Sock, width(8)),
        "gid" => (Kind::Gid, 128),
        "ip" => (Kind::Ip, 128),
        other => panic!("{}: no type {other}", line()),
    };
    Place {
        kind,
        byte: int(byte, line) as usize,
        bit: int(bit, line) as usize,
        width,
    }
}

fn field(words: &[&str], at: &dyn Fn() -> String) -> Field {
    let mut rest = &words[3..];
    let mut field = Field {
        place: place(words[1], words[2], at),
        len: None,
        default: None,
    };
    if let ["len", offset, kind, more @ ..] = rest {
        field.len = Some(place(offset, kind, at));
        rest = more;
    }
    match rest {
        [] => {}
        ["=", default] => field.default = Some((*default).into()),
        _ => panic!("{}: not understood", at()),
    }
    field
}

impl Field {
    fn shifted(&self, by: usize) -> Self {
        let shift = |place: Place| Place {
            byte: place.byte + by,
            ..place
        };
        Self {
            place: shift(self.place),
            len: self.len.map(shift),
            default: self.default.clone(),
        }
    }

    /// Puts a value in; what it does not fill is zero.
    pub(crate) fn put(&self, bytes: &mut [u8], value: &Value) -> Result<(), String> {
        let len = self.place.put(bytes, value)?;
        if let Some(place) = self.len {
            place.put(bytes, &Value::Int(len as i128))?;
        }
        Ok(())
    }

    /// Reads the value; data up to its used length.
    pub(crate) fn get(&self, bytes: &[u8]) -> Value {
        let used = self.len.map(|place| match place.get(bytes, None) {
            Value::Int(len) => len as usize,
            _ => 0,
        });
        self.place.get(bytes, used)
    }
}

impl Place {
    /// The number of bytes that the value used.
    fn put(self, bytes: &mut [u8], value: &Value) -> Result<usize, String> {
        let range = self.byte..self.byte + (self.bit + self.width).div_ceil(8);
        let place = bytes
            .get_mut(range)
            .ok_or_else(|| "beyond the end of the structure".to_string())?;
        let raw = match (self.kind, value) {
            (Kind::Host { .. }, Value::Int(int)) => {
                let n = self.width / 8;
                let le = int.to_le_bytes();
                let mut raw = le[..n].to_vec();
                if cfg!(target_endian = "big") {
                    raw.reverse();
                }
                raw
            }
            (Kind::Bits, Value::Int(int)) => {
                let end = (self.bit + self.width).next_multiple_of(8);
                let shift = end - self.bit - self.width;
                let mask = u128::MAX >> (128 - self.width) << shift;
                let bits = (int.cast_unsigned() << shift) & mask;
                let old = place
                    .iter()
                    .fold(0_u128, |all, b| all << 8 | u128::from(*b));
                let all = (old & !mask | bits).to_be_bytes();
                place.copy_from_slice(&all[16 - place.len()..]);
                return Ok(place.len());
            }
            (Kind::Gid, Value::Addr(addr)) => match addr.ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets().to_vec(),
                IpAddr::V6(v6) => v6.octets().to_vec(),
            },
            (Kind::Ip, Value::Addr(addr)) => match addr.ip {
                IpAddr::V4(v4) => [&[0; 12][..], &v4.octets()].concat(),
                IpAddr::V6(v6) => v6.octets().to_vec(),
            },
            (Kind::Sock, Value::Addr(addr)) => sockaddr(addr),
            (Kind::Sock, Value::Native(addr)) => sockaddr_ib(addr),
            (Kind::Sock | Kind::Data, Value::Bytes(data)) => data.clone(),
            (Kind::Sock | Kind::Gid | Kind::Ip, Value::None) => Vec::new(),
            _ => return Err(format!("{value} does not fit a field of this type")),
        };
        if raw.len() > place.len() {
            return Err(format!("{} bytes in a field of {}", raw.len(), place.len()));
        }
        place.fill(0);
        place[..raw.len()].copy_from_slice(&raw);
        Ok(raw.len())
    }

    fn get(self, bytes: &[u8], used: Option<usize>) -> Value {
        let range = self.byte..self.byte + (self.bit + self.width).div_ceil(8);
        let Some(place) = bytes.get(range) else {
            return Value::None;
        };
        match self.kind {
            Kind::Host { signed } => {
                let mut raw = place.to_vec();
                if cfg!(target_endian = "big") {
                    raw.reverse();
                }
                let value = raw
                    .iter()
                    .rev()
                    .fold(0_i128, |all, b| all << 8 | i128::from(*b));
                let negative = signed && value >> (self.width - 1) == 1;
                Value::Int(if negative {
                    value - (1 << self.width)
                } else {
                    value
                })
            }
            Kind::Bits => {
                let all = place
                    .iter()
                    .fold(0_u128, |all, b| all << 8 | u128::from(*b));
                let shift = place.len() * 8 - self.bit - self.width;
                Value::Int((all >> shift & u128::MAX >> (128 - self.width)).cast_signed())
            }
            Kind::Data => {
                Value::Bytes(place[..used.unwrap_or(place.len()).min(place.len())].to_vec())
            }
            Kind::Gid => {
                let mut octets = [0; 16];
                octets.copy_from_slice(place);
                address(Ipv6Addr::from(octets).to_canonical(), 0, 0)
            }
            Kind::Ip => {
                let mut octets = [0; 16];
                octets.copy_from_slice(place);
                let v6 = Ipv6Addr::from(octets);
                let ip = if octets[..12] == [0; 12] && !v6.is_loopback() && !v6.is_unspecified() {
                    IpAddr::from([octets[12], octets[13], octets[14], octets[15]])
                } else {
                    v6.into()
                };
                address(ip, 0, 0)
            }
            Kind::Sock => from_sockaddr(place),
        }
    }
}

fn address(ip: IpAddr, port: u16, scope: u32) -> Value {
    match ip {
        IpAddr::V6(v6) if v6.is_unspecified() && port == 0 => Value::None,
        ip => Value::Addr(Addr { ip, port, scope }),
    }
}

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const AF_IB: u16 = 27;

fn sockaddr(addr: &Addr) -> Vec<u8> {
    let port = addr.port.to_be_bytes();
    match addr.ip {
        IpAddr::V4(v4) => [&AF_INET.to_ne_bytes()[..], &port, &v4.octets(), &[0; 8]].concat(),
        IpAddr::V6(v6) => [
            &AF_INET6.to_ne_bytes()[..],
            &port,
            &[0; 4],
            &v6.octets(),
            &addr.scope.to_ne_bytes(),
        ]
        .concat(),
    }
}

fn sockaddr_ib(addr: &Addr) -> Vec<u8> {
    let gid = match addr.ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let sid = 0x0106_0000_u64 | u64::from(addr.port);
    [
        &AF_IB.to_ne_bytes()[..],
        &0xFFFF_u16.to_be_bytes(),
        &[0; 4],
        &gid,
        &sid.to_be_bytes(),
        &u64::MAX.to_be_bytes(),
        &[0; 8],
    ]
    .concat()
}

fn from_sockaddr(bytes: &[u8]) -> Value {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match u16::from_ne_bytes([bytes[0], bytes[1]]) {
        0 => Value::None,
        AF_INET => Value::Addr(Addr {
            ip: IpAddr::from([bytes[4], bytes[5], bytes[6], bytes[7]]),
            port,
            scope: 0,
        }),
        AF_INET6 => {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[8..24]);
            Value::Addr(Addr {
                ip: Ipv6Addr::from(octets).into(),
                port,
                scope: u32::from_ne_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]),
            })
        }
        _ => Value::Bytes(bytes.to_vec()),
    }
}

#[test]
fn what_is_put_in_comes_out() {
    let layouts = Layouts::parse(include_str!("../../conformance/layout.txt"));
    let req = &layouts.messages["REQ"];
    let mut bytes = vec![0xFF; 232];
    for (name, value) in [
        ("path_mtu", 5),
        ("rnr_retry_count", 2),
        ("flow_label", 0x12345),
    ] {
        let field = req.field(name).expect("a field of the REQ");
        field.put(&mut bytes, &Value::Int(value)).expect("it fits");
        assert_eq!(field.get(&bytes), Value::Int(value), "{name}");
    }
    assert_eq!(
        bytes[50],
        5 << 4 | 1 << 3 | 2,
        "its neighbours keep their bits"
    );
    let event = &layouts.answers["GET_EVENT"];
    let mut bytes = vec![0; 336];
    let status = event.field("status").expect("a field of the event");
    status.put(&mut bytes, &Value::Int(-110)).expect("it fits");
    assert_eq!(status.get(&bytes), Value::Int(-110));
    assert_eq!(layouts.commands.len(), 25);
    assert_eq!(layouts.messages.len(), 11);
}
