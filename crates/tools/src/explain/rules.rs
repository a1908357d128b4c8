//! The rules behind the error numbers, as data: what the Linux RDMA CM checks, and what this stack checks beside it.

use super::calls::{ANY, Rule};

const CMA: &str = "Linux drivers/infiniband/core/cma.c";
const UCMA: &str = "Linux drivers/infiniband/core/ucma.c";
const HERE: &str = "oarlock's own rule; see its list of deviations (crates/ucm/src/deviations.rs)";
const CM: &str = "IBA Vol. 1 ch. 12; Linux drivers/infiniband/core/cm.c";

/// Creating, binding, resolving, options.
pub(super) const ADDRESSES: &[Rule] = &[
    rule(
        &["create_id"],
        EINVAL,
        &["UnknownPortSpace"],
        "the port space is none of IPOIB (0x0002), TCP (0x0106), UDP (0x0111), IB (0x013F)",
        UCMA,
    ),
    rule(
        &["create_id"],
        ENOMEM,
        &["TooManyIds"],
        "as many identifiers exist as the host allows",
        HERE,
    ),
    rule(
        &["create_event_channel"],
        ENOMEM,
        &["TooManyChannels"],
        "as many event channels exist as the host allows",
        HERE,
    ),
    rule(
        &["create_event_channel"],
        ENODEV,
        &[],
        "of the kernel's library: this machine has no RDMA device at all, or the module rdma_ucm is not loaded",
        "rdma_create_event_channel(3)",
    ),
    rule(
        &["create_event_channel"],
        EPERM,
        &[],
        "of the kernel's library: the kernel's ABI is not one that it speaks",
        "rdma-core librdmacm",
    ),
    rule(
        &["bind_addr"],
        EINVAL,
        &["WrongState"],
        "the identifier is not in state IDLE: it is bound, resolved, listening or connected already",
        CMA,
    ),
    rule(
        &["bind_addr", "resolve_addr", "join_multicast"],
        EAFNOSUPPORT,
        &["Address"],
        "the address is neither IPv4 nor IPv6 (nor, on an InfiniBand link, AF_IB)",
        CMA,
    ),
    rule(
        &["bind_addr", "resolve_addr"],
        EINVAL,
        &["LinkLocalWithoutScope"],
        "an IPv6 link-local address comes without its interface (fe80::1%eth0)",
        CMA,
    ),
    rule(
        &["bind_addr", "resolve_addr"],
        EADDRNOTAVAIL,
        &["AddressNotLocal"],
        "the local address belongs to no interface of this host, or to another network namespace",
        CMA,
    ),
    rule(
        &["bind_addr", "resolve_addr"],
        EADDRNOTAVAIL,
        &["MappedAddress"],
        "the address is an IPv4 one in IPv6 clothing (::ffff:a.b.c.d): give the IPv4 address",
        HERE,
    ),
    rule(
        &["bind_addr", "resolve_addr", "listen"],
        ENODEV,
        &["NoDeviceForAddress", "NoDevices"],
        "the address is local, and no RDMA device stands on its interface; or there is no device at all",
        CMA,
    ),
    rule(
        &["bind_addr", "resolve_addr", "listen"],
        EACCES,
        &["PrivilegedPort"],
        "the port is below 1024 (net.ipv4.ip_unprivileged_port_start), and CAP_NET_BIND_SERVICE is missing",
        CMA,
    ),
    rule(
        &["bind_addr", "resolve_addr", "listen"],
        EADDRINUSE,
        &["PortInUse"],
        "another identifier of the port space is bound to the very address and port, and not both have REUSEADDR set",
        CMA,
    ),
    rule(
        &["bind_addr", "resolve_addr", "listen"],
        EADDRNOTAVAIL,
        &["PortCovered"],
        "the port is bound, and one of the two addresses stands for every address; loopback addresses do, too",
        CMA,
    ),
    rule(
        &["bind_addr", "resolve_addr", "listen"],
        EADDRNOTAVAIL,
        &["NoEphemeralPort"],
        "port 0 was asked for, and every port of net.ipv4.ip_local_port_range is taken",
        CMA,
    ),
    rule(
        &["bind_addr", "resolve_addr"],
        EPROTONOSUPPORT,
        &[],
        "the service ID of an AF_IB address does not belong to the identifier's port space",
        CMA,
    ),
    rule(
        &["resolve_addr"],
        EINVAL,
        &["WrongState"],
        "the identifier is neither in state IDLE nor in ADDR_BOUND",
        CMA,
    ),
    rule(
        &["resolve_addr"],
        EINVAL,
        &["FamilyMismatch"],
        "local address and destination are of different families",
        CMA,
    ),
    rule(
        &["resolve_addr"],
        EINVAL,
        &["ScopeMismatch"],
        "the identifier is bound to one interface, and the destination names another",
        CMA,
    ),
    rule(
        &["resolve_addr"],
        ENETUNREACH,
        &[],
        "no route leads to the destination (from the call, or as status -101 of ADDR_ERROR)",
        "Linux drivers/infiniband/core/addr.c",
    ),
    rule(
        &["resolve_addr"],
        EHOSTUNREACH,
        &[],
        "the route or the neighbour says that the host cannot be reached (from the call, or as status -113 of ADDR_ERROR)",
        "Linux drivers/infiniband/core/addr.c",
    ),
    rule(
        &["resolve_addr"],
        ETIMEDOUT,
        &[],
        "no neighbour answered within the timeout (as status -110 of ADDR_ERROR)",
        "Linux drivers/infiniband/core/addr.c",
    ),
    rule(
        &["resolve_addr", "resolve_route"],
        EINVAL,
        &["ZeroTimeout", "TimeoutOutOfRange"],
        "the timeout is zero, or does not fit a 32-bit number of milliseconds",
        UCMA,
    ),
    rule(
        &["resolve_route"],
        EINVAL,
        &["WrongState"],
        "the identifier is not in state ADDR_RESOLVED: wait for ADDR_RESOLVED first",
        CMA,
    ),
    rule(
        &["resolve_route"],
        EINVAL,
        &["LinkTooSmall"],
        "the interface's MTU carries not even the smallest path MTU: 352 bytes are the least",
        CMA,
    ),
    rule(
        &["resolve_route"],
        ENODEV,
        &[],
        "the network interface of the resolved address has gone",
        CMA,
    ),
    rule(
        &["set_option"],
        ENOSYS,
        &["UnknownOption"],
        "there is no option of that level and name, or it is not implemented",
        UCMA,
    ),
    rule(
        &["set_option"],
        EINVAL,
        &["OptionLength", "OptionTooLong"],
        "the value has another length than the option (TOS and ACK_TIMEOUT 1 byte, REUSEADDR and AFONLY 4, IB_PATH a multiple of 72)",
        UCMA,
    ),
    rule(
        &["set_option"],
        EFAULT,
        &["OptionValue"],
        "the option's value did not come along with the request",
        UCMA,
    ),
    rule(
        &["set_option"],
        EINVAL,
        &["OptionState"],
        "the option cannot change in this state: REUSEADDR not while listening, AFONLY only in IDLE or ADDR_BOUND, IB_PATH only in ADDR_RESOLVED",
        CMA,
    ),
    rule(
        &["set_option"],
        EINVAL,
        &["OptionRange"],
        "the value is out of range: ACK_TIMEOUT 0 to 31, CM retries 0 to 15",
        CMA,
    ),
    rule(
        &["set_option"],
        EINVAL,
        &["PathRecords", "NoPrimaryPath"],
        "IB_PATH: the value is no whole number of records of 72 bytes, or none of them has exactly the flags GMP, PRIMARY and BIDIRECTIONAL (0x2B)",
        UCMA,
    ),
    rule(
        &["set_option"],
        EINVAL,
        &["PathSource", "PathPKey", "PathServiceId", "PathMtu"],
        "IB_PATH: the path begins at an address, lies in a partition, leads to a service ID or has an MTU that is not the identifier's",
        HERE,
    ),
    rule(
        &["create_id"],
        ENOSYS,
        &["QpTypeNotImplemented"],
        "port space IB with a queue pair type other than RC, UC and UD",
        HERE,
    ),
    rule(
        &["query"],
        ENOSYS,
        &["UnknownQuery"],
        "there is no such query; addresses (0), paths (1) and GIDs (2) can be asked for",
        UCMA,
    ),
    rule(
        &["query", "resolve_addrinfo"],
        ENODATA,
        &["NoServices"],
        "no service record was resolved for the identifier",
        UCMA,
    ),
    rule(
        &["resolve_addrinfo"],
        EBUSY,
        &[],
        "a resolution is under way on the identifier",
        "rdma-core librdmacm",
    ),
    rule(
        &["resolve_addrinfo"],
        EOPNOTSUPP,
        &["NoServiceRecords"],
        "service records exist on InfiniBand links only, where a subnet administrator resolves them",
        UCMA,
    ),
    rule(
        &["resolve_addrinfo"],
        EINVAL,
        &["ServiceState"],
        "the identifier is not in state ADDR_RESOLVED",
        UCMA,
    ),
    rule(
        &["resolve_addrinfo"],
        EOPNOTSUPP,
        &[],
        "the hints ask for name service and service records at once, or for service records of a host name",
        "rdma-core librdmacm",
    ),
    rule(
        &["resolve_addrinfo"],
        ENOENT,
        &[],
        "nothing was resolved yet",
        "rdma-core librdmacm",
    ),
];

/// Connecting, accepting, disconnecting.
pub(super) const CONNECTIONS: &[Rule] = &[
    rule(
        &["listen"],
        EINVAL,
        &["WrongState"],
        "the identifier is neither in state IDLE nor in ADDR_BOUND; it listens already, or has resolved an address",
        CMA,
    ),
    rule(
        &["listen"],
        EBUSY,
        &["ServiceIdInUse"],
        "the service ID of the port is registered with the connection manager already",
        CMA,
    ),
    rule(
        &["connect"],
        EINVAL,
        &["WrongState"],
        "the identifier is not in state ROUTE_RESOLVED: wait for ROUTE_RESOLVED first; a used identifier cannot connect again",
        CMA,
    ),
    rule(
        &["connect"],
        EINVAL,
        &["NoParameters"],
        "the parameters are marked as not valid",
        UCMA,
    ),
    rule(
        &["connect", "accept"],
        EINVAL,
        &["ResponderResources", "MoreThanDevice", "MoreThanOffered"],
        "responder_resources exceeds the device's max_qp_rd_atom, or, when accepting, the value of the request's event",
        "rdma_connect(3), rdma_accept(3); oarlock refuses at the call what the kernel lets fail later",
    ),
    rule(
        &["connect", "accept"],
        EINVAL,
        &["InitiatorDepth"],
        "initiator_depth exceeds the device's max_qp_init_rd_atom, or, when accepting, the value of the request's event",
        "rdma_connect(3), rdma_accept(3); oarlock refuses at the call what the kernel lets fail later",
    ),
    rule(
        &["connect"],
        EINVAL,
        &["PrivateDataTooLong"],
        "there are more than 56 bytes of private data (92, of which the IP CM header takes 36; of a UD identifier 180)",
        "IBA Annex A11; Linux drivers/infiniband/core/cma.c",
    ),
    rule(
        &["accept"],
        EINVAL,
        &["PrivateDataTooLong"],
        "there are more than 196 bytes of private data (of a UD identifier 136)",
        CM,
    ),
    rule(
        &["reject"],
        EINVAL,
        &["PrivateDataTooLong"],
        "there are more than 148 bytes of private data (of a UD identifier 136)",
        CM,
    ),
    rule(
        &["connect", "accept"],
        EINVAL,
        &["NoQueuePair"],
        "the identifier has no queue pair, and the parameters name none",
        "rdma_connect(3)",
    ),
    rule(
        &["connect"],
        ENOMEM,
        &["TooManyConnections"],
        "the connection manager holds as many connections as it may",
        HERE,
    ),
    rule(
        &["connect"],
        ECONNREFUSED,
        &["Rejected"],
        "the peer rejected (a synchronous identifier; others see REJECTED with the reason in its status)",
        "rdma_connect(3)",
    ),
    rule(
        &["connect", "accept"],
        ETIMEDOUT,
        &["Unreachable", "TimedOut"],
        "the peer does not answer (as status -110 of UNREACHABLE, or from a synchronous identifier): with the default timers after 16 messages, 74 s",
        CM,
    ),
    rule(
        &["connect", "accept"],
        ECONNRESET,
        &["DisconnectedEarly"],
        "the connection ended before it was established (a synchronous identifier)",
        "oarlock-rdmacm",
    ),
    rule(
        &["connect", "accept"],
        EINVAL,
        &["EceInRtu", "EceNotCarried", "EceVendorId"],
        "vendor options (ECE) are given where the message carries none (an RTU, a SIDR_REQ), or the vendor ID has more than 24 bits",
        HERE,
    ),
    rule(
        &["load_alternate_path"],
        EINVAL,
        &["AlternatePathPending"],
        "an alternate path is being agreed on already",
        CM,
    ),
    rule(
        &["accept"],
        EINVAL,
        &["WrongState"],
        "the identifier is not the one that a CONNECT_REQUEST brought, or was accepted or rejected already",
        CMA,
    ),
    rule(
        &["accept", "reject"],
        EINVAL,
        &["ConnectionState"],
        "the request is not pending any more: the peer has given up, or was answered already",
        CM,
    ),
    rule(
        &["reject", "disconnect", "notify"],
        EINVAL,
        &["NoConnection"],
        "the identifier has no connection, nor one in the making",
        CMA,
    ),
    rule(
        &["reject"],
        EINVAL,
        &["RejectReason", "ReasonNotForPrograms"],
        "the reason is neither 28 (consumer defined) nor 35 (vendor option not supported): the others are the protocol's own",
        UCMA,
    ),
    rule(
        &["disconnect"],
        ETIMEDOUT,
        &[],
        "the peer did not confirm the end (as status -110 of DISCONNECTED); the connection is over all the same",
        CM,
    ),
    rule(
        &["establish"],
        EINVAL,
        &["WrongState", "ConnectionState"],
        "no reply of the peer waits for it (CONNECT_RESPONSE)",
        CM,
    ),
    rule(
        &["establish"],
        EINVAL,
        &["QueuePairExists"],
        "the identifier has a queue pair of its own, and establishes by itself",
        "rdma_establish(3)",
    ),
    rule(
        &["init_qp_attr"],
        EINVAL,
        &["QueuePairExists", "OtherDevice", "NoDevice", "OtherQpType"],
        "create_qp: there is a queue pair already, the protection domain is of another device, the queue pair is of another type, or the identifier has no device yet",
        "rdma_create_qp(3)",
    ),
    rule(
        &["init_qp_attr"],
        EINVAL,
        &["ListenerHasNoQueuePair"],
        "the identifier listens, which no queue pair does",
        UCMA,
    ),
    rule(
        &["init_qp_attr"],
        EINVAL,
        &["QpState", "NoRecipe"],
        "the state asked for is not INIT, RTR or RTS",
        CM,
    ),
    rule(
        &["init_qp_attr"],
        EINVAL,
        &["ConnectionState"],
        "the attributes are not known yet: RTR and RTS need the peer's request or reply",
        CM,
    ),
    rule(
        &["notify"],
        EINVAL,
        &["AsyncEvent"],
        "the event is neither communication established (4) nor path migrated (6)",
        UCMA,
    ),
    rule(
        &["notify"],
        EISCONN,
        &["AlreadyEstablished"],
        "the connection is established already",
        CM,
    ),
];

/// UD and multicast.
pub(super) const DATAGRAMS: &[Rule] = &[
    rule(
        &["join_multicast"],
        EINVAL,
        &["NotDatagram"],
        "the identifier is not of a datagram port space (udp, ipoib, or ib with UD)",
        CMA,
    ),
    rule(
        &["join_multicast"],
        EINVAL,
        &["NotMulticast"],
        "the address is no multicast group",
        CMA,
    ),
    rule(
        &["join_multicast"],
        EINVAL,
        &["JoinFlags"],
        "the flags are neither those of a full member (0) nor of one that only sends (1)",
        UCMA,
    ),
    rule(
        &["join_multicast"],
        EADDRNOTAVAIL,
        &["NoSourceForGroup"],
        "the identifier's device has no address of the group's family",
        HERE,
    ),
    rule(
        &["join_multicast"],
        ENOMEM,
        &["TooManyMulticasts"],
        "as many memberships exist as the host allows",
        HERE,
    ),
    rule(
        &["join_multicast"],
        ETIMEDOUT,
        &["JoinFailed"],
        "the group was not joined (as negative status of MULTICAST_ERROR, whatever the number)",
        CMA,
    ),
    rule(
        &["leave_multicast"],
        EINVAL,
        &["OtherFilesJoin"],
        "the membership is of an identifier on another event channel",
        UCMA,
    ),
    rule(
        &["establish", "disconnect", "notify"],
        EINVAL,
        &["NotConnected"],
        "the identifier is for UD queue pairs, which are not connected",
        CMA,
    ),
    rule(
        &["connect", "accept"],
        EINVAL,
        &["QKeyWithoutDatagrams", "QKeyMismatch"],
        "a Q_Key is given for a connected queue pair, or another one than the identifier has already",
        CMA,
    ),
    rule(
        &["connect"],
        ECONNREFUSED,
        &["ServiceRefused"],
        "UD: the peer has no service there (a synchronous identifier; others see UNREACHABLE with the SIDR status)",
        "oarlock-rdmacm",
    ),
    rule(
        &["join_multicast"],
        EINVAL,
        &["WrongState"],
        "the identifier is not of a datagram port space, has no device, or is in another state than ADDR_BOUND or ADDR_RESOLVED",
        CMA,
    ),
    rule(
        &["join_multicast"],
        ENOTSUPP,
        &[],
        "of the kernel: the group is an IPv6 one on RoCEv2",
        CMA,
    ),
    rule(
        &["send_to"],
        EMSGSIZE,
        &["MessageTooLong"],
        "the message is longer than one packet of the path carries, and a datagram is one packet",
        "oarlock-rdmacm",
    ),
    rule(
        &["receive"],
        EIO,
        &["ReceiveFailed"],
        "the queue pair has failed",
        "oarlock-rdmacm",
    ),
    rule(
        &["leave_multicast"],
        EADDRNOTAVAIL,
        &[],
        "of the C library: the identifier has not joined that group",
        "rdma_leave_multicast(3)",
    ),
    rule(
        &["leave_multicast"],
        ENOENT,
        &["UnknownJoin", "UnknownMulticast"],
        "there is no such membership (any more)",
        UCMA,
    ),
    rule(
        &["connect"],
        EINVAL,
        &[],
        "UD: the peer's Q_Key is not that of the port space (as status -22 of ADDR_ERROR)",
        CMA,
    ),
];

/// Channels, events, migration.
pub(super) const CHANNELS: &[Rule] = &[
    rule(
        &["get_event"],
        EAGAIN,
        &["NoEvent"],
        "no event waits, and the channel does not block",
        UCMA,
    ),
    rule(
        &["get_event"],
        EINTR,
        &[],
        "of the kernel: a signal ended the wait",
        UCMA,
    ),
    rule(
        &["migrate_id"],
        ENOENT,
        &["UnknownOldChannel"],
        "the old channel is none of the program's, or the identifier is not on it, or is being destroyed",
        UCMA,
    ),
    rule(
        &["migrate_id"],
        ENOMEM,
        &["ChannelFull"],
        "the new channel has no room for the events that would move there: take some first",
        HERE,
    ),
    rule(
        &["migrate_id"],
        EINVAL,
        &["OtherHost", "AlreadySynchronous"],
        "the new channel is of another host; or no channel was given, and the identifier is synchronous already",
        "rdma_migrate_id(3)",
    ),
    rule(
        &["migrate_id", "destroy_id"],
        EDEADLK,
        &["EventHeldByCaller"],
        "the calling thread holds an unacknowledged event of the identifier, for which the call would wait",
        "oarlock-rdmacm; the C library waits for ever",
    ),
    rule(
        &["migrate_id", "destroy_id", "leave_multicast"],
        ETIMEDOUT,
        &["Unacknowledged"],
        "events were not acknowledged by the deadline; it is done all the same",
        "oarlock-rdmacm",
    ),
    rule(
        &["create_event_channel"],
        EINVAL,
        &["NoRuntime"],
        "an asynchronous channel is opened outside of a tokio runtime",
        "oarlock-rdmacm",
    ),
    rule(
        &["get_event"],
        EPIPE,
        &["RuntimeGone"],
        "the tokio runtime that read the host's events has ended",
        "oarlock-rdmacm",
    ),
    rule(
        &["get_event"],
        EINVAL,
        &["NotSynchronous"],
        "get_request or next_event was asked of an identifier that reports to an event channel",
        "rdma_get_request(3)",
    ),
    rule(
        &["write_cm_event"],
        EINVAL,
        &["ForeignEvent", "NotInjectable"],
        "the event is neither USER (18) nor INTERNAL (19)",
        UCMA,
    ),
];

/// What holds for all of them.
pub(super) const EVERY_CALL: &[Rule] = &[
    rule(
        &[ANY],
        ENOENT,
        &["UnknownId", "UnknownChannel", "Closed"],
        "the identifier or channel does not exist (any more)",
        UCMA,
    ),
    rule(
        &[ANY],
        EINVAL,
        &["OtherFile"],
        "the identifier is on another event channel than the one that the request came on",
        UCMA,
    ),
    rule(
        &[ANY],
        EINVAL,
        &["NoDevice"],
        "the call needs a device, and the identifier is bound to none yet: resolve an address first",
        UCMA,
    ),
    rule(
        &[ANY],
        ENXIO,
        &["DeviceRemoved"],
        "the identifier's device has gone; destroying it is all that is left",
        UCMA,
    ),
    rule(
        &[ANY],
        EINVAL,
        &[
            "NoHeader",
            "UnknownCommand",
            "BodyLength",
            "ShortRequest",
            "Reserved",
            "AddressSize",
            "NothingNamed",
        ],
        "the request itself is malformed: a length, a reserved field or an address size contradicts its structure (an error of the library that made it)",
        UCMA,
    ),
    rule(
        &[ANY],
        EINVAL,
        &["Cm"],
        "the IB CM refused for a reason that earlier checks should have caught; the sentence has its words",
        "oarlock-cm",
    ),
    rule(
        &[ANY],
        EFAULT,
        &["RequestEnds"],
        "the request ends before its structure does",
        UCMA,
    ),
    rule(
        &[ANY],
        ENOSPC,
        &["NoRoom"],
        "the room for the answer is smaller than the answer",
        UCMA,
    ),
    rule(
        &[ANY],
        ENOSYS,
        &["NoGetOption"],
        "the command, or what it asks for, is not implemented; the sentence names it",
        UCMA,
    ),
    rule(
        &[ANY],
        ECANCELED,
        &["NotTried"],
        "an earlier request of the same batch failed",
        "oarlock-ucm",
    ),
    rule(
        &[ANY],
        EBADF,
        &["UnknownFile"],
        "the event channel was closed",
        UCMA,
    ),
    rule(
        &[ANY],
        EACCES,
        &[],
        "of the kernel: the caller's credentials are not those of the process that opened the channel",
        UCMA,
    ),
    rule(
        &[ANY],
        EIO,
        &["ServiceGone"],
        "the host service is gone",
        "oarlock-rdmacm",
    ),
    rule(
        &[ANY],
        EPROTO,
        &["Host", "Answer", "UnexpectedEvent"],
        "the host service could not be asked, or its answer not be understood",
        "oarlock-rdmacm",
    ),
];

const fn rule(
    calls: &'static [&'static str],
    errno: i64,
    shown_by: &'static [&'static str],
    when: &'static str,
    source: &'static str,
) -> Rule {
    Rule {
        calls,
        errno,
        shown_by,
        when,
        source,
    }
}

const EPERM: i64 = 1;
const ENOENT: i64 = 2;
const EINTR: i64 = 4;
const EIO: i64 = 5;
const ENXIO: i64 = 6;
const EBADF: i64 = 9;
const EAGAIN: i64 = 11;
const ENOMEM: i64 = 12;
const EACCES: i64 = 13;
const EFAULT: i64 = 14;
const EBUSY: i64 = 16;
const ENODEV: i64 = 19;
const EINVAL: i64 = 22;
const ENOSPC: i64 = 28;
const EPIPE: i64 = 32;
const EDEADLK: i64 = 35;
const ENOSYS: i64 = 38;
const ENODATA: i64 = 61;
const EPROTO: i64 = 71;
const EMSGSIZE: i64 = 90;
const EPROTONOSUPPORT: i64 = 93;
const EOPNOTSUPP: i64 = 95;
const EAFNOSUPPORT: i64 = 97;
const EADDRINUSE: i64 = 98;
const EADDRNOTAVAIL: i64 = 99;
const ENETUNREACH: i64 = 101;
const ECONNRESET: i64 = 104;
const EISCONN: i64 = 106;
const ETIMEDOUT: i64 = 110;
const ECONNREFUSED: i64 = 111;
const EHOSTUNREACH: i64 = 113;
const ECANCELED: i64 = 125;
const ENOTSUPP: i64 = 524;
