//! What each identifier of a host is owed: a judge that keeps its own books beside the programs.
//!
//! Every call that leads to events, and every event that is taken, passes here. What comes must be owed, in the order of the
//! connection's life; what is owed must have come in the end; and the counts must be the dispatcher's.

use std::collections::{BTreeMap, VecDeque};

use oarlock_ucm::FileId;
use oarlock_ucm::client::{Event, IdNumber, JoinNumber};

use crate::program::kind;

/// Whose identifier it is. Numbers count connections, attempts, kinds of listeners, members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    SpineListener,
    Spine(usize),
    /// Of a request that was answered before.
    Stray,
    Listener(usize),
    Caller(usize),
    Called(usize),
    Asker(usize),
    Asked(usize),
    Member(usize),
}

/// How far an identifier is, as its program knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Idle,
    Listening,
    ResolvingAddr,
    AddrResolved,
    ResolvingRoute,
    RouteResolved,
    /// Asked the peer.
    Calling,
    /// Has the peer's response, and has not completed it.
    Answered,
    /// The child of a request that is not answered.
    Requested,
    Accepted,
    Up,
    /// Disconnected, and the connection's past is still in the network.
    Down,
    /// A datagram identifier that knows its peer, or serves it.
    Served,
    Over,
    /// Its device has gone, and it knows.
    Removed,
}

#[derive(Debug)]
pub(crate) struct Record {
    /// Never used twice, as numbers are.
    pub(crate) key: u64,
    pub(crate) file: FileId,
    /// The value that its events carry.
    pub(crate) uid: u64,
    pub(crate) part: Part,
    pub(crate) stage: Stage,
    pub(crate) is_datagram: bool,
    /// Its events are reported: not so for the child of a request before it is accepted.
    pub(crate) is_reporting: bool,
    /// Its device has gone, whether it knows or not.
    pub(crate) is_gone: bool,
    /// The program wants it to end, so that it must.
    pub(crate) is_leaving: bool,
    /// The program ended the attempt before it was up: no past that could stay in the network.
    pub(crate) is_withdrawn: bool,
    pub(crate) taken: u32,
    injected: VecDeque<(u64, i32)>,
    owes_removal: bool,
    changes_owed: u32,
    /// After the program's own last word: what stood in the queue then, and nothing more.
    still_to_come: Option<u32>,
}

#[derive(Debug)]
struct Join {
    id: IdNumber,
    uid: u64,
    taken: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    records: BTreeMap<IdNumber, Record>,
    joins: BTreeMap<JoinNumber, Join>,
    next_key: u64,
}

impl Record {
    /// What a connection's event leads to; `None` where it has no place.
    fn follow(&self, event: u32) -> Option<Stage> {
        use Stage::*;
        let connected = !self.is_datagram;
        Some(match (event, self.stage) {
            (kind::ADDR_RESOLVED, ResolvingAddr) => AddrResolved,
            (kind::ADDR_ERROR, ResolvingAddr) => Idle,
            (kind::ROUTE_RESOLVED, ResolvingRoute) => RouteResolved,
            (kind::UNREACHABLE, Calling) => Over,
            (kind::ESTABLISHED, Calling) if self.is_datagram => Served,
            (kind::CONNECT_RESPONSE, Calling) if connected => Answered,
            (kind::ESTABLISHED, Accepted) if connected => Up,
            (kind::UNREACHABLE, Accepted) if connected => Over,
            // After it was up too: the peer gave its response up, for it never heard that.
            (kind::REJECTED, Calling | Answered | Accepted | Up) if connected => Over,
            (kind::DISCONNECTED, Calling) if connected && self.is_withdrawn => Down,
            (kind::DISCONNECTED, Answered | Accepted | Up) if connected => Down,
            (kind::TIMEWAIT_EXIT, Down) => Over,
            _ => return None,
        })
    }

    /// Why something is missing, if it is.
    fn missing(&self) -> Option<String> {
        use Stage::*;
        if let Some((value, _)) = self.injected.front() {
            return Some(format!("the injected event {value} never came"));
        }
        if self.owes_removal {
            return Some("DEVICE_REMOVAL never came".into());
        }
        if self.changes_owed > 0 {
            return Some(format!("{} ADDR_CHANGE never came", self.changes_owed));
        }
        if self.is_gone {
            return None;
        }
        if let Some(count) = self.still_to_come {
            return (count > 0).then(|| format!("{count} events that were queued never came"));
        }
        let owed = match self.stage {
            ResolvingAddr | ResolvingRoute | Calling | Accepted => true,
            Answered | Up => self.is_leaving,
            Down => self.is_leaving && !self.is_withdrawn,
            _ => false,
        };
        owed.then(|| format!("nothing came of {:?}", self.stage))
    }
}

impl Ledger {
    /// A new identifier. Its own value is the key that is returned, unless it is the child of a request.
    pub(crate) fn add(
        &mut self,
        id: IdNumber,
        file: FileId,
        part: Part,
        stage: Stage,
        is_datagram: bool,
    ) -> Result<u64, String> {
        self.next_key += 1;
        let is_child = stage == Stage::Requested;
        let record = Record {
            key: self.next_key,
            file,
            uid: if is_child { 0 } else { self.next_key },
            part,
            stage,
            is_datagram,
            is_reporting: !is_child,
            is_gone: false,
            is_leaving: false,
            is_withdrawn: false,
            taken: 0,
            injected: VecDeque::new(),
            owes_removal: false,
            changes_owed: 0,
            still_to_come: None,
        };
        match self.records.insert(id, record) {
            None => Ok(self.next_key),
            Some(old) => Err(format!("{id:?} was given out while {old:?} has it")),
        }
    }

    /// The key that [`add`](Self::add) gives next.
    pub(crate) fn next_key(&self) -> u64 {
        self.next_key + 1
    }

    pub(crate) fn get(&self, id: IdNumber) -> Option<&Record> {
        self.records.get(&id)
    }

    pub(crate) fn record(&mut self, id: IdNumber) -> &mut Record {
        self.records.get_mut(&id).expect("it is in the books")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (IdNumber, &Record)> {
        self.records.iter().map(|(id, record)| (*id, record))
    }

    /// The first identifier of a part.
    pub(crate) fn find(&self, part: Part) -> Option<IdNumber> {
        let mut records = self.iter();
        let found = records.find(|(_, record)| record.part == part);
        found.map(|(id, _)| id)
    }

    /// The identifier, if it is still the one that had this key.
    pub(crate) fn is_still(&self, id: IdNumber, key: u64) -> bool {
        self.get(id).is_some_and(|record| record.key == key)
    }

    pub(crate) fn joins_of(&self, id: IdNumber) -> Vec<JoinNumber> {
        let own = self.joins.iter().filter(|(_, join)| join.id == id);
        own.map(|(number, _)| *number).collect()
    }

    pub(crate) fn inject(&mut self, id: IdNumber, value: u64, status: i32) {
        self.record(id).injected.push_back((value, status));
    }

    pub(crate) fn device_goes(&mut self, id: IdNumber) {
        let record = self.record(id);
        record.is_gone = true;
        record.owes_removal = record.is_reporting;
    }

    pub(crate) fn address_goes(&mut self, id: IdNumber) {
        let record = self.record(id);
        record.changes_owed += u32::from(record.is_reporting);
    }

    /// The program has said the last word; `queued` events of the identifier wait.
    pub(crate) fn last_word(&mut self, id: IdNumber, queued: u32) {
        let record = self.record(id);
        let beside = record.injected.len() as u32 + record.changes_owed;
        record.still_to_come = Some(queued.saturating_sub(beside));
    }

    /// An event was taken out of a channel; says whose it is, the listener's for a request.
    pub(crate) fn take(&mut self, file: FileId, event: &Event) -> Result<(IdNumber, Part), String> {
        let id = match event.kind {
            kind::MULTICAST_JOIN | kind::MULTICAST_ERROR => self.take_of_join(event)?,
            kind::CONNECT_REQUEST => {
                let mut listeners = self.iter().filter(|(_, record)| record.uid == event.uid);
                let listener = listeners.find(|(_, record)| record.stage == Stage::Listening);
                listener.ok_or("a request for nobody")?.0
            }
            _ => event.id,
        };
        let record = self.records.get_mut(&id);
        let record = record.ok_or("an event of an unknown identifier")?;
        record.taken += 1;
        if record.file != file {
            let on = record.file;
            return Err(format!(
                "it came out of {file:?}, its identifier is on {on:?}"
            ));
        }
        if record.stage == Stage::Removed {
            return Err("it came after DEVICE_REMOVAL".into());
        }
        let of_join = matches!(event.kind, kind::MULTICAST_JOIN | kind::MULTICAST_ERROR);
        if !of_join && event.uid != record.uid {
            return Err(format!("its value is not that of {:?}", record.part));
        }
        match event.kind {
            kind::MULTICAST_JOIN | kind::MULTICAST_ERROR | kind::CONNECT_REQUEST => {}
            kind::USER => {
                let wanted = record.injected.pop_front();
                if wanted != Some((event.arg(), event.status)) {
                    return Err(format!("{wanted:?} was injected next"));
                }
            }
            kind::ADDR_CHANGE => {
                let owed = record.changes_owed.checked_sub(1);
                record.changes_owed = owed.ok_or("its address has not changed that often")?;
            }
            kind::DEVICE_REMOVAL => {
                if !std::mem::take(&mut record.owes_removal) {
                    return Err("its device has not gone".into());
                }
                if let Some(missing) = record.missing() {
                    return Err(missing);
                }
                record.stage = Stage::Removed;
            }
            _ => {
                if let Some(count) = &mut record.still_to_come {
                    let left = count.checked_sub(1);
                    *count = left.ok_or("it came after the program's last word")?;
                }
                let next = record.follow(event.kind);
                record.stage =
                    next.ok_or_else(|| format!("it does not follow {:?}", record.stage))?;
            }
        }
        Ok((id, record.part))
    }

    fn take_of_join(&mut self, event: &Event) -> Result<IdNumber, String> {
        let join = self.joins.get_mut(&event.join());
        let join = join.ok_or("an event of a join that was left")?;
        join.taken += 1;
        if join.taken > 1 {
            return Err("the second event of a join".into());
        }
        if join.uid != event.uid {
            return Err("its value is not that of its join".into());
        }
        Ok(join.id)
    }

    pub(crate) fn joined(
        &mut self,
        id: IdNumber,
        join: JoinNumber,
        uid: u64,
    ) -> Result<(), String> {
        match self.joins.insert(join, Join { id, uid, taken: 0 }) {
            None => Ok(()),
            Some(old) => Err(format!("{join:?} was given out while {old:?} has it")),
        }
    }

    pub(crate) fn left(&mut self, join: JoinNumber, counted: u32) -> Result<(), String> {
        let taken = self.joins.remove(&join).map(|join| join.taken);
        if taken == Some(counted) {
            return Ok(());
        }
        Err(format!(
            "{join:?}: {taken:?} events taken, {counted} reported"
        ))
    }

    pub(crate) fn migrated(
        &mut self,
        id: IdNumber,
        to: FileId,
        counted: u32,
    ) -> Result<(), String> {
        let record = self.record(id);
        record.file = to;
        if record.taken == counted {
            return Ok(());
        }
        let (part, taken) = (record.part, record.taken);
        Err(format!(
            "{part:?} moved: {taken} events taken, {counted} reported"
        ))
    }

    pub(crate) fn destroyed(&mut self, id: IdNumber, counted: u32) -> Result<(), String> {
        self.joins.retain(|_, join| join.id != id);
        let record = self.records.remove(&id).ok_or("it is not in the books")?;
        if record.taken == counted {
            return Ok(());
        }
        let (part, taken) = (record.part, record.taken);
        Err(format!(
            "{part:?} destroyed: {taken} events taken, {counted} reported"
        ))
    }

    /// A channel was closed; gives what was on it.
    pub(crate) fn closed(&mut self, file: FileId) -> Vec<Part> {
        let on_it = self.iter().filter(|(_, record)| record.file == file);
        let on_it: Vec<_> = on_it.map(|(id, record)| (id, record.part)).collect();
        for (id, _) in &on_it {
            self.records.remove(id);
            self.joins.retain(|_, join| join.id != *id);
        }
        on_it.into_iter().map(|(_, part)| part).collect()
    }

    /// Nothing can happen any more: whatever is owed has come.
    pub(crate) fn check_settled(&self) -> Result<(), String> {
        for (id, record) in self.iter() {
            if let Some(missing) = record.missing() {
                return Err(format!("{:?} ({id:?}): {missing}", record.part));
            }
        }
        for (number, join) in &self.joins {
            let is_gone = self.get(join.id).is_none_or(|record| record.is_gone);
            if join.taken == 0 && !is_gone {
                return Err(format!("{number:?}: nothing came of it"));
            }
        }
        Ok(())
    }
}
