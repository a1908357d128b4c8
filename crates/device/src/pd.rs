//! Protection domains: which memory a queue pair may use.

use std::sync::Arc;

use crate::context::Context;

/// A protection domain: queue pairs reach only regions of their own domain.
#[doc(alias = "ibv_pd")]
#[derive(Clone)]
pub struct Pd {
    context: Arc<Context>,
    id: u32,
}

impl Pd {
    /// A new domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn new(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::clone(context),
            id: context.next_pd(),
        }
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }
}

impl PartialEq for Pd {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && Arc::ptr_eq(&self.context, &other.context)
    }
}

impl Eq for Pd {}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pd")
            .field("device", &self.context.device().name)
            .field("id", &self.id)
            .finish()
    }
}
