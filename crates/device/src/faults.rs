//! Faults on purpose that are the device's to carry out: the port's rules strike a packet that has arrived, and the device
//! does what they say before it handles the packet.

use std::sync::Arc;

use oarlock_port::fault::DeviceFault;
use oarlock_transport::VendorError;
use oarlock_wire::AddressVector;

use crate::endpoint::Core;
use crate::qp::QpShared;

/// What becomes of the packet that a fault came with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Struck {
    /// It is handled as any other.
    Passed,
    /// It is lost.
    Lost,
}

impl Core {
    /// Carries out a fault that came with a packet from `from` for `qp`.
    pub(crate) fn strike(
        self: &Arc<Self>,
        fault: DeviceFault,
        from: &AddressVector,
        qp: &Arc<QpShared>,
    ) -> Struck {
        tracing::debug!(%fault, qpn = ?qp.qpn(), "a fault on purpose");
        match fault {
            DeviceFault::ReceiverNotReady => {
                qp.lock().transport.refuse_request();
                Struck::Passed
            }
            DeviceFault::QpError => {
                let overruns = self.fail(qp, VendorError::FLUSHED_BY_FAULT_RULE);
                self.fail_overrun(overruns);
                Struck::Lost
            }
            DeviceFault::DeviceRemoval | DeviceFault::AddressChange => {
                self.source().inject(fault, from.local.to_ip());
                Struck::Passed
            }
            // Rules know no other.
            _ => Struck::Passed,
        }
    }
}
