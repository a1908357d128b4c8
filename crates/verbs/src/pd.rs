//! Protection domains.

use oarlock_device as device;

use crate::context::Context;

/// A protection domain: queue pairs reach only memory of their own domain.
///
/// Clones are the same domain.
#[doc(alias = "ibv_pd")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectionDomain {
    context: Context,
    device: device::Pd,
}

impl ProtectionDomain {
    /// A new domain of `context`.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn new(context: &Context) -> Self {
        Self::from_device(context, device::Pd::new(context.device_context()))
    }

    pub(crate) fn from_device(context: &Context, device: device::Pd) -> Self {
        Self {
            context: context.clone(),
            device,
        }
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn device(&self) -> &device::Pd {
        &self.device
    }
}
