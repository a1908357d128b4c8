//! Where requests are answered otherwise than by the Linux kernel (6.12; commands 23 and 24 as of 6.17), and why.
//!
//! The list is data, so that documentation is made from it and nothing differs in silence. What concerns identifiers
//! beyond the ABI is marked `Deviation:` where it happens, in the crates below.

use std::fmt;

/// One difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// The command or subject.
    pub subject: &'static str,
    /// What the kernel does.
    pub kernel: &'static str,
    /// What happens here.
    pub here: &'static str,
    /// Why.
    pub reason: &'static str,
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subject,
            kernel,
            here,
            reason,
        } = self;
        write!(
            f,
            "{subject}: the kernel {kernel}; here {here}, because {reason}."
        )
    }
}

const fn row(
    subject: &'static str,
    kernel: &'static str,
    here: &'static str,
    reason: &'static str,
) -> Deviation {
    Deviation {
        subject,
        kernel,
        here,
        reason,
    }
}

/// Every difference that a program can see through the ABI.
pub const DEVIATIONS: &[Deviation] = &[
    row(
        "MIGRATE_ID, children",
        "moves a queued connection request and leaves its new identifier on the old file, where closing that file kills it",
        "the new identifier moves with its request",
        "whoever takes the request must be able to use what it brings",
    ),
    row(
        "MIGRATE_ID, waiters",
        "wakes nobody on the new file when events move there",
        "the new file's readers are woken, once for each event that moved",
        "a reader that waits already would sleep beside its events",
    ),
    row(
        "MIGRATE_ID, old channel",
        "reads a descriptor number from the request",
        "the field is ignored and the channel's token travels beside the request; only a channel of the same program is found",
        "a descriptor number means nothing on the other side of a socket",
    ),
    row(
        "GET_EVENT",
        "waits for an event unless the file is non-blocking",
        "an empty channel answers EAGAIN, always",
        "waiting is done on the channel's own descriptor, and a service must not be held up by a client",
    ),
    row(
        "new identifiers of connection requests",
        "gives them their number when the request arrives",
        "they get it when GET_EVENT hands the request out",
        "until then nobody can name them, and a request that is never taken uses no number",
    ),
    row(
        "requests that end early",
        "copies the whole structure from the caller's memory, whatever stands behind the written bytes",
        "bytes that were not written are EFAULT",
        "there is no memory behind a message",
    ),
    row(
        "responder_resources, initiator_depth",
        "passes values beyond the device's limits, or beyond the request's when accepting, on to the queue pair",
        "CONNECT and ACCEPT answer EINVAL and name both numbers; ACCEPT rejects the request, as for any failure",
        "wrong values are trapped at the call that gives them",
    ),
    row(
        "events of identifiers whose uid is 0",
        "drops every event of an identifier with uid 0, also of one made with it",
        "only the events of connection requests that were not accepted yet are dropped",
        "0 is as good a value as any for those who look events up by number",
    ),
    row(
        "INIT_QP_ATTR without a connection",
        "answers every queue pair state with the attributes for INIT",
        "RTR, RTS and the others are EINVAL",
        "attributes under another state's name would be taken for what they are not",
    ),
    row(
        "ACCEPT that does not fit",
        "rejects the connection for reason 28 when it is asked to accept on the active side or to complete on the passive one, or before there is a response",
        "the call answers EINVAL and the connection stays",
        "a call that comes too early or on the wrong identifier must not cost the connection",
    ),
    row(
        "REJECT of a request of one's own",
        "sends a REJ with the reason given, which the peer cannot match, as it names none of its numbers",
        "the REJ is for reason 4 and carries the GUID by which the peer finds the request",
        "the request would stay in the peer's backlog",
    ),
    row(
        "DISCONNECT while connecting",
        "answers 0 and does nothing",
        "the attempt is withdrawn: the peer gets a REJ, and DISCONNECTED follows, unless it is a request that was not accepted",
        "the program would wait for an end that never comes",
    ),
    row(
        "REP to the side that sent one",
        "answers it with an RTU once the connection is established",
        "it is dropped and counted",
        "only the active side ever says RTU",
    ),
    row(
        "min_rnr_timer",
        "hands out 0, which means 655.36 ms",
        "INIT_QP_ATTR for RTR says 12 (0.64 ms) unless configured otherwise",
        "one early message would stall a connection for two thirds of a second",
    ),
    row(
        "responder_resources, initiator_depth in events",
        "hands out what the peer offers, and puts it into the recipes",
        "events and recipes are clamped to the device's limits, and a response to what was asked for",
        "the queue pair could not be modified with more",
    ),
    row(
        "loopback destinations",
        "takes the first device that has an active port",
        "the device of the loopback interface is taken, where there is one",
        "every interface has a device, the loopback interface too",
    ),
    row(
        "UNREACHABLE",
        "gives up without a word when no answer comes to a request or to a response",
        "the peer is told by a REJ for reason 4",
        "if only its answers were lost it believes itself connected, or holds a request that nobody waits for",
    ),
    row(
        "requests between two listeners",
        "rejects every request that nobody listens for at once, for reason 8",
        "for 10 s after a DESTROY_ID of a listener, requests for its port wait up to half a second for another one to come, unless its program ends",
        "a server that makes its next listener after its last one loses the peer's next request if the peer is a little quicker",
    ),
    row(
        "disconnect requests after TIMEWAIT",
        "ignores them",
        "they are answered as long as the identifier exists",
        "the answer was lost, and the peer would ask for more than a minute",
    ),
    row(
        "messages from other addresses",
        "finds a connection by its comm ids, wherever the message comes from, and takes a request with the GUID and queue pair of another host for the end of that host's connection",
        "a connection hears only its peer's address",
        "everybody who can send a datagram could end the connections of others",
    ),
    row(
        "requests whose path leads elsewhere",
        "accepts a request whose primary path ends at another address than it came from",
        "it is rejected for reason 12 (invalid GID)",
        "data would be sent to somebody who never asked for it",
    ),
    row(
        "requests for a larger path MTU than the link's",
        "leaves it to the queue pair",
        "they are rejected for reason 26 (invalid path MTU)",
        "the connection could only fail later, when the queue pair is modified",
    ),
    row(
        "waits that a peer asks for",
        "waits as long as the peer's message says, up to 2 h 20 min, sixteen times",
        "no such wait is longer than 70 s, unless configured otherwise",
        "a request whose sender is never heard of again would occupy the host for more than a day",
    ),
    row(
        "limits",
        "is limited by memory (ENOMEM)",
        "identifiers, channels, waiting events and connections have configured limits, which answer ENOMEM and name the number",
        "one program must not take the memory of the service for all",
    ),
    row(
        "AF_IB addresses",
        "takes them; on RoCE it ends at RESOLVE_ROUTE, which answers ENODEV",
        "BIND and RESOLVE_ADDR answer EAFNOSUPPORT",
        "native addresses are not resolved yet",
    ),
    row(
        "SET_OPTION, IB_PATH",
        "takes any path record, and fails later if it does not work",
        "a path from a GID that the device does not have, in another partition than 0xffff, to another service than the destination's or with an MTU that the link does not carry is EINVAL",
        "wrong values are trapped at the call that gives them",
    ),
    row(
        "SET_OPTION, ACK_TIMEOUT",
        "takes values of more than 5 bits",
        "they are EINVAL",
        "wrong values are trapped at the call that gives them",
    ),
    row(
        "RESOLVE_ADDR without a route",
        "fails with the reason that the routing table gives",
        "the call succeeds, and ADDR_ERROR has the reason",
        "the routing table is asked beside the service, which answers at once",
    ),
    row(
        "addresses of a BIND that failed",
        "shows the address in QUERY, although nothing is bound",
        "QUERY shows none",
        "the identifier is as it was",
    ),
    row(
        "options of enhanced connection establishment",
        "cuts vendor ids to 24 bits, and ignores options where the message carries none",
        "a larger vendor id, and options with the CONNECT of a datagram identifier or with an RTU, are EINVAL",
        "no option may be accepted and ignored",
    ),
    row(
        "queue pair types of port space IB",
        "takes any number",
        "CREATE_ID answers ENOSYS to others than RC, UC, UD and XRC",
        "an identifier whose queue pair cannot exist would fail at its last step",
    ),
    row(
        "datagram requests that come again",
        "takes a repetition for a new request once the first was answered, and drops a new one with the number of one that waits",
        "repetitions are told by their transaction: they are answered again, and what has another transaction is new",
        "an answer that was lost must not make a second connection, and a program that starts again must be heard",
    ),
    row(
        "addresses that go away",
        "reports nothing when an address is taken from its interface (ADDR_CHANGE is for bonded interfaces that fail over)",
        "every identifier that is bound to it, connections and listeners too, gets ADDR_CHANGE once, and nothing else changes",
        "a server can bind elsewhere before its clients notice",
    ),
    row(
        "neighbours that move",
        "reports UNREACHABLE, in any state, when the hardware address of a resolved neighbour changes",
        "nothing is reported",
        "the connection still works, and the network sees to the rest",
    ),
    row(
        "alternate paths",
        "drops LAP on RoCE",
        "it is answered with an APR that says why not",
        "the peer need not ask sixteen times",
    ),
    row(
        "multicast groups of IPv6",
        "answers 524 (ENOTSUPP) over RoCEv2",
        "they are joined like those of IPv4",
        "the interface can be a member of both",
    ),
    row(
        "addresses that are no multicast group",
        "joins them, as long as they are not zero",
        "JOIN_IP_MCAST and JOIN_MCAST answer EINVAL",
        "nothing would ever arrive",
    ),
    row(
        "port space IPOIB on Ethernet",
        "refuses it on devices whose link is Ethernet: BIND to an address answers EINVAL",
        "identifiers of port space IPOIB work as those of UDP do, with service IDs of their own",
        "a soft device takes every port space, so that programs for either link can be tried",
    ),
    row(
        "SET_OPTION, level 0x6f61726c",
        "answers ENOSYS",
        "an RNR timer, the CM's response timeout and retries, and a deadline for CONNECT can be set for one identifier",
        "the kernel's values leave a program waiting for 74 s, and nothing but the whole host can be configured otherwise",
    ),
    row(
        "credentials",
        "compares the writer's credentials with the opener's at each write (EACCES)",
        "they are compared once, when a program joins the service",
        "a socket's peer does not change",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_reads_as_a_sentence() {
        let mut subjects = std::collections::BTreeSet::new();
        for row in DEVIATIONS {
            assert!(subjects.insert(row.subject), "{} stands twice", row.subject);
            for text in [row.subject, row.kernel, row.here, row.reason] {
                assert!(
                    !text.is_empty() && !text.ends_with('.') && text.trim() == text,
                    "{text:?}"
                );
            }
        }
        assert_eq!(
            DEVIATIONS[3].to_string(),
            "GET_EVENT: the kernel waits for an event unless the file is non-blocking; here an empty channel answers \
             EAGAIN, always, because waiting is done on the channel's own descriptor, and a service must not be held up \
             by a client."
        );
    }
}
