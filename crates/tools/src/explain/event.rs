//! The events of the RDMA CM.

use super::table::{Entry, Table};

/// `enum rdma_cm_event_type`.
pub(super) const TABLE: Table = Table {
    kind: "event",
    prefix: "RDMA_CM_EVENT_",
    entries: &[
        entry(
            0,
            "RDMA_CM_EVENT_ADDR_RESOLVED",
            "the peer's address leads to a device: local address, device and port are known now",
            "go on: make the queue pair, resolve the route",
        ),
        entry(
            1,
            "RDMA_CM_EVENT_ADDR_ERROR",
            "the peer's address was not resolved; the status is a negative errno (-110 no neighbour answered in time, -19 no device on the way, -113 no route to the host). Of a UD connection with -22: the peer's Q_Key is not that of the port space",
            "check route and neighbour (`ip route get`, `ip neigh`), and that an RDMA device stands on that interface; the identifier is back in state ADDR_BOUND, so resolve_addr may be called again",
        ),
        entry(
            2,
            "RDMA_CM_EVENT_ROUTE_RESOLVED",
            "the path to the peer is known",
            "go on: connect",
        ),
        entry(
            3,
            "RDMA_CM_EVENT_ROUTE_ERROR",
            "no path to the peer was found; the status is a negative errno",
            "on InfiniBand look at the subnet manager; on RoCE at the interface's MTU and state; resolve_route may be called again",
        ),
        entry(
            4,
            "RDMA_CM_EVENT_CONNECT_REQUEST",
            "a peer asks a listening identifier for a connection; the event brings a new identifier for it",
            "make a queue pair on the new identifier and accept, or reject; destroying it rejects. Responder_resources and initiator_depth of accept must not exceed the event's",
        ),
        entry(
            5,
            "RDMA_CM_EVENT_CONNECT_RESPONSE",
            "the peer has accepted, and the identifier has no queue pair of its own",
            "bring your queue pair to RTS (rdma_init_qp_attr gives the attributes), then call rdma_establish",
        ),
        entry(
            6,
            "RDMA_CM_EVENT_CONNECT_ERROR",
            "the connection failed on this side while it was made; the status is a negative errno",
            "most often the queue pair could not be moved to RTR or RTS: check its state and the parameters; then connect again with a new identifier",
        ),
        entry(
            7,
            "RDMA_CM_EVENT_UNREACHABLE",
            "the peer does not answer (status -110), or, of a UD identifier, refuses (positive: the SIDR status)",
            "is the peer's program running, and UDP port 4791 open both ways? A full backlog drops requests too: raise it (`oarlock ps` counts overflows). For a positive status see `oarlock explain sidr`",
        ),
        entry(
            8,
            "RDMA_CM_EVENT_REJECTED",
            "the peer refused the connection; the status is the positive reason of its REJ",
            "see `oarlock explain reject` with the status; the private data may say more",
        ),
        entry(
            9,
            "RDMA_CM_EVENT_ESTABLISHED",
            "the connection is up. Of a UD identifier: the peer's queue pair, Q_Key and address are known; the accepting side of UD gets no event",
            "nothing is wrong: send",
        ),
        entry(
            10,
            "RDMA_CM_EVENT_DISCONNECTED",
            "the connection is over, by either side; status -110 means that the peer did not answer the disconnection",
            "call disconnect, which a second time is harmless, so that posted work comes back, then destroy the identifier. If it was not expected: the peer's program or host has ended",
        ),
        entry(
            11,
            "RDMA_CM_EVENT_DEVICE_REMOVAL",
            "the identifier's device has gone; it comes once for each identifier, listeners too",
            "destroy the identifier: everything else fails with ENXIO. A listener must be made anew on another address or device",
        ),
        entry(
            12,
            "RDMA_CM_EVENT_MULTICAST_JOIN",
            "the identifier has joined the multicast group; the event brings the group's address, queue pair number and Q_Key",
            "go on: attach the queue pair (librdmacm has done so), make an address handle, send",
        ),
        entry(
            13,
            "RDMA_CM_EVENT_MULTICAST_ERROR",
            "joining the multicast group failed, or the membership was lost; the status is a negative errno",
            "check the group's address, the interface it leads to, and the limit of memberships (net.ipv4.igmp_max_memberships); leave the group, then join again",
        ),
        entry(
            14,
            "RDMA_CM_EVENT_ADDR_CHANGE",
            "the address that the identifier is bound to has left its interface, or moved to another port of a bond",
            "the connection may still work, but its peer will not reach this host by that address for long: disconnect and connect anew; make listeners anew",
        ),
        entry(
            15,
            "RDMA_CM_EVENT_TIMEWAIT_EXIT",
            "no packet of the ended connection is left in the network: its queue pair may be used again",
            "reuse or destroy the queue pair; programs that make a new one for each connection can ignore the event",
        ),
        entry(
            16,
            "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
            "the service that rdma_resolve_addrinfo asked for was found",
            "take the result with rdma_query_addrinfo",
        ),
        entry(
            17,
            "RDMA_CM_EVENT_ADDRINFO_ERROR",
            "the service that rdma_resolve_addrinfo asked for was not found; the status is a negative errno",
            "check name and service; InfiniBand service records exist on InfiniBand links only",
        ),
        entry(
            18,
            "RDMA_CM_EVENT_USER",
            "a program has put an event of its own into the channel, with a status and a value of 64 bits",
            "its meaning is that program's: see who calls rdma_write_cm_event",
        ),
        entry(
            19,
            "RDMA_CM_EVENT_INTERNAL",
            "the library has put an event for itself into the channel; no program should see it",
            "acknowledge and ignore it; the program may be linked to a library older than the one that made the event",
        ),
    ],
};

const fn entry(
    code: i64,
    name: &'static str,
    meaning: &'static str,
    remedy: &'static str,
) -> Entry {
    Entry {
        code,
        name,
        aliases: &[],
        meaning,
        remedy,
        source: "Linux include/uapi/rdma/rdma_user_cm.h, enum rdma_cm_event_type; rdma_get_cm_event(3)",
    }
}
