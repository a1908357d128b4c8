//! TIMEWAIT: the connection is over, but packets and a repeated DREQ may still be under way.

use oarlock_wire::units::IbTimeout;

use super::{Cx, Peer, State, cm_wait};
use crate::Event;

/// Enters TIMEWAIT. The connection leaves the index at once, so that its queue pair can be used again.
pub(crate) fn enter(peer: Option<Peer>, drep_data: Box<[u8]>, cx: &mut Cx<'_>) -> State {
    let length = cx
        .config
        .timewait
        .unwrap_or_else(|| cx.bounded(cm_wait(cx.base.ack_timeout)));
    State::Timewait {
        peer,
        drep_data,
        until: cx.now + length,
    }
}

/// The time is over.
pub(crate) fn exit(peer: Option<Peer>, cx: &mut Cx<'_>) -> State {
    cx.out.event(Event::TimewaitExit { id: cx.id() });
    State::Idle { peer }
}

/// The acknowledgement timeout of a queue pair: how long until an unanswered packet must have been lost, from the delay
/// of the remote CA and the packet life time of the path.
///
/// Twice the packet life time plus the delay, rounded to the encoding as Linux does: the larger of both, and one more
/// when they are close to each other.
///
/// ```
/// # use oarlock_cm::ack_timeout;
/// # use oarlock_wire::units::IbTimeout;
/// let encoded = |n| IbTimeout::new(n).unwrap();
/// // RoCE: packet life time 16, CA delay 15.
/// assert_eq!(ack_timeout(encoded(15), encoded(16)), encoded(17));
/// ```
#[must_use]
pub fn ack_timeout(ca_ack_delay: IbTimeout, packet_life_time: IbTimeout) -> IbTimeout {
    let delay = ca_ack_delay.get();
    let round_trip = packet_life_time.get() + 1;
    let sum = if round_trip >= delay {
        round_trip + u8::from(delay >= round_trip - 1)
    } else {
        delay + u8::from(round_trip >= delay - 1)
    };
    IbTimeout::new(sum).unwrap_or(IbTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(n: u8) -> IbTimeout {
        IbTimeout::new(n).expect("5 bits")
    }

    #[test]
    fn ack_timeouts_add_up_in_the_encoding() {
        for (delay, life, sum) in [
            (15, 16, 17),
            (15, 18, 19),
            (17, 16, 18),
            (16, 16, 18),
            (0, 0, 2),
            (20, 4, 20),
            (20, 18, 21),
            (31, 31, 31),
            (31, 30, 31),
        ] {
            assert_eq!(
                ack_timeout(encoded(delay), encoded(life)),
                encoded(sum),
                "delay {delay}, life time {life}"
            );
        }
    }
}
