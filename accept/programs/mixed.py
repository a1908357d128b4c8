"""What both sides must have said where one is a program of ours on the Rust interface (mixed.toml); see oracles.py."""

import re

from oracles import _connections, _ended_well, _literal, _ping_text, _transcript

DISCONNECTED = [r"(server|client) DISCONNECT EVENT\.\.\.", r"wait for RDMA_READ_ADV state 10"]


def rping_of_ping(run, count, size):
    """A C server shows every byte of every message; our client has compared what came back."""
    yield from _ended_well(run)
    heard = sorted(f"server ping data: {_ping_text(n, size)}" for n in list(range(count)) * len(run.clients))
    run.server.lines.sort()
    yield from _transcript("server", run.server, _literal(*heard), DISCONNECTED)
    summary = [r"--- .* ping statistics ---", rf"{count} messages of {size} bytes sent, {count} received, 0 lost, 0 wrong, time .* ms", "rtt min/avg/max/mdev = .* ms"]
    for client in run.clients:
        yield from _transcript("client", client, summary)
    yield from _connections(run, len(run.clients))


def ping_of_rping(run, count, size):
    """A C client shows every byte of every message that came back; our server has compared what came."""
    yield from _ended_well(run)
    (client,) = run.clients
    yield from _transcript("client", client, _literal(*(f"ping data: {_ping_text(n, size)}" for n in range(count))), DISCONNECTED)
    served = ["listening on .*", ".*: connected", rf".*: ended, messages {count}, wrong 0", rf"served: clients 1, refused 0, messages {count}, wrong 0"]
    yield from _transcript("server", run.server, served)
    yield from _connections(run, 1)


def cmatose(run, connections, c_side):
    """Every line of both sides; ours counts the messages, and cannot compare them: ucmatose sends whatever its memory holds."""
    yield from _ended_well(run)
    (client,) = run.clients
    for who, said in (("server", run.server), ("client", client)):
        moved = ["migrating to new event channel"] if "-m" in said.command else []
        counted = [] if who == c_side else [rf"messages received: {connections * 10} of {connections * 10}(, .*)?"]
        listening = ["listening on .*"] if who == "server" and who != c_side else []
        start = [f"cmatose: starting {who}", *listening] + ["cmatose: connecting"] * (who == "client")
        if who == "server":
            data = ["initiating data transfers", "completing sends", "receiving data transfers", "data transfers complete"]
        else:
            data = ["receiving data transfers", "sending replies", "data transfers complete"]
            if who != c_side:
                data.insert(0, "initiating data transfers")
        closing = ["(cmatose: disconnecting|disconnected)"] * _closing_lines(said)
        yield from _transcript(who, said, [*start, *data, *moved, *closing, *counted, "test complete", "return status 0"])
    yield from _connections(run, connections)


def _closing_lines(said):
    return sum(line in ("cmatose: disconnecting", "disconnected") for line in said.lines)


def our_udaddy(run, connections):
    """Every line of both sides. Ours has compared every message it could know, and waits for all of them."""
    yield from _ended_well(run)
    (client,) = run.clients
    closing = ["data transfers complete", "test complete", "return status 0"]
    yield from _transcript("server", run.server, ["udaddy: starting server", "receiving data transfers", "sending replies", *closing])
    connecting = [] if client.is_ours else ["udaddy: connecting"]
    data = ["initiating data transfers", "receiving data transfers"]
    yield from _transcript("client", client, ["udaddy: starting client", *connecting, *data, *closing])
    yield from _connections(run, connections)


def our_mckey(run, members):
    """The receiver ends only when every member has every message."""
    yield from _ended_well(run)
    (client,) = run.clients
    closing = ["data transfers complete", "test complete", "return status 0"]
    for who, said, role, data in (("server", run.server, "server", "receiving"), ("client", client, "client", "initiating")):
        if said.is_ours:
            joined = [re.escape(f"mckey: joined {run.place.group}")] * members
            start = []
        else:
            joined = [rf"mckey: joined dgid: {re.escape(run.place.group_gid)} mlid 0x[0-9a-f]+ sl 0"] * members
            start = [f"mckey: starting {role}", "mckey: joining"]
        yield from _transcript(who, said, [*start, *joined, f"{data} data transfers", *closing])


def our_cmtime(run, connections):
    """Our client counts the connections that were made."""
    yield from _ended_well(run)
    (client,) = run.clients
    steps = ["create_id", "bind_addr", "resolve_addr", "resolve_route", "create_qp", "connect", "disconnect", "destroy"]
    number = r" +[0-9]+\.[0-9]"
    table = [rf"{step} +{connections}" + number * 4 for step in steps]
    summary = rf"{connections} of {connections} connections, 1 at a time: [1-9][0-9]* connects per second, [1-9][0-9]* set-ups per second"
    yield from _transcript("client", client, ["step +n .*", *table, summary])
    yield from _transcript("server", run.server, [])
    yield from _connections(run, connections)
