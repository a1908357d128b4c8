//! Commands before there is a connection: CREATE_ID, DESTROY_ID, BIND, RESOLVE, SET_OPTION.

use std::net::SocketAddr;
use std::time::Duration;

use oarlock_cma::{IdOption, Path, QpType};
use oarlock_wire::PortSpace;

use super::Ucm;
use super::numbers::Entry;
use super::write::Request;
use crate::Failure;
use crate::abi::{
    self, Bind, BindIp, Command, CreateId, CreateIdResp, DestroyId, DestroyIdResp, IbPathRecData,
    PATH_FLAGS_GMP_PRIMARY_BIDIRECTIONAL, ResolveAddr, ResolveIp, ResolveRoute, SetOption,
    SockaddrIn6, SockaddrStorage, option_ib, option_id, option_level, option_oarlock,
};

/// The largest value that the kernel copies for an option (`KMALLOC_MAX_SIZE` with pages of 4 KiB).
const MAX_OPTION: u32 = 4 << 20;

impl Ucm {
    pub(super) fn create_id(&mut self, mut request: Request<'_>) -> Result<(), Failure> {
        request.room(size_of::<CreateIdResp>())?;
        let body: CreateId = request.structure()?;
        let ps = PortSpace(body.ps);
        let qp_type = match ps {
            PortSpace::TCP => QpType::RC,
            PortSpace::UDP | PortSpace::IPOIB => QpType::UD,
            PortSpace::IB => QpType(body.qp_type),
            other => return Err(Failure::UnknownPortSpace(other)),
        };
        let file = self
            .files
            .get_mut(&request.file)
            .ok_or(Failure::UnknownFile)?;
        let id = self.cma.create_id(file.channel, ps, qp_type, body.uid)?;
        let number = self.numbers.add(Entry {
            id,
            file: request.file,
            acknowledged: 0,
        });
        file.numbers.insert(number);
        request.answer(&CreateIdResp { id: number });
        Ok(())
    }

    pub(super) fn destroy_id(&mut self, mut request: Request<'_>) -> Result<(), Failure> {
        request.room(size_of::<DestroyIdResp>())?;
        let body: DestroyId = request.structure()?;
        let entry = self.find(request.command, request.file, body.id)?;
        self.forget(body.id);
        let events_reported = self.cma.destroy_id(request.now, entry.id)?;
        if let Some(file) = self.files.get_mut(&request.file) {
            file.numbers.remove(&body.id);
        }
        request.answer(&DestroyIdResp { events_reported });
        Ok(())
    }

    pub(super) fn bind_ip(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: BindIp = request.structure()?;
        check_narrow(request.command, "local", &body.addr)?;
        let (entry, _) = self.working(request.command, request.file, body.id)?;
        let addr = narrow(request.command, &body.addr)?;
        Ok(self.cma.bind_addr(entry.id, addr)?)
    }

    pub(super) fn bind(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: Bind = request.structure()?;
        if body.reserved != 0 {
            return Err(Failure::Reserved {
                command: request.command,
                value: body.reserved.into(),
            });
        }
        check_size(request.command, "local", body.addr_size, &body.addr)?;
        let (entry, _) = self.working(request.command, request.file, body.id)?;
        let addr = wide(request.command, &body.addr)?;
        Ok(self.cma.bind_addr(entry.id, addr)?)
    }

    pub(super) fn resolve_ip(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: ResolveIp = request.structure()?;
        let has_source = body.src_addr.family != 0;
        if has_source {
            check_narrow(request.command, "local", &body.src_addr)?;
        }
        check_narrow(request.command, "remote", &body.dst_addr)?;
        let (entry, _) = self.working(request.command, request.file, body.id)?;
        let source = has_source
            .then(|| narrow(request.command, &body.src_addr))
            .transpose()?;
        let destination = narrow(request.command, &body.dst_addr)?;
        let timeout = Duration::from_millis(body.timeout_ms.into());
        Ok(self
            .cma
            .resolve_addr(request.now, entry.id, source, destination, timeout)?)
    }

    pub(super) fn resolve_addr(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: ResolveAddr = request.structure()?;
        if body.reserved != 0 {
            return Err(Failure::Reserved {
                command: request.command,
                value: body.reserved,
            });
        }
        let has_source = body.src_size != 0;
        if has_source {
            check_size(request.command, "local", body.src_size, &body.src_addr)?;
        }
        check_size(request.command, "remote", body.dst_size, &body.dst_addr)?;
        let (entry, _) = self.working(request.command, request.file, body.id)?;
        let source = has_source
            .then(|| wide(request.command, &body.src_addr))
            .transpose()?;
        let destination = wide(request.command, &body.dst_addr)?;
        let timeout = Duration::from_millis(body.timeout_ms.into());
        Ok(self
            .cma
            .resolve_addr(request.now, entry.id, source, destination, timeout)?)
    }

    pub(super) fn resolve_route(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: ResolveRoute = request.structure()?;
        let (entry, _) = self.with_device(request.command, request.file, body.id)?;
        let timeout = Duration::from_millis(body.timeout_ms.into());
        Ok(self.cma.resolve_route(entry.id, timeout)?)
    }

    pub(super) fn set_option(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: SetOption = request.structure()?;
        if body.optlen > MAX_OPTION {
            return Err(Failure::OptionTooLong {
                given: body.optlen,
                max: MAX_OPTION,
            });
        }
        let (entry, _) = self.working(request.command, request.file, body.id)?;
        if usize::try_from(body.optlen) != Ok(request.inline.len()) {
            return Err(Failure::OptionValue {
                says: body.optlen,
                given: request.inline.len(),
            });
        }
        if (body.level, body.optname) == (option_level::IB, option_ib::PATH) {
            let path = path_of(request.inline)?;
            return Ok(self.cma.set_path(request.now, entry.id, path)?);
        }
        let option = match body.level {
            option_level::ID => option_of_id(body.optname, request.inline)?,
            option_level::OARLOCK => option_of_ours(body.optname, request.inline)?,
            _ => None,
        };
        let option = option.ok_or(Failure::UnknownOption {
            level: body.level,
            name: body.optname,
        })?;
        Ok(self.cma.set_option(entry.id, option)?)
    }
}

/// The first record with the only flags that are used, as the kernel looks for it.
fn path_of(value: &[u8]) -> Result<Path, Failure> {
    let size = size_of::<IbPathRecData>();
    if !value.len().is_multiple_of(size) {
        return Err(Failure::PathRecords { given: value.len() });
    }
    let mut records = value
        .chunks_exact(size)
        .filter_map(abi::read::<IbPathRecData>);
    let used = records.find(|record| record.flags == PATH_FLAGS_GMP_PRIMARY_BIDIRECTIONAL);
    let record = used.ok_or(Failure::NoPrimaryPath {
        records: value.len() / size,
    })?;
    Ok(Path::from(&record))
}

/// `None`: there is no option of this name.
fn option_of_id(name: u32, value: &[u8]) -> Result<Option<IdOption>, Failure> {
    Ok(Some(match name {
        option_id::TOS => IdOption::TypeOfService(byte("type of service", value)?),
        option_id::REUSEADDR => IdOption::ReuseAddr(int("reuseaddr", value)? != 0),
        option_id::AFONLY => IdOption::AfOnly(int("afonly", value)? != 0),
        option_id::ACK_TIMEOUT => IdOption::AckTimeout(byte("ack timeout", value)?),
        _ => return Ok(None),
    }))
}

/// As [`option_of_id`], at our own level.
fn option_of_ours(name: u32, value: &[u8]) -> Result<Option<IdOption>, Failure> {
    Ok(Some(match name {
        option_oarlock::MIN_RNR_TIMER => IdOption::MinRnrTimer(byte("min RNR timer", value)?),
        option_oarlock::CM_RESPONSE_TIMEOUT => {
            IdOption::CmResponseTimeout(byte("CM response timeout", value)?)
        }
        option_oarlock::MAX_CM_RETRIES => IdOption::MaxCmRetries(byte("max CM retries", value)?),
        option_oarlock::CONNECT_DEADLINE => {
            let millis = int("connect deadline", value)?.cast_unsigned();
            let deadline = Duration::from_millis(millis.into());
            IdOption::ConnectDeadline((millis != 0).then_some(deadline))
        }
        _ => return Ok(None),
    }))
}

fn byte(option: &'static str, value: &[u8]) -> Result<u8, Failure> {
    match *value {
        [byte] => Ok(byte),
        _ => Err(option_length(option, value, 1)),
    }
}

fn int(option: &'static str, value: &[u8]) -> Result<i32, Failure> {
    value
        .try_into()
        .map(i32::from_ne_bytes)
        .map_err(|_| option_length(option, value, 4))
}

fn option_length(option: &'static str, value: &[u8], wanted: u32) -> Failure {
    Failure::OptionLength {
        option,
        given: u32::try_from(value.len()).unwrap_or(u32::MAX),
        wanted,
    }
}

pub(super) fn check_narrow(
    command: Command,
    which: &'static str,
    addr: &SockaddrIn6,
) -> Result<(), Failure> {
    if addr.size() == 0 {
        return Err(Failure::AddressSize {
            command,
            which,
            given: 28,
            family: addr.family,
            wanted: 0,
        });
    }
    Ok(())
}

pub(super) fn check_size(
    command: Command,
    which: &'static str,
    given: u16,
    addr: &SockaddrStorage,
) -> Result<(), Failure> {
    let wanted = addr.abi_size();
    if given == 0 || given != wanted {
        return Err(Failure::AddressSize {
            command,
            which,
            given,
            family: addr.family(),
            wanted,
        });
    }
    Ok(())
}

pub(super) fn narrow(command: Command, addr: &SockaddrIn6) -> Result<SocketAddr, Failure> {
    addr.to_addr()
        .map_err(|reason| Failure::Address { command, reason })
}

pub(super) fn wide(command: Command, addr: &SockaddrStorage) -> Result<SocketAddr, Failure> {
    addr.to_addr()
        .map_err(|reason| Failure::Address { command, reason })
}
