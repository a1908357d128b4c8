//! The network interface of an in-memory host and its addresses, which may come and go.

use super::{MemHost, State};
use crate::MemError;
use rustix::event::{EventfdFlags, eventfd};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

/// One host's interface.
#[derive(Debug)]
pub(super) struct Link {
    /// Whether the interface is there; without it no address of the host can be reached.
    pub(super) present: bool,
    /// Whether packets pass the interface, in and out.
    pub(super) carries: bool,
    /// In the order in which they were added.
    addresses: Vec<IpAddr>,
    /// Told of every change.
    watchers: Vec<Weak<OwnedFd>>,
}

impl Link {
    pub(super) fn new(addresses: Vec<IpAddr>) -> Self {
        Self {
            present: true,
            carries: true,
            addresses,
            watchers: Vec::new(),
        }
    }

    fn tell(&mut self) {
        self.watchers.retain(|watcher| {
            let Some(fd) = watcher.upgrade() else {
                return false;
            };
            // The count cannot run full: it is the number of changes that nobody has taken.
            let _ = rustix::io::write(&*fd, &1u64.to_ne_bytes());
            true
        });
    }
}

/// Addresses and interface, which a test may take away and give back while everything runs.
impl MemHost {
    /// The host's addresses, in the order in which they were added, whether the interface is there or not.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.link(|link| link.addresses.clone())
    }

    /// Gives the host one more address. One that it has already stays where it is.
    ///
    /// # Errors
    /// `AddressTaken`: another host on the wire has it.
    pub fn add_address(&self, address: IpAddr) -> Result<(), MemError> {
        let address = address.to_canonical();
        let number = self.host.number;
        let mut wire = self.wire.lock();
        match wire.hosts.insert(address, number) {
            Some(owner) if owner == number => return Ok(()),
            Some(owner) => {
                wire.hosts.insert(address, owner);
                return Err(MemError::AddressTaken(address));
            }
            None => {}
        }
        let link = link_of(&mut wire, number);
        link.addresses.push(address);
        link.tell();
        Ok(())
    }

    /// Takes an address from the host; whether it had it. Nothing reaches the host there any more, and nothing leaves
    /// from there.
    pub fn remove_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let number = self.host.number;
        let mut wire = self.wire.lock();
        if wire.hosts.get(&address) != Some(&number) {
            return false;
        }
        wire.hosts.remove(&address);
        let link = link_of(&mut wire, number);
        link.addresses.retain(|own| *own != address);
        link.tell();
        true
    }

    /// Whether the host's interface is there.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.link(|link| link.present)
    }

    /// Takes the interface away, with every address on it; slots and memberships stay, but nothing passes.
    pub fn remove_device(&self) {
        self.set_present(false);
    }

    /// Gives the interface back, with the addresses that the host has.
    pub fn restore_device(&self) {
        self.set_present(true);
    }

    /// Whether the link is up.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.link(|link| link.carries)
    }

    /// Pulls the cable, or puts it back: the interface and its addresses stay, but what is sent to them or from them is lost,
    /// within the host as well.
    pub fn set_link_up(&self, up: bool) {
        self.link(|link| {
            if link.carries != up {
                link.carries = up;
                link.tell();
            }
        });
    }

    /// A descriptor that tells of changes to the addresses and the interface.
    ///
    /// # Errors
    /// `Descriptors`: no event descriptor to be had.
    pub fn changes(&self) -> Result<MemChanges, MemError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| MemError::Descriptors(errno.raw_os_error()))?;
        let fd = Arc::new(fd);
        self.link(|link| link.watchers.push(Arc::downgrade(&fd)));
        Ok(MemChanges { fd })
    }

    fn set_present(&self, present: bool) {
        self.link(|link| {
            if link.present != present {
                link.present = present;
                link.tell();
            }
        });
    }

    fn link<T>(&self, look: impl FnOnce(&mut Link) -> T) -> T {
        look(link_of(&mut self.wire.lock(), self.host.number))
    }
}

fn link_of(wire: &mut State, host: u64) -> &mut Link {
    wire.links
        .get_mut(&host)
        .expect("a host has its link as long as there is a handle of it")
}

/// A descriptor that becomes readable when a [`MemHost`]'s addresses or interface change.
#[derive(Debug)]
pub struct MemChanges {
    fd: Arc<OwnedFd>,
}

impl MemChanges {
    /// Takes the news off the descriptor; whether there was any.
    pub fn take(&self) -> bool {
        let mut count = [0; 8];
        rustix::io::read(&*self.fd, &mut count).is_ok()
    }
}

impl AsFd for MemChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
