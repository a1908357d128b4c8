//! Event channels: queues of events, in the order in which they happened.
//!
//! Every queued event has a number from one series over all channels, so that a queue is a map in the order of the numbers,
//! and taking one identifier's events out of it (to move or to destroy them) costs the number of those events, not the
//! length of the queue.

use crate::handle::Table;
use crate::{ChannelId, Event, Id};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The place of a queued event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place(u64);

#[derive(Debug)]
struct Queued {
    event: Event,
    /// Whether `poll_ready` has told of it.
    announced: bool,
}

#[derive(Debug)]
pub(crate) struct Channel {
    /// The identifiers that report here.
    pub(crate) ids: BTreeSet<Id>,
    /// Whether ports below 1024 may be bound.
    pub(crate) privileged: bool,
    /// Whose it is.
    pub(crate) owner: u64,
    events: BTreeMap<Place, Queued>,
    unannounced: usize,
    /// No event before this place is unannounced.
    first_unannounced: Place,
    /// Whether the channel stands in the list of those to be announced.
    listed: bool,
}

/// All channels.
#[derive(Debug)]
pub(crate) struct Channels {
    table: Table<Channel>,
    next_place: u64,
    ready: VecDeque<ChannelId>,
}

impl Channels {
    pub(crate) const fn new() -> Self {
        Self {
            table: Table::new(),
            next_place: 0,
            ready: VecDeque::new(),
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn create(&mut self, privileged: bool) -> ChannelId {
        let channel = Channel {
            ids: BTreeSet::new(),
            privileged,
            owner: 0,
            events: BTreeMap::new(),
            unannounced: 0,
            first_unannounced: Place(self.next_place),
            listed: false,
        };
        self.table.insert(channel).into()
    }

    pub(crate) fn remove(&mut self, channel: ChannelId) -> Option<Channel> {
        self.table.remove(channel.into())
    }

    pub(crate) fn get(&self, channel: ChannelId) -> Option<&Channel> {
        self.table.get(channel.into())
    }

    pub(crate) fn get_mut(&mut self, channel: ChannelId) -> Option<&mut Channel> {
        self.table.get_mut(channel.into())
    }

    pub(crate) fn queued(&self, channel: ChannelId) -> usize {
        self.get(channel).map_or(0, |channel| channel.events.len())
    }

    /// Puts an event at the tail. `None` if there is no such channel.
    pub(crate) fn push(&mut self, channel: ChannelId, event: Event) -> Option<Place> {
        self.insert(
            channel,
            Queued {
                event,
                announced: false,
            },
        )
    }

    fn insert(&mut self, id: ChannelId, queued: Queued) -> Option<Place> {
        let channel = self.table.get_mut(id.into())?;
        let place = Place(self.next_place);
        self.next_place += 1;
        if !queued.announced {
            if channel.unannounced == 0 {
                channel.first_unannounced = place;
            }
            channel.unannounced += 1;
            if !channel.listed {
                channel.listed = true;
                self.ready.push_back(id);
            }
        }
        channel.events.insert(place, queued);
        Some(place)
    }

    /// Takes the event at the head.
    pub(crate) fn pop(&mut self, channel: ChannelId) -> Option<(Place, Event)> {
        let channel = self.get_mut(channel)?;
        let (place, queued) = channel.events.pop_first()?;
        channel.unannounced -= usize::from(!queued.announced);
        Some((place, queued.event))
    }

    /// Takes an event from wherever it stands.
    pub(crate) fn take(&mut self, channel: ChannelId, place: Place) -> Option<Event> {
        self.take_queued(channel, place).map(|queued| queued.event)
    }

    fn take_queued(&mut self, channel: ChannelId, place: Place) -> Option<Queued> {
        let channel = self.get_mut(channel)?;
        let queued = channel.events.remove(&place)?;
        channel.unannounced -= usize::from(!queued.announced);
        Some(queued)
    }

    /// Moves an event to the tail of a channel and gives its new place. On another channel it counts as newly queued; on
    /// the same one, readers that were told of it need not be told again.
    pub(crate) fn requeue(
        &mut self,
        from: ChannelId,
        place: Place,
        to: ChannelId,
    ) -> Option<(Place, &Event)> {
        let mut queued = self.take_queued(from, place)?;
        queued.announced &= from == to;
        let place = self.insert(to, queued)?;
        let event = &self.get(to)?.events.get(&place)?.event;
        Some((place, event))
    }

    /// The next channel with events that were not told of yet, and how many.
    pub(crate) fn poll_ready(&mut self) -> Option<(ChannelId, usize)> {
        while let Some(id) = self.ready.pop_front() {
            let Some(channel) = self.get_mut(id) else {
                continue;
            };
            channel.listed = false;
            let count = std::mem::take(&mut channel.unannounced);
            if count == 0 {
                continue;
            }
            let mut left = count;
            for (_, queued) in channel.events.range_mut(channel.first_unannounced..) {
                left -= usize::from(!queued.announced);
                queued.announced = true;
                if left == 0 {
                    break;
                }
            }
            return Some((id, count));
        }
        None
    }
}
