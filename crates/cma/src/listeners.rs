//! Who listens on which service ID. The IB CM knows one listener per service ID; which identifier a request is for is
//! decided here, by the address that it asks for.

use crate::Id;
use oarlock_cm::ListenerId;
use oarlock_wire::ServiceId;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    by_service: BTreeMap<ServiceId, Service>,
    by_cm: BTreeMap<ListenerId, ServiceId>,
}

#[derive(Debug)]
struct Service {
    cm: ListenerId,
    ids: Vec<Id>,
}

impl Listeners {
    /// Adds `id` to those who listen on a service ID; `false` if there are none yet.
    pub(crate) fn join(&mut self, service_id: ServiceId, id: Id) -> bool {
        match self.by_service.get_mut(&service_id) {
            Some(service) => {
                service.ids.push(id);
                true
            }
            None => false,
        }
    }

    pub(crate) fn add(&mut self, service_id: ServiceId, cm: ListenerId, id: Id) {
        self.by_service
            .insert(service_id, Service { cm, ids: vec![id] });
        self.by_cm.insert(cm, service_id);
    }

    /// Removes `id`; gives the IB CM's listener if nobody is left.
    pub(crate) fn remove(&mut self, service_id: ServiceId, id: Id) -> Option<ListenerId> {
        let service = self.by_service.get_mut(&service_id)?;
        service.ids.retain(|other| *other != id);
        if !service.ids.is_empty() {
            return None;
        }
        let service = self.by_service.remove(&service_id)?;
        self.by_cm.remove(&service.cm);
        Some(service.cm)
    }

    /// The identifiers that listen where the IB CM's listener does.
    pub(crate) fn ids(&self, cm: ListenerId) -> &[Id] {
        let service = self
            .by_cm
            .get(&cm)
            .and_then(|service_id| self.by_service.get(service_id));
        service.map_or(&[], |service| &service.ids)
    }
}
