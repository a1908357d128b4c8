//! What the manual pages say beyond the commands' definitions.

/// One page's own texts.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) name: &'static str,
    /// Paragraphs.
    pub(super) description: &'static [&'static str],
    pub(super) exit_status: &'static [(&'static str, &'static str)],
    pub(super) environment: &'static [(&'static str, &'static str)],
    /// Our pages to read next, beside oarlock(1).
    pub(super) related: &'static [&'static str],
    /// Pages of others, with their section.
    pub(super) see_also: &'static [(&'static str, &'static str)],
}

/// The page's own texts.
///
/// # Panics
/// If a command has none; a test asks for all.
pub(super) fn find(name: &str) -> &'static Page {
    PAGES
        .iter()
        .find(|page| page.name == name)
        .unwrap_or_else(|| panic!("no texts for the page {name}"))
}

const STATUS: &[(&str, &str)] = &[
    ("0", "All that was asked for was done."),
    (
        "1",
        "It failed; one line on standard error, which begins with \"error:\", says why.",
    ),
    ("2", "Wrong usage."),
];
const LOG: (&str, &str) = (
    "OARLOCK_LOG",
    "What is logged to standard error: error, warn (the default), info, debug, trace, or a filter such as \"warn,oarlock_hostd=debug\".",
);
const LOG_OF_LIBRARIES: (&str, &str) = (
    "OARLOCK_LOG",
    "What the libraries log to standard error, --log goes before it: error (the default), warn (also why a call of the program failed), info, debug, trace, or a filter such as \"warn,oarlock_hostd=debug\".",
);
const DEVICE: (&str, &str) = (
    "OARLOCK_DEVICE",
    "The only RDMA device that the program uses, as by --device. Addresses of others, loopback addresses included where the device is not that of the loopback interface, are refused with ENODEV as where there is no device, and connection requests that come in through others are rejected.",
);
const HOSTD: (&str, &str) = (
    "OARLOCK_HOSTD",
    "The program that is started as the host service when none runs; without it this very program (other programs look for oarlock in their own folder, then in PATH).",
);
const LOG_FILE: (&str, &str) = (
    "OARLOCK_LOG_FILE",
    "The file that a host service logs to; a program that starts one sets it, unless it is set: to oarlock/host-N.log in XDG_RUNTIME_DIR, else to oarlock-USER/host-N.log in TMPDIR or /tmp, where N is the number of the network namespace. It has at most 1 MiB, and then becomes host-N.log.old. Empty means no log.",
);
const FAULT: (&str, &str) = (
    "OARLOCK_FAULT",
    "Faults on purpose in what a program sends and receives, for tests: rules separated by \";\", each KIND:KEY=VALUE,KEY=VALUE and so on, such as drop:p=0.01,seed=7 or delay:opcode=ack,us=500. The kinds are drop, duplicate, delay (by us=), reorder (the next packet overtakes; after us= there need be none), corrupt (field= bth, payload, icrc or any), rnr (a request is answered as receiver-not-ready), qp_error, device_removal and address_change. The keys choose the packets: opcode= (such as rc_send_only, or send, write, read, atomic, ack, nak, cm, cm_req and so on, any: all but cm, and so it is unless given), qpn= and psn= (a number or a range A-B, which for psn= may wrap), direction= (tx or rx); and how often: p= (a probability, with seed=), after= (so many are left alone first), count= (so many at most). The same seed makes the same faults in the same streams of packets.",
);
const FAULT_RECORD: (&str, &str) = (
    "OARLOCK_FAULT_RECORD",
    "A file for a line about every fault that strikes; %p in its name is the process's number.",
);
const FAULT_REPLAY: (&str, &str) = (
    "OARLOCK_FAULT_REPLAY",
    "Such a file: exactly its faults strike again, in place of those of OARLOCK_FAULT.",
);
const TRACE: (&str, &str) = (
    "OARLOCK_TRACE",
    "A file to which a program captures its packets, and the host service its management datagrams, in pcapng; %p in its name is the process's number. What the file holds already stays; without %p programs that are started by each other append to one file.",
);
const PROGRAM: &[(&str, &str)] = &[
    HOSTD,
    LOG,
    LOG_FILE,
    FAULT,
    FAULT_RECORD,
    FAULT_REPLAY,
    TRACE,
];

/// A program in C, that is.
const PROGRAM_IN_C: &[(&str, &str)] = &[
    HOSTD,
    LOG_OF_LIBRARIES,
    LOG_FILE,
    DEVICE,
    FAULT,
    FAULT_RECORD,
    FAULT_REPLAY,
    TRACE,
];

const COMMON_JSON: &str = "With --json exactly one object goes to standard output and everything else to standard error. Keys are only ever added. Times end in _us and are microseconds, rates end in _per_s, sizes are bytes.";
const SERVICE: &str = "The host service of the network namespace is joined, or started when none runs; it ends by itself some seconds after its last program.";

/// Every page, in the order of the commands.
pub(super) const PAGES: &[Page] = &[
    Page {
        name: "oarlock",
        description: &[
            "oarlock is RDMA connection management in user space: programs connect queue pairs over RoCEv2 on any machine with a network interface, with no RDMA hardware, no kernel module, no root and no set-up. Its commands test and time connections, show what the host service holds, and explain what went wrong.",
            "One host service in each network namespace owns the communication manager, the port spaces and UDP port 4791; programs start it when none runs. Data never passes through it.",
            COMMON_JSON,
        ],
        exit_status: STATUS,
        environment: PROGRAM,
        related: &[],
        see_also: &[("rdma_cm", "7"), ("ucmatose", "1"), ("rping", "1")],
    },
    Page {
        name: "oarlock-demo",
        description: &[
            "Starts two processes of this program that connect over a local address, exchange messages whose every byte is compared, move every identifier to another event channel, and disconnect. The last line, which begins with \"summary:\", tells everything.",
            SERVICE,
        ],
        exit_status: STATUS,
        environment: PROGRAM,
        related: &["oarlock-cmatose", "oarlock-trace-ladder"],
        see_also: &[],
    },
    Page {
        name: "oarlock-cmatose",
        description: &[
            "The connection test of the RDMA CM, with the options of ucmatose(1): the passive side listens, accepts and sends first; the active side connects, receives and replies. Other than in ucmatose every message has a content of its own, which the receiver compares; with ucmatose as the other side contents are not compared.",
            "Start the passive side first, and give both sides the same -c, -C and -S. The last lines are \"test complete\" and \"return status N\"; N is 0 when every connection was made and every message arrived with the right content, else 1.",
            SERVICE,
        ],
        exit_status: STATUS,
        environment: PROGRAM,
        related: &["oarlock-demo", "oarlock-explain"],
        see_also: &[("ucmatose", "1"), ("rdma_migrate_id", "3")],
    },
    Page {
        name: "oarlock-cmtime",
        description: &[
            "Times every step of setting up connections: creating the identifier, binding, resolving address and route, making the queue pair, connecting, disconnecting, destroying. All connections go through one step before any begins the next. Connects per second are counted from the first call to the last established event, set-ups per second from the first identifier created to the last destroyed.",
            SERVICE,
        ],
        exit_status: STATUS,
        environment: PROGRAM,
        related: &["oarlock-ping"],
        see_also: &[("cmtime", "1")],
    },
    Page {
        name: "oarlock-explain",
        description: &[
            "Explains one code: why a peer refused (reject, sidr), what the error number of a call says (errno), what an event is (event), how a work request ended (status), or which rule it broke (vendor): its meaning, what can be done about it, and where it is defined. The status of an event is a code of its own: the reason of the REJ in RDMA_CM_EVENT_REJECTED, the SIDR status in RDMA_CM_EVENT_UNREACHABLE if it is positive, else a negative error number.",
            "With --call the rules of one call are listed that lead to an error number. A call may be named as in the Rust library (connect), as in librdmacm (rdma_connect) or by the kernel's command (CONNECT).",
            "The JSON object has the keys kind, code, name, meaning, remedy and source; with --call also call and rules, a list of objects with when and source. Of an unknown code it has kind, asked and nearest.",
        ],
        exit_status: &[
            ("0", "The code is explained."),
            (
                "1",
                "There is no such code or call; the nearest names are printed.",
            ),
            ("2", "Wrong usage."),
        ],
        environment: &[LOG],
        related: &["oarlock-ps"],
        see_also: &[
            ("rdma_get_cm_event", "3"),
            ("rdma_reject", "3"),
            ("errno", "3"),
        ],
    },
    Page {
        name: "oarlock-ping",
        description: &[
            "Lets a server read a message out of this program's memory over a reliable connection and write it back, as often as is wanted, and sums up the round trip times as ping(8) does. It does the job of rping(1), has its options and speaks its protocol, so that either side may be an rping, of a kernel or elsewhere. An rping server has room for 64 bytes, unless it is started with -S.",
            "A message is text that begins with its number. With -V a client compares what has come back with what it sent, and a server what it has read with what the message of that number should be. A peer that is neither rping nor this program shows by its first message, and is left with a sentence.",
            "A message whose reply does not come within --timeout is lost, and ends the client: a server answers one at a time. Ended by SIGINT or SIGTERM a client sums up and disconnects, and a server sums up.",
            "The JSON object of a client has the keys side, peer, asked, size, sent, received, lost, late, mismatches, elapsed_us and rtt_us (min, avg, max, mdev; null without a reply); that of a server side, address, clients, refused, answered, mismatches and elapsed_us.",
            SERVICE,
        ],
        exit_status: &[
            (
                "0",
                "Every message that was sent came back, and with -V as it was sent; of a server: nothing that arrived was wrong.",
            ),
            ("1", "No connection, or a message was lost or wrong."),
            ("2", "Wrong usage."),
        ],
        environment: PROGRAM,
        related: &["oarlock-cmatose", "oarlock-explain"],
        see_also: &[("rping", "1"), ("ping", "8")],
    },
    Page {
        name: "oarlock-bench",
        description: &[
            "Measures one operation between two processes: as many messages as the window of outstanding work requests allows, or with --lat one after the other. It does the job of the programs of perftest (ib_send_bw, ib_write_lat and the like): a server serves one client, tells it what it has over a TCP connection of their own, and ends; with --local both are processes of this machine.",
            "Messages are filled with words that follow from their number, their queue pair and the position, so that a byte that is old, of another message or out of place shows. A receiver compares every message, a reader what it has read; what was written, and what atomics have changed, is compared in memory at the end. This is part of the time that is measured; --no-check leaves it out. Of unreliable services lost messages are counted beside wrong ones.",
            "Of a reliable service a message counts when its work request has completed, which means that it is acknowledged; of unreliable services and of TCP when the receiver has it, and the time is that between its first and its last message. The measurement begins after a warm-up of a tenth of its time. CPU time is that of all threads of each process, the comparing included; a process that polls is never idle.",
            "Latencies are those from posting a request to its completion; with --lat a message of send or write is sent to and fro, and half of that counts, as in perftest. A write is then seen by looking at the last byte of memory (--mode poll), or by its immediate value (--mode event).",
            "With --path tcp sockets take the place of queue pairs, in the same loops and with the same contents, for comparison. --path local is reserved for data that passes between two processes of one host without the network, and refused so far.",
            "The JSON object has the key results, a list of one object with op, atomic, transport, path, mode, size, qps, window, lat, checked, elapsed_us, messages, sent, lost, bytes_per_s, msgs_per_s, lat_us (min, p50, p99, p999, max; null where nobody confirms a message), cpu_ns_per_msg (tx, rx), retransmits and mismatches; that of a server has received, mismatches, elapsed_us, cpu_us and retransmits.",
            SERVICE,
        ],
        exit_status: &[
            (
                "0",
                "The measurement was made, and every content was right.",
            ),
            ("1", "It could not be made, or contents were wrong."),
            (
                "2",
                "Wrong usage, or an operation that the transport service does not have.",
            ),
        ],
        environment: PROGRAM,
        related: &["oarlock-ping", "oarlock-devices"],
        see_also: &[("ib_send_bw", "1"), ("ib_write_lat", "1")],
    },
    Page {
        name: "oarlock-devices",
        description: &[
            "Shows the devices of this host in the manner of ibv_devinfo(1): one for each network interface that is up, with its GUID, the state and link layer of its port, the MTUs, and its addresses. With -v also every limit, the capabilities, the whole GID table with types, and the statistics, which are sums over the programs of this host under the names that rdma-statistic(8) uses.",
            "The JSON object has the key devices, a list of objects with index, name, guid, interface, ifindex, transport, is_loopback, port (number, state, link_layer, active_mtu, max_mtu, netdev_mtu), gids (index, gid, type, address), limits, capabilities, atomic and statistics.",
            SERVICE,
        ],
        exit_status: &[
            ("0", "The devices are shown."),
            (
                "1",
                "There is no device, or none of the name that was given.",
            ),
            ("2", "Wrong usage."),
        ],
        environment: PROGRAM,
        related: &["oarlock-ps", "oarlock-bench"],
        see_also: &[("ibv_devinfo", "1"), ("rdma-statistic", "8")],
    },
    Page {
        name: "oarlock-ps",
        description: &[
            "Shows the host service of this network namespace: its programs with their slots, every identifier with its state, addresses, queue pair, event channel, waiting and unacknowledged events; of a listener how many requests wait, how many may, and how many were dropped or refused because too many waited; and of a datagram identifier the multicast groups that it has joined. No service is started for it.",
            "With --counters the counters follow in groups: what was counted of each message of the connection manager as a table, the rest as names and values; those that are zero stand on one line.",
            "With --watch all this is printed again and again. On a terminal the screen is drawn anew; elsewhere each round is a block, which begins with the time since the first and ends with an empty line. From the second round on, the counters that changed are printed with their gain per second, or with --counters all of them. With --json each round is one object on one line, as without --watch, with the keys elapsed_us and counters_per_s beside the others. While it watches, the service does not end by itself.",
        ],
        exit_status: &[
            (
                "0",
                "It was printed; with --watch: it was ended by SIGINT or SIGTERM, or nobody read any more.",
            ),
            (
                "1",
                "No host service runs, or it ended while it was watched.",
            ),
            ("2", "Wrong usage."),
        ],
        environment: &[LOG],
        related: &["oarlock-host"],
        see_also: &[("rdma", "8")],
    },
    Page {
        name: "oarlock-host",
        description: &[
            "Runs the host service of this network namespace in the foreground. It owns the communication manager (queue pair 1), the port spaces, and UDP port 4791, of which each program gets its own part; data packets never pass through it. It serves programs of its own user, and of root.",
            "Programs start a host service by themselves when none runs, which ends by itself after them; this command is for running one on purpose, for example to keep it between programs, or with other timers.",
        ],
        exit_status: &[
            ("0", "No program has used it for the time of --grace."),
            (
                "1",
                "It could not start: port or name are taken, descriptors or a network interface are missing.",
            ),
            ("2", "Wrong usage."),
        ],
        environment: &[LOG, LOG_FILE],
        related: &["oarlock-ps"],
        see_also: &[("rdma_cm", "7"), ("namespaces", "7")],
    },
    Page {
        name: "oarlock-trace",
        description: &[
            "With -w captures the packets of all programs of this host, as on the wire, to a file in pcapng: management datagrams of the host service, and what the queue pairs of each program send and receive, of programs too that start later. No privilege is needed: the programs, which belong to the same user, write their packets themselves. At the end it says how many packets of which kind the file holds, counted in the file.",
            "The file has one interface for the host service and one for each program, named after it with its process number in parentheses; tshark and Wireshark show it as frame.interface_name. Times are those of the moment before a packet is sent. A packet between two programs of this host stands there once, as sent; one from elsewhere as received.",
            "One capture of a host can run at a time. It ends early with the first packet that some program cannot write, because the disk is full or by that program's limit of file sizes; what was written of that packet is cut off, and the programs go on. A service is started when none runs, so that a capture can begin before the first program.",
        ],
        exit_status: STATUS,
        environment: PROGRAM,
        related: &["oarlock-trace-ladder"],
        see_also: &[("tcpdump", "8"), ("wireshark", "1")],
    },
    Page {
        name: "oarlock-trace-ladder",
        description: &[
            "Prints each connection of a capture as a ladder: the messages of the connection manager one by one, who sent them to whom and when, and between them what data went each way. A service resolution of datagram queue pairs (SIDR) is told in the same way, and so are datagrams to a multicast group.",
            "Classic pcap and pcapng are read, of this program, tcpdump(8) and Wireshark. A packet that its sender and its receiver have both captured to the file is told once. Repeated messages are marked (again); repeated packets are counted in the text.",
            "With --svg it draws two lifelines for each connection and an arrow for each packet, repeated and negative ones in red, as a file for any browser; the same capture gives the same picture. Of many connections the first 50 are drawn, and of a long stretch of data the first packets, with the number of the others.",
        ],
        exit_status: STATUS,
        environment: &[LOG],
        related: &["oarlock-trace", "oarlock-demo"],
        see_also: &[("tcpdump", "8"), ("wireshark", "1")],
    },
    Page {
        name: "oarlock-run",
        description: &[
            "Runs a program that is linked with librdmacm or libibverbs, as it is, on the software RDMA devices of this host: no RDMA hardware, no kernel module, no privilege. The libraries of this program take the place of the system's for the program and whatever it starts, and for nothing else.",
            "The program takes the place of this one: its process number, its terminal, its signals and its exit status are its own. The host service is started before, if none runs, so that the program finds it.",
            "A program that cannot get the libraries so is refused with a sentence: one that is statically linked, of another C library (musl) or architecture, with the rights of another user (setuid, setgid, capabilities), or with a library path of its own (RPATH) that has such libraries. Files under /sys/class/infiniband and /dev/infiniband that a program opens or asks for by itself are served once it has asked for the list of devices, and folders there list them; what it opens relative to such a folder (openat), or links that it reads, is not there, as on a machine without an RDMA device.",
        ],
        exit_status: &[
            (
                "125",
                "It failed before the program, or refused it; one line on standard error says why.",
            ),
            ("126", "The program is there and cannot be executed."),
            ("127", "There is no such program."),
            (
                "other",
                "That of the program; a shell shows 128 and the number of the signal that ended it.",
            ),
        ],
        environment: PROGRAM_IN_C,
        related: &["oarlock-env", "oarlock-devices", "oarlock-trace"],
        see_also: &[
            ("rdma_create_id", "3"),
            ("rdma_migrate_id", "3"),
            ("rping", "1"),
            ("ucmatose", "1"),
            ("ibv_rc_pingpong", "1"),
        ],
    },
    Page {
        name: "oarlock-env",
        description: &[
            "Prints the commands by which a shell sets the variables that oarlock-run(1) gives to a program: programs that are started from that shell use the software devices from then on. The program that runs is not examined, so that one that cannot get the libraries runs without them.",
            "With --cflags it prints the option by which a C compiler finds the header oarlock/memory_events.h instead, which is beside the libraries; oarlock_create_memory_channel(3) is about what it declares.",
        ],
        exit_status: STATUS,
        environment: PROGRAM_IN_C,
        related: &["oarlock-run"],
        see_also: &[("oarlock_create_memory_channel", "3"), ("ld.so", "8")],
    },
    Page {
        name: "oarlock-man",
        description: &[
            "Prints the source of a manual page, or writes all of them, for packages and for reading without an installation.",
            "There is one page for each command of this program (section 1), and one for each group of calls of the C libraries whose behaviour this project defines (section 3), found by the name of any of its calls: event channels, identifiers, migration, connecting, events, options, multicast, memory events. What those do not say is as in the manual pages of librdmacm and libibverbs.",
        ],
        exit_status: STATUS,
        environment: &[LOG],
        related: &["oarlock-completions"],
        see_also: &[("man", "1"), ("man", "7")],
    },
    Page {
        name: "oarlock-completions",
        description: &[
            "Prints the script by which a shell completes this program's commands, options and values.",
        ],
        exit_status: STATUS,
        environment: &[LOG],
        related: &["oarlock-man"],
        see_also: &[("bash", "1"), ("zsh", "1"), ("fish", "1")],
    },
];
