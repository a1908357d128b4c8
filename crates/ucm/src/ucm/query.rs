//! QUERY_ROUTE and QUERY: what is known about an identifier, in any state.

use std::net::SocketAddr;

use zerocopy::{FromZeros, IntoBytes};

use oarlock_cma::Query as Known;
use oarlock_wire::{Gid, PKey, ServiceId};

use super::Ucm;
use super::write::Request;
use crate::Failure;
use crate::abi::{
    AF_IB, IbPathRecData, Query, QueryAddrResp, QueryPathResp, QueryRouteResp, SockaddrIb,
    SockaddrIn6, SockaddrStorage, query_option,
};

/// The answer without the device's index, which older callers do not know.
const QUERY_ROUTE_MIN: usize = std::mem::offset_of!(QueryRouteResp, ibdev_index);
const QUERY_ADDR_MIN: usize = std::mem::offset_of!(QueryAddrResp, ibdev_index);

impl Ucm {
    pub(super) fn query_route(&mut self, mut request: Request<'_>) -> Result<(), Failure> {
        request.room(QUERY_ROUTE_MIN)?;
        let body: Query = request.structure()?;
        let (_, known) = self.working(request.command, request.file, body.id)?;
        let mut resp = QueryRouteResp::new_zeroed();
        resp.src_addr = known.local.map_or(SockaddrIn6::NONE, SockaddrIn6::from);
        resp.dst_addr = known.remote.map_or(SockaddrIn6::NONE, SockaddrIn6::from);
        if let Some(device) = known.device {
            resp.node_guid = device.guid.0.to_be_bytes();
            resp.port_num = device.port_num;
            resp.ibdev_index = device.index;
            match known.path {
                Some(path) => {
                    resp.num_paths = 1;
                    resp.ib_route[0] = (&path).into();
                }
                // Without a path, the GIDs stand where the first one would.
                None => {
                    resp.ib_route[0].dgid = gid_of(known.remote).0;
                    resp.ib_route[0].sgid = gid_of(known.local).0;
                    resp.ib_route[0].pkey = PKey::DEFAULT.0.to_be_bytes();
                }
            }
        }
        request.answer(&resp);
        Ok(())
    }

    pub(super) fn query(&mut self, request: Request<'_>) -> Result<(), Failure> {
        let body: Query = request.structure()?;
        let (_, known) = self.working(request.command, request.file, body.id)?;
        match body.option {
            query_option::ADDR => query_addr(request, &known),
            query_option::PATH => query_path(request, &known),
            query_option::GID => query_gid(request, &known),
            // Found by RESOLVE_IB_SERVICE, which finds nothing on RoCE.
            query_option::IB_SERVICE => Err(Failure::NoServices { number: body.id }),
            option => Err(Failure::UnknownQuery { option }),
        }
    }
}

fn query_addr(mut request: Request<'_>, known: &Known) -> Result<(), Failure> {
    request.room(QUERY_ADDR_MIN)?;
    let mut resp = addr_resp(known);
    if let Some(local) = known.local {
        resp.src_addr = local.into();
        resp.src_size = resp.src_addr.abi_size();
    }
    if let Some(remote) = known.remote {
        resp.dst_addr = remote.into();
        resp.dst_size = resp.dst_addr.abi_size();
    }
    request.answer(&resp);
    Ok(())
}

fn query_gid(mut request: Request<'_>, known: &Known) -> Result<(), Failure> {
    request.room(QUERY_ADDR_MIN)?;
    let mut resp = addr_resp(known);
    let (local, remote) = match known.av {
        Some(av) => (av.local, av.remote),
        None => (Gid::default(), Gid::default()),
    };
    resp.src_addr = gid_form(known, resp.pkey, local, known.local);
    resp.src_size = resp.src_addr.abi_size();
    resp.dst_addr = gid_form(known, resp.pkey, remote, known.remote);
    resp.dst_size = resp.dst_addr.abi_size();
    request.answer(&resp);
    Ok(())
}

fn query_path(request: Request<'_>, known: &Known) -> Result<(), Failure> {
    request.room(size_of::<QueryPathResp>())?;
    let num_paths = u32::from(known.path.is_some());
    request.response.extend_from_slice(
        QueryPathResp {
            num_paths,
            reserved: 0,
        }
        .as_bytes(),
    );
    let room = request.out_len - size_of::<QueryPathResp>();
    if let Some(path) = known
        .path
        .as_ref()
        .filter(|_| room >= size_of::<IbPathRecData>())
    {
        request
            .response
            .extend_from_slice(IbPathRecData::from(path).as_bytes());
    }
    Ok(())
}

fn addr_resp(known: &Known) -> QueryAddrResp {
    let mut resp = QueryAddrResp::new_zeroed();
    if let Some(device) = known.device {
        resp.node_guid = device.guid.0.to_be_bytes();
        resp.port_num = device.port_num;
        // Linux reads it from where an InfiniBand device has its partition: from the zeros behind an Ethernet address, unless
        // a loopback destination has brought it.
        if known.local.is_some_and(|local| local.ip().is_loopback()) {
            resp.pkey = PKey::DEFAULT.0.to_be_bytes();
        }
        resp.ibdev_index = device.index;
    }
    resp
}

fn gid_form(known: &Known, pkey: [u8; 2], gid: Gid, addr: Option<SocketAddr>) -> SockaddrStorage {
    let port = addr.map_or(0, |addr| addr.port());
    SockaddrIb {
        family: AF_IB,
        pkey,
        addr: gid.0,
        sid: ServiceId::for_port(known.port_space, port).0.to_be_bytes(),
        ..SockaddrIb::new_zeroed()
    }
    .into()
}

fn gid_of(addr: Option<SocketAddr>) -> Gid {
    addr.map_or(Gid::default(), |addr| Gid::from_ip(addr.ip()))
}
