//! Moving an identifier to another event channel.

use crate::identifier::Standing;
use crate::{ChannelId, Cma, Counter, Error, EventKind, Id};

impl Cma {
    /// Moves an identifier to another channel and gives the number of events that were handed out over its life.
    ///
    /// - Its queued events move to the tail of the new channel's queue, in their order, and are told of again by
    ///   [`poll_ready`](Self::poll_ready), so that readers who already wait there wake up.
    /// - Among them are those of its multicast joins, which have no channel of their own.
    /// - The children of its queued connection requests move with it: whoever takes the request finds the child on the
    ///   channel that the request came from.
    /// - Children whose requests were taken stay where they are.
    /// - Migration to the channel that it is on puts its queued events at the tail.
    ///
    /// The caller compares the number with that of the acknowledged events, and waits until they agree; nothing here
    /// blocks.
    ///
    /// # Errors
    /// `UnknownId`, `UnknownChannel`, `ChannelFull` if the new channel has no room for the queued events. In each case
    /// everything stays where it was.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate_id(&mut self, id: Id, to: ChannelId) -> Result<u32, Error> {
        let ident = self.exposed(id)?;
        let (from, adding, reported) = (ident.channel, ident.queued.len(), ident.reported);
        if self.channels.get(to).is_none() {
            return Err(Error::UnknownChannel);
        }
        let (queued, max) = (self.queued(to), self.config.max_queued_events);
        if from != to && adding > 0 && queued + adding > max {
            return Err(Error::ChannelFull {
                queued,
                adding,
                max,
            });
        }
        let places = std::mem::take(&mut self.exposed_mut(id)?.queued);
        let mut moved = std::collections::VecDeque::with_capacity(places.len());
        for place in places {
            let Some((place, event)) = self.channels.requeue(from, place, to) else {
                continue;
            };
            let child = (event.kind == EventKind::CONNECT_REQUEST).then_some(event.id);
            if let Some(join) = event.multicast.and_then(|mc| self.multicasts.get_mut(mc)) {
                join.queued = Some(place);
            }
            moved.push_back(place);
            self.counters.count(Counter::EventsMigrated);
            if let Some(child) = child {
                debug_assert!(
                    self.ids
                        .get(child.into())
                        .is_some_and(|child| child.standing
                            == Standing::Undelivered { listener: id }
                            && child.channel == from)
                );
                self.change_channel(child, from, to);
            }
        }
        self.exposed_mut(id)?.queued = moved;
        self.change_channel(id, from, to);
        Ok(reported)
    }

    fn change_channel(&mut self, id: Id, from: ChannelId, to: ChannelId) {
        if let Some(ident) = self.ids.get_mut(id.into()) {
            ident.channel = to;
        }
        if let Some(from) = self.channels.get_mut(from) {
            from.ids.remove(&id);
        }
        if let Some(to) = self.channels.get_mut(to) {
            to.ids.insert(id);
        }
    }
}
