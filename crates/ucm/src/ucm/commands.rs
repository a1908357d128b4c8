//! Commands of a connection: CONNECT, LISTEN, ACCEPT, REJECT, DISCONNECT, INIT_QP_ATTR, NOTIFY.

use oarlock_cma::{AsyncEvent, ConnectParam, QpState, State};
use oarlock_wire::{QKey, Qpn, RejReason, RetryCount};

use super::Ucm;
use super::write::Request;
use crate::Failure;
use crate::abi::{
    Accept, COMMANDS, Command, ConnParam, Connect, Disconnect, Ece, InitQpAttr, Listen, Notify,
    Reject, UverbsQpAttr, notify_event, qp_state,
};

impl Ucm {
    pub(super) fn connect(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: Connect = request.grown_structure(least(request.command))?;
        if body.conn_param.valid == 0 {
            return Err(Failure::NoParameters);
        }
        let (entry, _) = self.with_device(request.command, request.file, body.id)?;
        let param = connect_param(&body.conn_param, body.ece);
        Ok(self.cma.connect(request.now, entry.id, param)?)
    }

    pub(super) fn listen(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: Listen = request.structure()?;
        let (entry, _) = self.working(request.command, request.file, body.id)?;
        Ok(self.cma.listen(entry.id, body.backlog)?)
    }

    pub(super) fn accept(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: Accept = request.grown_structure(least(request.command))?;
        let (entry, _) = self.with_device(request.command, request.file, body.id)?;
        if body.conn_param.valid == 0 {
            if body.ece != Ece::default() {
                let vendor_id = body.ece.vendor_id;
                return Err(Failure::EceInRtu { vendor_id });
            }
            return Ok(self.cma.establish(request.now, entry.id)?);
        }
        let param = connect_param(&body.conn_param, body.ece);
        Ok(self
            .cma
            .accept(request.now, entry.id, Some(body.uid), param)?)
    }

    pub(super) fn reject(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: Reject = request.structure()?;
        let reason = match u16::from(body.reason) {
            0 => RejReason::CONSUMER_DEFINED,
            given => RejReason(given),
        };
        if !matches!(
            reason,
            RejReason::CONSUMER_DEFINED | RejReason::VENDOR_OPTION_NOT_SUPPORTED
        ) {
            return Err(Failure::RejectReason { given: body.reason });
        }
        let (entry, _) = self.with_device(request.command, request.file, body.id)?;
        let private_data = &body.private_data[..usize::from(body.private_data_len)];
        Ok(self
            .cma
            .reject(request.now, entry.id, reason, private_data)?)
    }

    pub(super) fn disconnect(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: Disconnect = request.structure()?;
        let (entry, known) = self.with_device(request.command, request.file, body.id)?;
        // Where there is nothing to take down, as on a listener, the kernel reports success too.
        if known.state != State::Listen {
            self.cma.disconnect(request.now, entry.id)?;
        }
        Ok(())
    }

    pub(super) fn init_qp_attr(&mut self, mut request: Request<'_>) -> Result<(), Failure> {
        request.room(size_of::<UverbsQpAttr>())?;
        let body: InitQpAttr = request.structure()?;
        if body.qp_state > qp_state::ERR {
            return Err(Failure::QpState {
                given: body.qp_state,
            });
        }
        let (entry, known) = self.with_device(request.command, request.file, body.id)?;
        if known.state == State::Listen {
            return Err(Failure::ListenerHasNoQueuePair { number: body.id });
        }
        let attr = self.cma.init_qp_attr(entry.id, QpState(body.qp_state))?;
        request.answer(&UverbsQpAttr::from(&attr));
        Ok(())
    }

    pub(super) fn notify(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        let body: Notify = request.structure()?;
        let (entry, _) = self.with_device(request.command, request.file, body.id)?;
        let event = match body.event {
            notify_event::COMM_EST => AsyncEvent::CommEst,
            notify_event::PATH_MIG => AsyncEvent::PathMig,
            given => return Err(Failure::AsyncEvent { given }),
        };
        Ok(self.cma.notify(request.now, entry.id, event)?)
    }
}

fn least(command: Command) -> usize {
    COMMANDS[command.0 as usize].request_min
}

/// As the kernel reads them: queue pair numbers are masked, retry counts above 7 are 7. The queue key belongs to AF_IB.
fn connect_param(param: &ConnParam, ece: Ece) -> ConnectParam {
    let retries = |count: u8| RetryCount::new(count).unwrap_or(RetryCount::MAX);
    ConnectParam {
        qpn: Qpn::truncate(param.qp_num),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control != 0,
        retry_count: retries(param.retry_count),
        rnr_retry_count: retries(param.rnr_retry_count),
        srq: param.srq != 0,
        qkey: QKey(0),
        ece: oarlock_wire::Ece {
            vendor_id: ece.vendor_id,
            options: ece.attr_mod,
        },
        private_data: param.private_data().to_vec(),
    }
}
