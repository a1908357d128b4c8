//! What a program is told unasked, of devices and of the capture of all programs: one message for each change, on a socket
//! pair of its own.
//!
//! Messages are sent with MSG_DONTWAIT, so that no program can block the service. What finds no room waits, one change of
//! a kind for each device: a program that does not look learns in the end how things stand, not how they came to.

use super::event_loop::{Service, Source};
use crate::Error;
use oarlock_cma::{Device, Pretence};
use oarlock_port::fdpass;
use oarlock_port::fork::ForkGuard;
use oarlock_ucm::Owner;
use oarlock_ucm::proto::{
    CaptureNews, DeviceChange, DeviceChangeKind, DeviceFault, DeviceInfo, NO_ANSWER, Reply,
};
use rustix::event::epoll;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The service's end.
#[derive(Debug)]
pub(super) struct Feed {
    waiting: VecDeque<DeviceChange>,
    /// News of the capture of all programs, with its descriptors; only the latest count.
    capture: Option<(CaptureNews, Vec<OwnedFd>)>,
    /// The generation of news that the system would not pass.
    missed_capture: Option<u64>,
    /// Whether the loop waits for room.
    waits_for_room: bool,
    /// Taken off the list before the socket is closed: fields are dropped in this order.
    _fork: ForkGuard,
    socket: OwnedFd,
}

impl Feed {
    /// Makes a pair; the second is the program's end.
    pub(super) fn new() -> Result<(Self, OwnedFd), Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(Error::errno("make a socket pair for changes of devices"))?;
        // Whatever the system's default: a reader that does not read costs no more than this.
        set_socket_send_buffer_size(&ours, SEND_BUFFER)
            .map_err(Error::errno("size a socket for changes of devices"))?;
        let fork = ForkGuard::new(&ours).map_err(Error::system("watch for forks"))?;
        let feed = Self {
            waiting: VecDeque::new(),
            capture: None,
            missed_capture: None,
            waits_for_room: false,
            _fork: fork,
            socket: ours,
        };
        Ok((feed, theirs))
    }

    /// Tells of a change. A change of the same kind that waits is out of date.
    pub(super) fn tell(&mut self, change: DeviceChange) {
        self.waiting.retain(|earlier| {
            earlier.device != change.device || !earlier.kind.is_like(&change.kind)
        });
        self.waiting.push_back(change);
        self.send_waiting();
    }

    /// Tells where packets are to be captured, or that they are no longer.
    pub(super) fn tell_capture(&mut self, news: CaptureNews, fds: Vec<OwnedFd>) {
        self.capture = Some((news, fds));
        self.send_waiting();
    }

    /// Whether the program could not be told of this generation.
    pub(super) fn has_missed_capture(&self, generation: u64) -> bool {
        self.missed_capture == Some(generation)
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn send_waiting(&mut self) {
        if let Some((news, fds)) = &self.capture {
            let message = Reply::Capture(*news).encode(NO_ANSWER);
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match fdpass::send(&self.socket, &message, &fds, false) {
                Ok(_) => {}
                Err(error) if super::clients::is_shortage(&error) => return,
                // The program has closed its end, or too many descriptors are on their way between programs of this user.
                Err(_) => self.missed_capture = Some(news.generation),
            }
            self.capture = None;
        }
        while let Some(change) = self.waiting.front() {
            let message = Reply::Changes(vec![change.clone()]).encode(NO_ANSWER);
            match fdpass::send(&self.socket, &message, &[], false) {
                Ok(_) => {
                    self.waiting.pop_front();
                }
                Err(error) if super::clients::is_shortage(&error) => return,
                // The program has closed its end, and is told nothing more.
                Err(_) => self.waiting.clear(),
            }
        }
    }

    /// Whether the socket is to be watched for room, if that has changed since it was asked last.
    pub(super) fn new_watch(&mut self) -> Option<bool> {
        let waits = !self.waiting.is_empty() || self.capture.is_some();
        (std::mem::replace(&mut self.waits_for_room, waits) != waits).then_some(waits)
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Service {
    /// Makes a client's feed, in place of one that it has.
    pub(super) fn open_feed(&mut self, id: u32) -> Result<OwnedFd, Error> {
        let (feed, theirs) = Feed::new()?;
        self.close_feed(id);
        // No more than the end of the other side, which epoll tells unasked.
        self.watch(Source::Feed(id), &feed, epoll::EventFlags::empty())?;
        self.feeds.insert(id, feed);
        Ok(theirs)
    }

    pub(super) fn close_feed(&mut self, id: u32) {
        if let Some(feed) = self.feeds.remove(&id) {
            self.forget(&feed);
        }
    }

    /// There is room, or the program has closed its end.
    pub(super) fn serve_feed(&mut self, id: u32, flags: epoll::EventFlags) {
        if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            return self.close_feed(id);
        }
        if let Some(feed) = self.feeds.get_mut(&id) {
            feed.send_waiting();
            self.watch_feed(id);
        }
    }

    /// Tells every program what is different from `before`.
    pub(super) fn tell_changes(&mut self, before: &[DeviceInfo]) {
        let after = self.network.devices.infos();
        let changes = super::changes::between(before, &after, &mut self.gone_devices);
        let ids: Vec<u32> = self.feeds.keys().copied().collect();
        for id in ids {
            for change in &changes {
                self.tell(id, change.clone());
            }
        }
    }

    /// Lets something happen to a device as far as one client is concerned.
    pub(super) fn fail_device(&mut self, id: u32, fault: DeviceFault, device: &Device) {
        let now = self.now();
        tracing::info!(
            client = id,
            device = device.name,
            ?fault,
            "a fault on purpose"
        );
        let (pretence, changes) = match fault {
            DeviceFault::AddressChange => {
                let addresses = DeviceChangeKind::Addresses(device.addresses.clone());
                (Pretence::AddressChange, vec![addresses])
            }
            _ => {
                let changes = vec![DeviceChangeKind::Removed, DeviceChangeKind::Returned];
                (Pretence::Removal, changes)
            }
        };
        self.ucm.pretend(now, Owner(id), device.index, pretence);
        for kind in changes {
            let device = device.index;
            self.tell(id, DeviceChange { device, kind });
        }
    }

    fn tell(&mut self, id: u32, change: DeviceChange) {
        if let Some(feed) = self.feeds.get_mut(&id) {
            feed.tell(change);
            self.watch_feed(id);
        }
    }

    pub(super) fn watch_feed(&mut self, id: u32) {
        let Some(waits) = self.feeds.get_mut(&id).and_then(Feed::new_watch) else {
            return;
        };
        let flags = if waits {
            epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::empty()
        };
        self.change(Source::Feed(id), &self.feeds[&id], flags);
    }
}

const SEND_BUFFER: usize = 64 * 1024;
