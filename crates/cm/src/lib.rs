//! The InfiniBand communication-management protocol (IBA Vol. 1 ch. 12) for connections and for the resolution of datagram
//! services, as a sans-IO state machine. Where the specification leaves a choice it behaves as the CM of Linux does.
//!
//! ```text
//!     active side                                        passive side
//!                                                        listen(service_id)
//!     connect()        REQ_SENT      --- REQ -->         REQ_RCVD        Event::ReqReceived
//!                                                                        accept()
//!     Event::RepReceived   REP_RCVD  <-- REP ---         REP_SENT
//!     establish()      ESTABLISHED   --- RTU -->         ESTABLISHED     Event::RtuReceived
//!        ...
//!     disconnect()     DREQ_SENT     --- DREQ -->        DREQ_RCVD       Event::DreqReceived
//!     Event::DrepReceived  TIMEWAIT  <-- DREP ---        TIMEWAIT        reply_disconnect()
//!     Event::TimewaitExit  IDLE                          IDLE            Event::TimewaitExit
//!     destroy()                                                          destroy()
//! ```
//!
//! On an established connection either side can load an alternate path:
//!
//! ```text
//!     load_alternate_path()  LAP_SENT    --- LAP -->     LAP_RCVD        Event::LapReceived
//!     Event::AprReceived     LAP_IDLE    <-- APR ---     LAP_IDLE        answer_alternate_path()
//! ```
//!
//! And a service ID becomes a queue pair for datagrams (SIDR); the id of such a resolution is a [`ConnId`] too:
//!
//! ```text
//!     sidr_request()     SIDR_REQ_SENT  --- SIDR_REQ -->  SIDR_REQ_RCVD  Event::SidrReqReceived
//!     Event::SidrRepReceived  SIDR_REP_RCVD  <-- SIDR_REP --- SIDR_REP_SENT  sidr_reply()
//! ```
//!
//! A REQ, REP or LAP that takes long to decide on can be answered with an MRA ([`Cm::send_mra`]): the peer waits longer.
//!
//! # The contract
//!
//! 1. Inputs are methods: [`Cm::handle_mad`] for the network, [`Cm::handle_timeout`] for time, plain verbs (`connect`,
//!    `accept`, `reject`, `disconnect`, ...) for the caller. Each takes `now`. None does I/O, reads a clock, or asks the
//!    system for randomness.
//! 2. Outputs are polled: [`Cm::poll_transmit`], [`Cm::poll_event`], [`Cm::poll_timeout`], in that order.
//! 3. **After every input, poll until there is nothing left but the next deadline; then wait. One input, one drain.**
//! 4. Late, early and repeated calls of `handle_timeout` are harmless.
//!
//! # Every state and every input
//!
//! For each pair there is one of four answers: advance; answer again without advancing; drop and count a named reason
//! ([`DropReason`]); tell the caller that the call is misuse ([`Error::WrongState`]). The [`table`] module holds them as
//! data, and the tests execute every row.
//!
//! The drawings and the table are in `docs/connection-states.md`. A connection lives until [`Cm::destroy`], whatever happens to it: one that was rejected or timed out rests in IDLE.
//!
//! # Who is heard
//!
//! Nobody is heard who sends from a multicast address, or from none, or to a group ([`DropReason::NotUnicast`]).
//!
//! A connection hears only the address that it began with: the one that its REQ went to or came from. Whatever names its
//! comm ids and comes from elsewhere is dropped and counted ([`DropReason::ForeignAddress`]). A REQ or REP makes an older
//! connection of the same queue pair stale only if it comes from that connection's peer, and comm ids are random, so that
//! they tell nothing about those of others. Whoever can send with the peer's address *and* has seen the comm ids is the
//! peer, as far as this protocol can know: it authenticates nobody.
//!
//! # Limits
//!
//! A peer can grow the number of half-open connections and unanswered resolutions ([`Config::max_half_open`]) and of
//! connections and resolutions in all ([`Config::max_connections`]). Beyond the limit a REQ or SIDR_REQ is dropped and counted;
//! the peer repeats it. Besides, a connection keeps the last LAP of its peer. Nothing else that a peer sends is stored, and no
//! wait that it asks for is longer than [`Config::longest_wait`]; a second MRA for the same message does not extend it.
//!
//! # What it never does
//!
//! It does not check the queue pair type, the private data, the backlog, or where an alternate path leads: the RDMA CM above
//! does. It never fails over by itself.
//!
//! # Where to read next
//!
//! [`Cm`], [`Event`], [`StateName`].
//!
//! # Example
//!
//! Both sides in one place; the "network" is a pair of loops.
//!
//! ```
//! use oarlock_cm::{AcceptParams, Cm, Config, ConnectParams, Event, Seed, StateName};
//! use oarlock_wire::units::{AddressVector, Gid, Guid, Qpn, ServiceId};
//! use oarlock_wire::Time;
//!
//! let now = Time::ZERO;
//! let mut active = Cm::new(Config { ca_guid: Guid(1), ..Config::default() }, Seed([1; 32]));
//! let mut passive = Cm::new(Config { ca_guid: Guid(2), ..Config::default() }, Seed([2; 32]));
//! let av = AddressVector::new(Gid::from_ip([10, 0, 0, 1].into()), Gid::from_ip([10, 0, 0, 2].into()));
//! let deliver = |from: &mut Cm, to: &mut Cm| {
//!     while let Some(transmit) = from.poll_transmit() {
//!         to.handle_mad(now, &transmit.av.reversed(), &transmit.mad);
//!     }
//! };
//!
//! passive.listen(ServiceId(0x1061D2F))?;
//! let psn = active.random_psn();
//! let connecting = active.connect(now, ConnectParams::new(av, ServiceId(0x1061D2F), Qpn::truncate(0x11), psn))?;
//! deliver(&mut active, &mut passive);
//!
//! let Some(Event::ReqReceived { id: accepted, .. }) = passive.poll_event() else { panic!("no request") };
//! let psn = passive.random_psn();
//! passive.accept(now, accepted, AcceptParams::new(Qpn::truncate(0x12), psn))?;
//! deliver(&mut passive, &mut active);
//!
//! let Some(Event::RepReceived { id, rep }) = active.poll_event() else { panic!("no reply") };
//! assert_eq!((id, rep.local_qpn.get()), (connecting, 0x12));
//! active.establish(now, id, &[])?;
//! deliver(&mut active, &mut passive);
//!
//! assert!(matches!(passive.poll_event(), Some(Event::RtuReceived { .. })));
//! assert_eq!(passive.state(accepted), Some(StateName::Established));
//! # Ok::<(), oarlock_cm::Error>(())
//! ```
#![forbid(unsafe_code)]

mod cm;
mod conn;
mod counters;
mod error;
mod event;
mod index;
mod output;
mod params;
mod random;
pub mod table;
#[cfg(test)]
mod tests;
mod timers;

pub use cm::{Cm, ConnId, ListenerId};
pub use conn::{LapState, StateName, ack_timeout};
pub use counters::{Counters, DropReason, MessageName};
pub use error::Error;
pub use event::{Event, Transmit};
pub use params::{
    AcceptParams, AlternatePathParams, Config, ConnectParams, Failover, Seed, SidrParams,
    SidrReplyParams,
};
