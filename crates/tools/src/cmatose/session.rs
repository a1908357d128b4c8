//! What both sides share: connections with their buffers, the events they expect, transfers, migration, the end.

use super::options::Plan;
use super::outcome::Outcome;
use crate::capture::SharedCapture;
use crate::connections::Devices;
use crate::content::{self, Direction};
use crate::failure::{Failure, NOBODY_ANSWERS};
use crate::progress::Progress;
use crate::report::{Lines, micros};
use oarlock_hostd::Host;
use oarlock_rdmacm::{ConnParam, Event, EventChannel, Identifier, PaddedData, RetryCount};
use oarlock_verbs::{Buffer, Completion, QpInitAttr, QueuePair, SendRequest, WcStatus};
use std::time::{Duration, Instant};

/// Messages of a connection that are posted at a time, each way.
const WINDOW: u32 = 32;
/// Buffers of one connection and direction take at most about this much.
const WINDOW_BYTES: u32 = 1 << 20;
/// How long completions are waited for before the event channel is looked at again.
const LOOK_AT_EVENTS_EVERY: Duration = Duration::from_millis(5);
/// Passes over busy completion queues before the event channel is looked at again.
const PASSES_PER_LOOK: u32 = 64;
/// Begins the private data in which a side says that its messages hold the pattern of [`content`] and that it keeps to the
/// order of [`Node::disconnects_first`], and the active side numbers its connections. ucmatose sends nothing of it.
const NUMBER_TAG: &[u8; 4] = b"oarl";
/// Tells receives from sends in the `wr_id` of a completion; the lower half is the connection.
const RECEIVE: u64 = 1 << 32;
/// A hint where a peer that is there does something else than it should.
const SAME_OPTIONS: &str = "; are -c, -C and -S the same on both sides?";

/// One connection.
#[derive(Default)]
pub(super) struct Node {
    pub(super) id: Option<Identifier>,
    queue_pair: Option<QueuePair>,
    /// What the active side calls it; its messages' content depends on it.
    pub(super) number: u32,
    /// The peer is this program too: its messages hold the pattern.
    pub(super) has_pattern: bool,
    pub(super) connected: bool,
    /// Connected, and without trouble since.
    pub(super) usable: bool,
    /// The end was reported by an event.
    pub(super) ended: bool,
    spare: Vec<Buffer>,
    sends_posted: u32,
    sends_done: u32,
    receives_posted: u32,
    received: u32,
}

impl Node {
    /// Whether this side begins the disconnection. In ucmatose the passive side does, once it has everything; the
    /// acknowledgement of the active side's last send may be lost then, and nobody is left to repeat it. The active side
    /// knows that everything arrived when its own sends have completed, so between two of this program it begins. Without
    /// messages there is nothing to be known, and the passive side begins once it is connected.
    fn disconnects_first(&self, plan: &Plan) -> bool {
        plan.is_active() == (self.has_pattern && plan.messages > 0)
    }

    /// Whether this side's messages have all arrived: they were acknowledged, or the replies show it, since the active side
    /// of this program replies when it has received everything.
    fn all_delivered(&self, plan: &Plan) -> bool {
        let replies_show_it = !plan.is_active() && self.has_pattern;
        self.sends_done >= plan.messages || (replies_show_it && self.all_received(plan))
    }

    fn all_received(&self, plan: &Plan) -> bool {
        self.received >= plan.messages
    }

    fn is_complete(&self, plan: &Plan) -> bool {
        self.all_received(plan) && self.all_delivered(plan)
    }

    /// Ended although messages are missing.
    fn is_lost(&self, plan: &Plan) -> bool {
        self.connected && self.ended && !self.is_complete(plan)
    }
}

/// A run of one side.
pub(super) struct Session<'a> {
    pub(super) plan: &'a Plan,
    pub(super) lines: Lines,
    pub(super) outcome: &'a mut Outcome,
    pub(super) host: Host,
    pub(super) channel: EventChannel,
    pub(super) nodes: Vec<Node>,
    devices: Devices,
    capture: Option<SharedCapture>,
    completions: Vec<Completion>,
    migrated: bool,
    /// The first trouble of a connection; the others go on.
    trouble: Option<Failure>,
    pub(super) connect_failures: usize,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        host: Host,
        plan: &'a Plan,
        lines: Lines,
        outcome: &'a mut Outcome,
        events_per_connection: u32,
    ) -> Result<Self, Failure> {
        let mut capture = plan.pcap.as_deref().map(SharedCapture::join).transpose()?;
        if let Some(capture) = &mut capture
            && !plan.pcap_data_only
        {
            capture.trace_service(&host)?;
        }
        outcome.events_expected = u64::from(plan.connections) * u64::from(events_per_connection);
        Ok(Self {
            channel: EventChannel::new(&host)?,
            host,
            nodes: (0..plan.connections).map(|_| Node::default()).collect(),
            // Every connection's sends and receives may complete before any is polled.
            devices: Devices::with_capacity(plan.connections * 2 * window(plan)),
            capture,
            completions: Vec::new(),
            migrated: false,
            trouble: None,
            connect_failures: 0,
            plan,
            lines,
            outcome,
        })
    }

    /// Gives a connection its identifier.
    pub(super) fn adopt(&mut self, at: usize, number: u32, id: Identifier) {
        id.set_context(at as u64);
        let node = &mut self.nodes[at];
        node.number = number;
        node.id = Some(id);
    }

    /// Queue pair and posted receives, so that the peer may send as soon as it is connected.
    pub(super) fn prepare(&mut self, at: usize) -> Result<(), Failure> {
        let node = &mut self.nodes[at];
        let Some(id) = &node.id else { return Ok(()) };
        if let Some(timeout) = self.plan.ack_timeout {
            id.set_ack_timeout(timeout)?;
        }
        let window = window(self.plan);
        let init = QpInitAttr {
            max_send_wr: window.max(1),
            max_recv_wr: window.max(1),
            ..QpInitAttr::default()
        };
        let (queue_pair, pd) = self.devices.queue_pair(id, init)?;
        if let Some(capture) = &self.capture {
            id.device()?.capture(Some(capture.capture.clone()));
        }
        for _ in 0..window {
            // A region has at least one byte, a message may have none.
            let buffer = || Buffer::new(&pd, self.plan.size.max(1) as usize);
            node.spare.push(buffer()?);
            queue_pair.post_recv(RECEIVE | at as u64, buffer()?)?;
            node.receives_posted += 1;
        }
        node.queue_pair = Some(queue_pair);
        Ok(())
    }

    /// The parameters of ucmatose: retries as often as can be said.
    pub(super) fn param(&self, at: usize) -> ConnParam {
        let number = self.nodes[at].number;
        ConnParam::default()
            .responder_resources(1)
            .initiator_depth(1)
            .retry_count(RetryCount::MAX)
            .rnr_retry_count(RetryCount::MAX)
            .private_data([&NUMBER_TAG[..], &number.to_le_bytes()].concat())
    }

    /// The next event, within the time in which something must happen; so many connections are waited for.
    pub(super) fn next_event(
        &mut self,
        awaited: &'static str,
        missing: usize,
    ) -> Result<Event, Failure> {
        self.channel
            .get_event_timeout(self.plan.stall)?
            .ok_or_else(|| self.stalled(awaited, missing))
    }

    fn stalled(&self, awaited: &'static str, missing: usize) -> Failure {
        Failure::Stalled {
            seconds: self.plan.stall.as_secs(),
            awaited,
            missing,
            total: self.nodes.len(),
            hint: match self.plan.server {
                Some(_) if self.outcome.connections == 0 => NOBODY_ANSWERS,
                _ => SAME_OPTIONS,
            },
        }
    }

    /// Connections that are neither established nor have failed.
    pub(super) fn undecided(&self) -> usize {
        self.nodes.len() - self.outcome.connections as usize - self.connect_failures
    }

    /// Counts an event that the test expects.
    pub(super) fn count(&mut self) {
        self.outcome.events += 1;
        if self.migrated {
            self.outcome.events_after_migration += 1;
        }
    }

    /// Both sides: established, ended, and what goes wrong. Whether it changed a connection.
    pub(super) fn note(&mut self, event: &Event) -> Result<bool, Failure> {
        let at = event.id().context() as usize;
        let ours = self
            .nodes
            .get(at)
            .is_some_and(|node| node.id.as_ref() == Some(event.id()));
        if !ours {
            return Ok(false);
        }
        if let Some(error) = event.error() {
            if self.nodes[at].connected {
                // A peer that takes back what it had accepted ends the connection.
                self.nodes[at].ended = true;
                self.nodes[at].usable = false;
                self.trouble.get_or_insert(error.into());
            } else {
                self.fail_to_connect(at, error.into());
            }
            return Ok(true);
        }
        match event {
            Event::Established { private_data, .. } => {
                self.count();
                let node = &mut self.nodes[at];
                node.has_pattern |= number_in(private_data.as_ref()).is_some();
                node.connected = true;
                node.usable = true;
                self.outcome.connections += 1;
            }
            Event::Disconnected { .. } => {
                self.count();
                let node = &mut self.nodes[at];
                node.ended = true;
                node.usable = false;
                // Answers the peer, and gives the posted buffers back.
                event.id().disconnect()?;
            }
            Event::DeviceRemoval { .. } => {
                return Err(Failure::Result("the device was removed".to_owned()));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A connection that will not be: the others go on.
    pub(super) fn fail_to_connect(&mut self, at: usize, failure: Failure) {
        if self.nodes[at].connected || self.nodes[at].ended {
            // It has had its outcome.
            return;
        }
        self.nodes[at].ended = true;
        self.nodes[at].usable = false;
        self.connect_failures += 1;
        self.trouble.get_or_insert(failure);
    }

    /// Whether every connection was made.
    pub(super) fn all_connected(&mut self) -> Result<(), Failure> {
        match self.connect_failures {
            0 => Ok(()),
            failed => Err(Failure::Connect {
                failed,
                connections: self.nodes.len(),
                first: self
                    .trouble
                    .take()
                    .map_or_else(|| "unknown".to_owned(), |failure| failure.to_string()),
            }),
        }
    }

    /// Sends every message of every connection, and waits until all are known to have arrived.
    pub(super) fn send_all(&mut self, direction: Direction) -> Result<(), Failure> {
        for at in 0..self.nodes.len() {
            self.post_sends(at, direction)?;
        }
        self.drive(direction, "messages sent", Node::all_delivered)
    }

    /// Receives every message of every connection.
    pub(super) fn receive_all(&mut self, direction: Direction) -> Result<(), Failure> {
        self.drive(direction, "messages received", Node::all_received)
    }

    fn post_sends(&mut self, at: usize, direction: Direction) -> Result<(), Failure> {
        let node = &mut self.nodes[at];
        let Some(queue_pair) = node.queue_pair.as_ref().filter(|_| node.usable) else {
            return Ok(());
        };
        while node.sends_posted < self.plan.messages
            && let Some(mut buffer) = node.spare.pop()
        {
            let size = self.plan.size as usize;
            content::fill(
                direction,
                node.number,
                node.sends_posted,
                &mut buffer[..size],
            );
            let request = if size == 0 {
                SendRequest::inline(at as u64, &[])
            } else {
                SendRequest::new(at as u64, buffer)
            };
            queue_pair.post_send(request)?;
            node.sends_posted += 1;
        }
        Ok(())
    }

    /// Handles completions and events until every usable connection is done.
    fn drive(
        &mut self,
        sending: Direction,
        what: &'static str,
        is_done: impl Fn(&Node, &Plan) -> bool,
    ) -> Result<(), Failure> {
        let plan = self.plan;
        let is_done = |node: &Node| is_done(node, plan);
        let total = u64::from(self.plan.messages) * self.nodes.len() as u64;
        let mut progress = Progress::new(what, total);
        let mut quiet_since = Instant::now();
        let mut passes = 0;
        while self.nodes.iter().any(|node| node.usable && !is_done(node)) {
            let mut completions = std::mem::take(&mut self.completions);
            completions.clear();
            let mut taken = self.devices.poll(&mut completions)?;
            passes += 1;
            if taken == 0 || passes >= PASSES_PER_LOOK {
                passes = 0;
                while let Some(event) = self.channel.try_event()? {
                    self.note(&event)?;
                }
                if taken == 0 {
                    taken = self.devices.wait(&mut completions, LOOK_AT_EVENTS_EVERY)?;
                }
            }
            for completion in completions.drain(..) {
                self.complete(completion, sending)?;
            }
            self.completions = completions;
            if taken > 0 {
                quiet_since = Instant::now();
                progress.set(
                    self.nodes
                        .iter()
                        .map(|node| u64::from(node.received.max(node.sends_done)))
                        .sum(),
                );
            } else if quiet_since.elapsed() > self.plan.stall {
                let missing = self
                    .nodes
                    .iter()
                    .filter(|node| node.usable && !is_done(node));
                return Err(self.stalled(what, missing.count()));
            }
        }
        self.take_what_came_before_the_end(sending)?;
        self.check_trouble()
    }

    /// The end of a connection may be seen before the completions that were there earlier.
    fn take_what_came_before_the_end(&mut self, sending: Direction) -> Result<(), Failure> {
        while self.nodes.iter().any(|node| node.is_lost(self.plan)) {
            let mut completions = Vec::new();
            if self.devices.poll(&mut completions)? == 0 {
                break;
            }
            for completion in completions {
                self.complete(completion, sending)?;
            }
        }
        Ok(())
    }

    /// What the transfers left behind: lost connections first, they explain the rest.
    fn check_trouble(&mut self) -> Result<(), Failure> {
        let lost = self
            .nodes
            .iter()
            .filter(|node| node.is_lost(self.plan))
            .count();
        if lost > 0 {
            return Err(Failure::Disconnected {
                lost,
                connections: self.nodes.len(),
            });
        }
        self.trouble.take().map_or(Ok(()), Err)
    }

    fn complete(&mut self, completion: Completion, sending: Direction) -> Result<(), Failure> {
        let at = (completion.wr_id & (RECEIVE - 1)) as usize;
        let is_receive = completion.wr_id & RECEIVE != 0;
        let node = &mut self.nodes[at];
        if completion.status != WcStatus::SUCCESS {
            // What is not needed any more may fail: a send whose acknowledgement was lost.
            if node.usable && !node.is_complete(self.plan) {
                node.usable = false;
                self.trouble.get_or_insert(Failure::Completion {
                    connection: at,
                    operation: if is_receive { "a receive" } else { "a send" },
                    status: completion.status.to_string(),
                    hint: match completion.status {
                        WcStatus::LOC_LEN_ERR | WcStatus::REM_INV_REQ_ERR => SAME_OPTIONS,
                        _ => "",
                    },
                });
            }
            return Ok(());
        }
        if !is_receive {
            node.sends_done += 1;
            node.spare.extend(completion.buffers);
            return self.post_sends(at, sending);
        }
        let Some(buffer) = completion.buffers.into_iter().next() else {
            return Ok(());
        };
        let size = self.plan.size as usize;
        let receiving = if self.plan.is_active() {
            Direction::ToActive
        } else {
            Direction::ToPassive
        };
        let right = completion.byte_len as usize == size
            && (!node.has_pattern
                || content::is_right(receiving, node.number, node.received, &buffer[..size]));
        self.outcome.contents_unchecked += u64::from(!node.has_pattern);
        node.received += 1;
        self.outcome.messages += 1;
        self.outcome.mismatches += u64::from(!right);
        if node.receives_posted < self.plan.messages
            && node.usable
            && let Some(queue_pair) = &node.queue_pair
        {
            queue_pair.post_recv(RECEIVE | at as u64, buffer)?;
            node.receives_posted += 1;
        }
        Ok(())
    }

    /// `-m`: a new channel, every identifier onto it, the old one destroyed.
    pub(super) fn migrate(&mut self, listener: Option<&Identifier>) -> Result<(), Failure> {
        self.lines.say("migrating to new event channel");
        let new = EventChannel::new(&self.host)?;
        if let Some(listener) = listener {
            listener.migrate(&new).map_err(Failure::Migration)?;
        }
        for node in &self.nodes {
            let Some(id) = &node.id else { continue };
            id.migrate(&new).map_err(Failure::Migration)?;
            if node.connected {
                self.outcome.migrations += 1;
            }
        }
        // The old channel goes with its last handle.
        self.channel = new;
        self.migrated = true;
        Ok(())
    }

    /// Starts the disconnection of the connections that are up and wanted.
    fn disconnect(&mut self, wanted: impl Fn(&Node, &Plan) -> bool) -> Result<(), Failure> {
        for node in &mut self.nodes {
            if node.connected && !node.ended && wanted(node, self.plan) {
                node.usable = false;
                if let Some(id) = &node.id {
                    id.disconnect()?;
                }
            }
        }
        Ok(())
    }

    /// Waits until the end of every connection was reported.
    fn wait_for_the_end(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        let open = |nodes: &[Node]| {
            nodes
                .iter()
                .filter(|node| node.connected && !node.ended)
                .count()
        };
        let mut progress = Progress::new("disconnected", self.nodes.len() as u64);
        while open(&self.nodes) > 0 {
            let event = self.next_event("disconnections", open(&self.nodes))?;
            self.note(&event)?;
            progress.set((self.nodes.len() - open(&self.nodes)) as u64);
        }
        self.outcome.disconnect_us = micros(started.elapsed());
        Ok(())
    }

    fn check_capture(&self) -> Result<(), Failure> {
        match &self.capture {
            Some(capture) => capture.check(&self.host, &self.devices),
            None => Ok(()),
        }
    }

    /// The end of the run, whatever it was: disconnect, wait, count, report.
    pub(super) fn finish(mut self, result: Result<(), Failure>) -> Result<(), Failure> {
        let lost_before = self.nodes.iter().any(|node| node.is_lost(self.plan));
        let ending = match &result {
            // Nothing can be disconnected any more, or (as in ucmatose) is to be.
            Err(failure) if failure.is_device_fatal() => Ok(()),
            Err(Failure::Migration(_)) => Ok(()),
            Ok(()) => {
                let plan = self.plan;
                if self.nodes.iter().any(|node| node.disconnects_first(plan)) {
                    self.lines.say("cmatose: disconnecting");
                }
                self.disconnect(Node::disconnects_first)
                    .and_then(|()| self.wait_for_the_end())
            }
            Err(_) => self
                .disconnect(|_, _| true)
                .and_then(|()| self.wait_for_the_end()),
        };
        let ended = self
            .nodes
            .iter()
            .filter(|node| node.connected && node.ended)
            .count() as u32;
        if result.is_err() && lost_before {
            self.outcome.disconnected = ended;
            self.lines.say(format_args!("disconnected: {ended}"));
        } else if ending.is_ok() {
            self.lines.say("disconnected");
        }
        self.outcome.events_lost = self
            .outcome
            .events_expected
            .saturating_sub(self.outcome.events);
        self.lines.say(self.outcome.messages_line());
        match (result, ending) {
            // The loss of the device explains everything else.
            (Err(_), Err(failure)) if failure.is_device_fatal() => Err(failure),
            (Err(failure), _) | (Ok(()), Err(failure)) => Err(failure),
            (Ok(()), Ok(())) => self.outcome.check().and_then(|()| self.check_capture()),
        }
    }
}

/// The number that the active side gave a connection.
pub(super) fn number_in(private_data: Option<&PaddedData>) -> Option<u32> {
    number_at(private_data?.as_padded())
}

fn number_at(field: &[u8]) -> Option<u32> {
    let (tag, rest) = field.split_first_chunk::<4>()?;
    (tag == NUMBER_TAG).then_some(())?;
    rest.first_chunk().copied().map(u32::from_le_bytes)
}

fn window(plan: &Plan) -> u32 {
    (WINDOW_BYTES / plan.size.max(1))
        .clamp(1, WINDOW)
        .min(plan.messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_numbers_travel_in_the_private_data() {
        let mut field = [0; 56];
        assert_eq!(number_at(&field), None);
        field[..4].copy_from_slice(NUMBER_TAG);
        field[4..8].copy_from_slice(&77u32.to_le_bytes());
        assert_eq!(number_at(&field), Some(77));
        assert_eq!(number_at(&field[..6]), None);
        assert_eq!(number_in(None), None);
    }

    fn plan(active: bool, messages: u32) -> Plan {
        Plan {
            server: active.then(|| "192.0.2.1:7471".parse().unwrap()),
            messages,
            ..Plan::default()
        }
    }

    #[test]
    fn the_side_that_knows_disconnects_and_ucmatose_keeps_its_order() {
        let (ours, other) = (
            Node {
                has_pattern: true,
                ..Node::default()
            },
            Node::default(),
        );
        for (active, messages, node, first) in [
            (true, 3, &ours, true),
            (false, 3, &ours, false),
            (true, 3, &other, false),
            (false, 3, &other, true),
            (true, 0, &ours, false),
            (false, 0, &ours, true),
        ] {
            assert_eq!(
                node.disconnects_first(&plan(active, messages)),
                first,
                "active {active}, {messages} messages, has_pattern {}",
                node.has_pattern
            );
        }
    }

    #[test]
    fn all_replies_are_proof_of_delivery_to_the_passive_side_of_this_program_only() {
        let node = |has_pattern, received, sends_done| Node {
            connected: true,
            ended: true,
            has_pattern,
            received,
            sends_done,
            ..Node::default()
        };
        for (active, node, lost) in [
            (false, node(true, 3, 0), false),
            (false, node(true, 2, 3), true),
            (false, node(false, 3, 2), true),
            (false, node(false, 3, 3), false),
            (true, node(true, 3, 2), true),
            (true, node(true, 3, 3), false),
        ] {
            let plan = plan(active, 3);
            assert_eq!(node.is_lost(&plan), lost, "active {active}");
            let open = Node {
                ended: false,
                ..node
            };
            assert!(!open.is_lost(&plan), "it has not ended");
        }
    }
}
