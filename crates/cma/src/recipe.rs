//! Which attributes a queue pair gets, from what both sides have said.

use crate::attr::{
    AccessFlags, InitAttr, QpAttr, QpState, RtrAttr, RtsAttr, UcRtrAttr, UdInitAttr,
};
use crate::identifier::{Connection, Identifier, Role};
use crate::{Cma, Device, Error, Id, QpType, State};
use oarlock_cm::{StateName, ack_timeout};
use oarlock_wire::{IbTimeout, Psn, QKey};

impl Cma {
    /// The attributes that take the identifier's queue pair to a state.
    ///
    /// INIT is known once there is a device; without a connection it gives the peer no access. RTR and RTS are known
    /// once the peer's message is there: on the passive side from the connection request, on the active side from the
    /// response.
    ///
    /// A UD identifier needs nothing but a device. Its recipe for INIT names its Q_Key, which from then on is settled: a peer
    /// whose answer names another one leads to ADDR_ERROR. (The kernel hands out the recipe for INIT whatever the state, and
    /// leaves the others to the library.)
    ///
    /// # Errors
    /// `NoDevice`, `NoRecipe`; `ConnectionState` if the peer's message is not there yet, or the connection is over;
    /// `NoConnection` for RTR and RTS.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn init_qp_attr(&mut self, id: Id, state: QpState) -> Result<QpAttr, Error> {
        let call = "init_qp_attr";
        let ident = self.working(call, id)?;
        let device = self.device_of(call, ident)?;
        if ident.qp_type == QpType::UD {
            let port_num = device.port_num;
            return self.datagram_recipe(id, state, port_num);
        }
        match state {
            QpState::INIT => {
                let access = match ident.connection.as_ref() {
                    None => AccessFlags::NONE,
                    Some(connection) => {
                        self.check_live(call, ident, connection)?;
                        AccessFlags::for_connection(connection.role.responder_resources())
                    }
                };
                Ok(QpAttr::Init(InitAttr {
                    access,
                    pkey_index: 0,
                    port_num: device.port_num,
                }))
            }
            QpState::RTR => self
                .rtr(call, ident, device)
                .map(|attr| match ident.qp_type {
                    QpType::UC | QpType::XRC_SEND => QpAttr::UcRtr(UcRtrAttr {
                        av: attr.av,
                        sgid_index: attr.sgid_index,
                        port_num: attr.port_num,
                        path_mtu: attr.path_mtu,
                        dest_qpn: attr.dest_qpn,
                        rq_psn: attr.rq_psn,
                    }),
                    _ => QpAttr::Rtr(attr),
                }),
            QpState::RTS => self.rts(call, ident).map(|attr| match ident.qp_type {
                QpType::UC => QpAttr::UcRts {
                    sq_psn: attr.sq_psn,
                },
                QpType::XRC_RECV => QpAttr::XrcRecvRts {
                    sq_psn: attr.sq_psn,
                    timeout: attr.timeout,
                },
                _ => QpAttr::Rts(attr),
            }),
            QpState(other) => Err(Error::NoRecipe(other)),
        }
    }

    fn datagram_recipe(&mut self, id: Id, state: QpState, port_num: u8) -> Result<QpAttr, Error> {
        match state {
            QpState::INIT => {
                let own = &mut self.exposed_mut(id)?.qkey;
                Ok(QpAttr::UdInit(UdInitAttr {
                    qkey: *own.get_or_insert(QKey::RDMA_UDP),
                    pkey_index: 0,
                    port_num,
                }))
            }
            QpState::RTR => Ok(QpAttr::UdRtr),
            QpState::RTS => Ok(QpAttr::UdRts {
                sq_psn: Psn::truncate(0),
            }),
            QpState(other) => Err(Error::NoRecipe(other)),
        }
    }

    fn rtr(
        &self,
        call: &'static str,
        ident: &Identifier,
        device: &Device,
    ) -> Result<RtrAttr, Error> {
        let connection = self.live_connection(call, ident)?;
        let wrong_state = || self.peer_unknown(call, connection);
        let dest_qpn = connection.role.remote_qpn().ok_or_else(wrong_state)?;
        let path = ident.path.ok_or_else(wrong_state)?;
        let sgid_index = device.sgid_index(path.av.local).ok_or(Error::NoDevice {
            call,
            state: ident.state,
        })?;
        Ok(RtrAttr {
            av: path.av,
            sgid_index,
            port_num: device.port_num,
            path_mtu: path.mtu,
            dest_qpn,
            rq_psn: ident.starting_psn,
            max_dest_rd_atomic: connection.role.responder_resources(),
            min_rnr_timer: ident
                .options
                .min_rnr_timer
                .unwrap_or(self.config.min_rnr_timer)
                .get(),
        })
    }

    fn rts(&self, call: &'static str, ident: &Identifier) -> Result<RtsAttr, Error> {
        let connection = self.live_connection(call, ident)?;
        let wrong_state = || self.peer_unknown(call, connection);
        let path = ident.path.ok_or_else(wrong_state)?;
        let attr = match connection.role {
            Role::Active { asked, response } => {
                let response = response.ok_or_else(wrong_state)?;
                RtsAttr {
                    sq_psn: response.starting_psn,
                    timeout: ack_timeout(response.target_ack_delay, path.packet_life_time),
                    retry_cnt: asked.retry_count,
                    rnr_retry: response.rnr_retry_count,
                    max_rd_atomic: response.initiator_depth,
                }
            }
            Role::Passive { request, answer } => RtsAttr {
                sq_psn: request.starting_psn,
                timeout: IbTimeout::new(path.packet_life_time.get() + 1).unwrap_or(IbTimeout::MAX),
                retry_cnt: request.retry_count,
                rnr_retry: answer.map_or(request.rnr_retry_count, |answer| answer.rnr_retry_count),
                max_rd_atomic: answer
                    .map_or(request.initiator_depth, |answer| answer.initiator_depth),
            },
            Role::Requester { .. } | Role::Responder { .. } => return Err(wrong_state()),
        };
        Ok(RtsAttr {
            timeout: ident.options.ack_timeout.unwrap_or(attr.timeout),
            ..attr
        })
    }

    fn live_connection<'a>(
        &self,
        call: &'static str,
        ident: &'a Identifier,
    ) -> Result<&'a Connection, Error> {
        let connection = ident.connection.as_ref().ok_or(Error::NoConnection {
            call,
            state: ident.state,
        })?;
        self.check_live(call, ident, connection)?;
        Ok(connection)
    }

    fn check_live(
        &self,
        call: &'static str,
        ident: &Identifier,
        connection: &Connection,
    ) -> Result<(), Error> {
        let is_live = matches!(
            self.cm.state(connection.cm),
            Some(
                StateName::ReqSent
                    | StateName::MraReqRcvd
                    | StateName::ReqRcvd
                    | StateName::MraReqSent
                    | StateName::RepRcvd
                    | StateName::MraRepSent
                    | StateName::RepSent
                    | StateName::MraRepRcvd
                    | StateName::Established
            )
        );
        if ident.state == State::Connect && !connection.is_over && is_live {
            return Ok(());
        }
        Err(self.peer_unknown(call, connection))
    }

    fn peer_unknown(&self, call: &'static str, connection: &Connection) -> Error {
        Error::ConnectionState {
            call,
            cm_state: self.cm.state(connection.cm).unwrap_or(StateName::Idle),
        }
    }
}
