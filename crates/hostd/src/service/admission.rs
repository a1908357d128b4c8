//! Who may connect.

use super::event_loop::Service;
use super::requests;
use oarlock_port::fdpass;
use oarlock_ucm::proto::{NO_ANSWER, Refusal, Reply};
use rustix::net::{SocketFlags, accept_with};
use std::os::fd::OwnedFd;

impl Service {
    /// Takes programs that have connected, up to a bound.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some((_, listener)) = &self.listener else {
                return;
            };
            match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit(socket),
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    // Without a descriptor the program would wait, and we turn in circles, for ever.
                    self.reserve = None;
                    if let Some((_, listener)) = &self.listener
                        && let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC)
                    {
                        self.turn_away(&socket, requests::no_descriptor());
                    }
                    self.reserve = reserve();
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// Takes a program that has connected, unless it is another user's, who must be able neither to fill our table nor to
    /// keep us from leaving, or there is no room.
    fn admit(&mut self, socket: OwnedFd) {
        if let Err(refusal) = requests::check_user(&socket) {
            self.counters.other_users += 1;
            self.turn_away(&socket, refusal);
        } else if self.clients.len() >= self.max_clients {
            self.turn_away(&socket, requests::no_room(self.max_clients));
        } else if let Err((socket, error)) = self.add_client(socket) {
            self.turn_away(&socket, requests::system(&error));
        }
    }

    /// Says why, and closes. The program reads it in place of the answer to its hello.
    fn turn_away(&mut self, socket: &OwnedFd, refusal: Refusal) {
        self.counters.clients_refused += 1;
        let message = Reply::Refused(refusal).encode(NO_ANSWER);
        // If there is no room even for this, the end of the connection says enough.
        let _ = fdpass::send(socket, &message, &[], false);
    }
}

/// A descriptor to give up when there is no other.
pub(super) fn reserve() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

const ACCEPTS_PER_TURN: usize = 64;
