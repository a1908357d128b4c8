//! The reference: queues and groups as plain lists.

use crate::{ChannelId, Id, McId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// An event as the reference sees it: no two that can be told apart have the same tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tag {
    Number(u64),
    Removal,
    AddressChange,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) owner: Id,
    pub(super) tag: Tag,
    pub(super) is_request: bool,
    pub(super) join: Option<McId>,
    /// Of a request: the device has gone since, and the child with it.
    pub(super) child_is_dead: bool,
    pub(super) told: bool,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: Id,
    pub(super) tag: u64,
    /// `None` if it only sends.
    pub(super) group: Option<IpAddr>,
    pub(super) reported: u32,
}

/// The membership of the one interface in a group.
#[derive(Default, Debug)]
struct Group {
    members: BTreeSet<McId>,
    /// Those who wait for the outcome; `None` once it is known.
    waiting: Option<Vec<McId>>,
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) queues: HashMap<ChannelId, Vec<Waiting>>,
    /// Identifiers that the caller knows: their channel, and how many of their events were handed out.
    pub(super) ids: HashMap<Id, (ChannelId, u32)>,
    /// Listeners with their ports, and whether they are for datagrams.
    pub(super) listeners: Vec<(Id, u16, bool)>,
    /// Identifiers that are bound to the device and have not lost it.
    pub(super) on_device: BTreeSet<Id>,
    /// Those that can join groups.
    pub(super) datagrams: BTreeSet<Id>,
    /// Children that were taken: nobody accepted them, so that they are told nothing.
    pub(super) children: BTreeSet<Id>,
    pub(super) dead: BTreeSet<Id>,
    pub(super) joins: BTreeMap<McId, Member>,
    groups: BTreeMap<IpAddr, Group>,
}

impl Model {
    pub(super) fn queue(&mut self, owner: Id, tag: Tag, is_request: bool) {
        self.push(owner, tag, is_request, None);
    }

    fn push(&mut self, owner: Id, tag: Tag, is_request: bool, join: Option<McId>) {
        let (channel, _) = self.ids[&owner];
        let waiting = Waiting {
            owner,
            tag,
            is_request,
            join,
            child_is_dead: false,
            told: false,
        };
        self.queues.get_mut(&channel).expect("exists").push(waiting);
    }

    pub(super) fn migrate(&mut self, id: Id, to: ChannelId) -> u32 {
        let (from, reported) = self.ids[&id];
        let queue = self.queues.get_mut(&from).expect("exists");
        let (mut moving, staying): (Vec<_>, Vec<_>) =
            queue.drain(..).partition(|waiting| waiting.owner == id);
        *queue = staying;
        for waiting in &mut moving {
            waiting.told &= from == to;
        }
        self.queues.get_mut(&to).expect("exists").extend(moving);
        self.ids.insert(id, (to, reported));
        reported
    }

    pub(super) fn destroy(&mut self, id: Id) -> u32 {
        let joins: Vec<McId> = self.joins_of(id);
        for mc in joins {
            self.leave(mc);
        }
        let (channel, reported) = self.ids.remove(&id).expect("exists");
        let queue = self.queues.get_mut(&channel).expect("exists");
        queue.retain(|waiting| waiting.owner != id);
        self.listeners.retain(|(listener, ..)| *listener != id);
        for set in [
            &mut self.on_device,
            &mut self.datagrams,
            &mut self.children,
            &mut self.dead,
        ] {
            set.remove(&id);
        }
        reported
    }

    fn joins_of(&self, id: Id) -> Vec<McId> {
        let joins = self.joins.iter().filter(|(_, member)| member.id == id);
        joins.map(|(mc, _)| *mc).collect()
    }

    /// The device goes: who is bound to it is told, once, and its joins hold no memberships any more.
    pub(super) fn remove_device(&mut self, told: &[Id]) {
        for id in std::mem::take(&mut self.on_device) {
            assert!(told.contains(&id), "{id:?} was not told of the removal");
            for mc in self.joins_of(id) {
                self.drop_membership(mc);
            }
            self.datagrams.remove(&id);
            self.listeners.retain(|(listener, ..)| *listener != id);
            self.dead.insert(id);
        }
        self.dead.append(&mut self.children);
        for waiting in self.queues.values_mut().flatten() {
            waiting.child_is_dead |= waiting.is_request;
        }
        for id in told {
            self.queue(*id, Tag::Removal, false);
        }
    }

    /// A request was taken; its child is on the channel that the request came from.
    pub(super) fn take_child(&mut self, child: Id, channel: ChannelId, is_dead: bool) {
        self.ids.insert(child, (channel, 0));
        let set = if is_dead {
            &mut self.dead
        } else {
            &mut self.children
        };
        set.insert(child);
    }

    pub(super) fn join(&mut self, mc: McId, id: Id, tag: u64, group: Option<IpAddr>) {
        self.joins.insert(
            mc,
            Member {
                id,
                tag,
                group,
                reported: 0,
            },
        );
        let Some(group) = group else {
            return self.settle(mc);
        };
        let is_new = !self.groups.contains_key(&group);
        let group = self.groups.entry(group).or_default();
        if is_new {
            group.waiting = Some(Vec::new());
        }
        group.members.insert(mc);
        match &mut group.waiting {
            Some(waiting) => waiting.push(mc),
            None => self.settle(mc),
        }
    }

    fn settle(&mut self, mc: McId) {
        let member = &self.joins[&mc];
        let (id, tag) = (member.id, Tag::Number(member.tag));
        self.push(id, tag, false, Some(mc));
    }

    /// The outcome of the group's join, if anybody waits for it.
    pub(super) fn outcome(&mut self, group: IpAddr, joined: bool) {
        let waiting = self
            .groups
            .get_mut(&group)
            .and_then(|group| group.waiting.take());
        let waiting = waiting.expect("the reference knows that the group is being joined");
        if !joined {
            self.groups.remove(&group);
        }
        for mc in waiting {
            if !joined {
                self.joins.get_mut(&mc).expect("waits").group = None;
            }
            self.settle(mc);
        }
    }

    /// Whether the group has members.
    pub(super) fn is_wanted(&self, group: IpAddr) -> bool {
        self.groups.contains_key(&group)
    }

    fn drop_membership(&mut self, mc: McId) {
        let Some(key) = self.joins.get_mut(&mc).and_then(|join| join.group.take()) else {
            return;
        };
        let group = self.groups.get_mut(&key).expect("has a member");
        group.members.remove(&mc);
        if let Some(waiting) = &mut group.waiting {
            waiting.retain(|other| *other != mc);
        }
        if group.members.is_empty() {
            self.groups.remove(&key);
        }
    }

    pub(super) fn leave(&mut self, mc: McId) -> u32 {
        self.drop_membership(mc);
        let member = self.joins.remove(&mc).expect("exists");
        let (channel, _) = self.ids[&member.id];
        let queue = self.queues.get_mut(&channel).expect("exists");
        queue.retain(|waiting| waiting.join != Some(mc));
        member.reported
    }
}
