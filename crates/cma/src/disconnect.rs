//! Taking a connection down.

use crate::connect::refused;
use crate::identifier::Standing;
use crate::{Cma, Disconnect, Error, EventKind, Id, QpType, State};
use oarlock_cm::{ConnId, StateName};
use oarlock_wire::{RejReason, Time};

impl Cma {
    /// Takes a connection down: sends a DREQ, or a DREP if the peer has sent a DREQ. The outcome is DISCONNECTED, unless it
    /// was reported before, and then TIMEWAIT_EXIT.
    ///
    /// A connection that is not up yet is withdrawn: the peer gets a REJ, or a SIDR_REP with status 2, and DISCONNECTED is
    /// queued, the only end that is reported; a request that was not accepted is rejected and has no further events. A
    /// connection that is over, or that never was one (UD), has nothing to take down, so that a second disconnect is
    /// harmless, as is one that crosses the peer's.
    ///
    /// # Errors
    /// `NoConnection`. A connection with nothing to take down is no error, see [`Disconnect::Nothing`].
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self, now: Time, id: Id) -> Result<Disconnect, Error> {
        let call = "disconnect";
        let (ident, cm) = self.connection_of(call, id)?;
        let is_over = ident.connection.is_none_or(|connection| connection.is_over);
        let cm_state = self.cm.state(cm).unwrap_or(StateName::Idle);
        let done = match cm_state {
            StateName::Established => {
                let sent = self.cm.disconnect(now, cm, &[]);
                sent.map_err(|source| refused(call, source))?;
                Disconnect::Requested
            }
            StateName::DreqRcvd => {
                let sent = self.cm.reply_disconnect(now, cm, &[]);
                sent.map_err(|source| refused(call, source))?;
                Disconnect::Replied
            }
            StateName::SidrReqRcvd if !is_over => {
                self.refuse_datagrams(now, id, cm, &[]);
                Disconnect::Withdrawn
            }
            // The peer knows our request by our comm id, which it may not have heard yet, and our GUID.
            StateName::ReqSent | StateName::MraReqRcvd => {
                let guid = self.config.cm.ca_guid.0.to_be_bytes();
                self.withdraw(now, id, cm, RejReason::TIMEOUT, &guid)?
            }
            StateName::ReqRcvd
            | StateName::MraReqSent
            | StateName::RepSent
            | StateName::MraRepRcvd
            | StateName::RepRcvd
            | StateName::MraRepSent => {
                self.withdraw(now, id, cm, RejReason::CONSUMER_DEFINED, &[])?
            }
            _ => Disconnect::Nothing { cm_state },
        };
        self.pump(now);
        Ok(done)
    }

    fn withdraw(
        &mut self,
        now: Time,
        id: Id,
        cm: ConnId,
        reason: RejReason,
        additional_info: &[u8],
    ) -> Result<Disconnect, Error> {
        self.cm
            .reject(now, cm, reason, additional_info, &[])
            .map_err(|source| refused("disconnect", source))?;
        let ident = self.exposed_mut(id)?;
        debug_assert_ne!(ident.qp_type, QpType::UD);
        if ident.standing == Standing::Reporting {
            ident.state = State::Disconnect;
            self.report(id, EventKind::DISCONNECTED, 0);
        } else {
            self.end_connection(id);
        }
        Ok(Disconnect::Withdrawn)
    }
}
