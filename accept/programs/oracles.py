"""What each program must have said. A function per family; each yields what is wrong, nothing when all is well.

`run` has the row's keys, `run.server` and `run.clients` (lines, error, status), the place, and what the service of the server's host
counted. The transcripts are those of the programs on a device that works; a line more or less is wrong.
"""

import ipaddress
import re


class Again(Exception):
    """The program says that it could not do what is its own affair: no verdict, the row is to be run again."""


def _transcript(who, said, expected, error=()):
    """`expected`: one regular expression for each line of standard output; `error`: what standard error may say."""
    for n, line in enumerate(said.lines):
        if n >= len(expected):
            yield f"{who}: a line too many: {line!r}"
            return
        if not re.fullmatch(expected[n], line):
            yield f"{who}: {line!r} where {expected[n]!r} was due"
            return
    if len(said.lines) < len(expected):
        yield f"{who}: ended before {expected[len(said.lines)]!r}"
    yield from _quiet(who, said, error)


def _quiet(who, said, error=()):
    for line in said.error:
        if not any(re.fullmatch(allowed, line) for allowed in error):
            yield f"{who}: says on standard error: {line!r}"


def _ended_well(run):
    sides = [("client", client) for client in run.clients]
    if run.ends is None:
        sides.append(("server", run.server))
    elif run.server.status not in (-15, 128 + 15):
        yield f"server: {run.server.status} when ended by SIGTERM"
    for who, said in sides:
        if said.status != 0:
            yield f"{who}: exit status {said.status}"


def _connections(run, expected):
    """The service of the server's host has queued that many requests for its listener."""
    counted = run.counters.get("cma_requests_queued")
    if counted != expected:
        yield f"service: {counted} connection requests where {expected} were due"


def _literal(*lines):
    return [re.escape(line) for line in lines]


def ucmatose(run, connections=1, migrates=False):
    """Every line of both sides: the client sends only after all has arrived, the server disconnects only after all came back."""
    yield from _ended_well(run)
    moved = ["migrating to new event channel"] if migrates else []
    data = ["initiating data transfers", "completing sends", "receiving data transfers", "data transfers complete"]
    closing = ["cmatose: disconnecting", "disconnected", "test complete", "return status 0"]
    yield from _transcript("server", run.server, _literal("cmatose: starting server", *data, *moved, *closing))
    data = ["receiving data transfers", "sending replies", "data transfers complete"]
    closing = ["test complete", "return status 0"]
    for client in run.clients:
        yield from _transcript("client", client, _literal("cmatose: starting client", "cmatose: connecting", *data, *moved, *closing))
    yield from _connections(run, connections)


def _ping_text(n, size):
    """The n-th message of rping(1): a number, then letters that begin one further with every message; the last byte is a zero."""
    first = ord("A") + n % 58
    text = f"rdma-ping-{n}: "
    letters = "".join(chr(ord("A") + (first - ord("A") + i) % 58) for i in range(size - len(text)))
    return (text + letters)[: size - 1]


def rping(run, count, size=64):
    """Every byte of every message as both sides print it."""
    yield from _ended_well(run)
    texts = [_ping_text(n, size) for n in range(count)]
    ended = [r"(server|client) DISCONNECT EVENT\.\.\.", r"wait for RDMA_READ_ADV state 10"]
    for client in run.clients:
        yield from _transcript("client", client, _literal(*(f"ping data: {text}" for text in texts)), ended)
    heard = sorted(f"server ping data: {text}" for text in texts * len(run.clients))
    if len(run.clients) > 1:
        run.server.lines.sort()
    else:
        heard = [f"server ping data: {text}" for text in texts]
    yield from _transcript("server", run.server, _literal(*heard), ended)
    yield from _connections(run, len(run.clients))


def udaddy(run, connections=1):
    yield from _ended_well(run)
    data = ["receiving data transfers", "sending replies", "data transfers complete"]
    closing = ["test complete", "return status 0"]
    yield from _transcript("server", run.server, _literal("udaddy: starting server", *data, *closing))
    data = ["initiating data transfers", "receiving data transfers", "data transfers complete"]
    for client in run.clients:
        yield from _transcript("client", client, _literal("udaddy: starting client", "udaddy: connecting", *data, *closing))
    yield from _connections(run, connections)


def mckey(run, members=1, senders=None):
    """The receiver ends only when every member has every message."""
    yield from _ended_well(run)
    joined = rf"mckey: joined dgid: {re.escape(run.place.group_gid)} mlid 0x[0-9a-f]+ sl 0"
    closing = _literal("data transfers complete", "test complete", "return status 0")
    for who, said, count, data in (("server", run.server, members, "receiving"), ("client", run.clients[0], senders or members, "initiating")):
        expected = [f"mckey: starting {who}", "mckey: joining", *[joined] * count, f"{data} data transfers", *closing]
        yield from _transcript(who, said, expected)


def cmtime(run, connections, binds=False):
    """It exits with 0 whatever happened: no line of an event that failed, and every step of every connection has its time."""
    yield from _ended_well(run)
    steps = ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"]
    said = ["creating id", "resolving address", "resolving route", "creating qp", "connecting", "disconnecting", "destroying id"]
    if binds:
        steps.insert(1, "bind addr")
        said.insert(1, "binding source address")
    number = r" +([0-9]+\.[0-9]{2})"
    table = [rf"{step:13}: *([0-9]+\.[0-9]{{2}})" + number * 3 for step in steps]
    for client in run.clients:
        yield from _transcript("client", client, [*said, "step              total ms     max ms     min us  us / conn", *table])
        for line in client.lines[-len(steps) :]:
            figures = re.fullmatch(r"(.{13}):([ .0-9]{44})", line)
            if figures is None:
                continue
            total, longest, shortest, each = map(float, figures[2].split())
            # A step that no connection came through has the shortest time it began with: 999999999.
            if not 0 < total < 60_000 or not 0 <= shortest <= longest * 1000 + 10 or abs(each * connections - total * 1000) > 10 + connections:
                yield f"client: figures that cannot be: {line!r}"
    yield from _transcript("server", run.server, ["listening on .*"] if run.server.is_ours else [])
    yield from _connections(run, connections)


def start_end(run):
    """rdma_server, rdma_xserver and their clients: `NAME: start`, `NAME: end 0`; the end comes after what was sent has arrived."""
    yield from _ended_well(run)
    for who, said in [("server", run.server), *(("client", client) for client in run.clients)]:
        yield from _transcript(who, said, [rf"{said.program}: start", rf"{said.program}: end 0"])
    yield from _connections(run, 1)


def _met(run, local, remote, count):
    """Each side's remote addresses are the other side's local ones, and the GIDs those of the place."""
    found = []
    for who, said, address in (("server", run.server, run.place.server), ("client", run.clients[0], run.place.client)):
        ours = [m.groups() for m in map(re.compile(local).fullmatch, said.lines) if m]
        theirs = [m.groups() for m in map(re.compile(remote).fullmatch, said.lines) if m]
        found.append((ours, theirs))
        if len(ours) != count or len(theirs) != count:
            yield f"{who}: {len(ours)} local and {len(theirs)} remote addresses where {count} were due"
        elif {o[-1] for o in ours} != {_gid(address)}:
            yield f"{who}: not between the addresses of the place: {ours[0][-1]}"
    (a, b), (c, d) = found
    if a != d or b != c:
        yield "the two sides do not mean the same addresses"


def _gid(address):
    return f"::ffff:{address}" if ":" not in address else str(ipaddress.ip_address(address))


def pingpong(run, count=1000, size=4096, queue_pairs=1):
    """Counts and bytes of both sides. With -c each compares what has arrived, and complains of a wrong page."""
    yield from _ended_well(run)
    for who, said in (("server", run.server), ("client", run.clients[0])):
        end = [
            rf"{2 * count * size} bytes in [0-9.]+ seconds = [0-9.]+ Mbit/sec",
            rf"{count} iters in [0-9.]+ seconds = [0-9.]+ usec/iter",
        ]
        yield from _transcript(who, said, ["  local address: .*"] * queue_pairs + ["  remote address: .*"] * queue_pairs + end)
        for line in said.lines[-2:]:
            if not float(line.split("=")[-1].split()[0] if "=" in line else 0) > 0:
                yield f"{who}: no time: {line!r}"
    address = r"LID 0x0000, QPN (0x[0-9a-f]{6}), PSN (0x[0-9a-f]{6})[,:] GID (\S+)"
    yield from _met(run, "  local address:  " + address, "  remote address: " + address, queue_pairs)


def xsrq_pingpong(run):
    """`success` comes when all messages of all clients have been there and back."""
    yield from _ended_well(run)
    # Said where another user's file of that name is in /tmp.
    quiet = ["Couldn't create the file for the XRC Domain but not stopping 13"]
    address = r"LID 0000, QPN RECV ([0-9a-f]{6}) SEND ([0-9a-f]{6}), PSN [0-9a-f]{6}, SRQN ([0-9a-f]{6}), GID (\S+)"
    local, remote = "   local: " + address, "  remote: " + address
    n = len(run.clients)
    for client in run.clients:
        yield from _transcript("client", client, [local, remote, "success"], quiet)
    server = [line for line in run.server.lines if not line.startswith((" ", "success"))]
    if server or run.server.lines.count("success") != 1:
        yield f"server: says {run.server.lines}"
    yield from _quiet("server", run.server, quiet)
    ours = sorted(m.groups() for m in map(re.compile(local).fullmatch, run.server.lines) if m)
    theirs = sorted(m.groups() for m in map(re.compile(remote).fullmatch, run.server.lines) if m)
    met = [[m.groups() for m in map(re.compile(pattern).fullmatch, c.lines) if m] for pattern in (remote, local) for c in run.clients]
    if len(ours) != n or ours != sorted(sum(met[:n], [])) or theirs != sorted(sum(met[n:], [])):
        yield "the two sides do not mean the same addresses"


def _devices(run):
    if not run.devices:
        yield "the host shows no device"


def ibv_devices(run):
    yield from _ended_well(run)
    yield from _devices(run)
    head = ["    device          \t   node GUID", "    ------          \t----------------"]
    rows = [f"    {device['name']:16}\t{device['guid'].replace(':', '')}" for device in run.devices]
    yield from _transcript("server", run.server, _literal(*head, *rows))


def ibv_devinfo(run):
    """Every figure that `oarlock devices` has of every device, too."""
    yield from _ended_well(run)
    yield from _devices(run)
    yield from _quiet("server", run.server)
    parts = "\n".join(run.server.lines).split("hca_id:\t")[1:]
    if [part.split("\n")[0] for part in parts] != [device["name"] for device in run.devices]:
        yield f"devices: {[part.split(chr(10))[0] for part in parts]}"
        return
    for device, part in zip(run.devices, parts):
        fields = {}
        for line in part.split("\n")[1:]:
            name, _, value = line.strip().partition(":")
            fields.setdefault(name, value.strip())
        limits = device["limits"]
        wanted = {name: str(value) for name, value in limits.items() if name in fields and name != "max_mr_size"}
        if len(wanted) < 20:
            yield f"{device['name']}: only {len(wanted)} limits are shown"
        port = device["port"]
        wanted |= {
            "transport": "InfiniBand (0)",
            "node_guid": device["guid"],
            "phys_port_cnt": "1",
            "port": "1",
            "state": "PORT_ACTIVE (4)" if port["state"] == "active" else "PORT_DOWN (1)",
            "active_mtu": f"{port['active_mtu']} ({port['active_mtu'].bit_length() - 8})",
            "max_mtu": "4096 (5)",
            "link_layer": "Ethernet",
            "max_mr_size": hex(limits["max_mr_size"]),
        }
        for gid in device["gids"]:
            wanted[f"GID[{gid['index']:3}]"] = f"{gid['gid'] if ':' not in gid['address'] else _gid(gid['address'])}, RoCE v2"
        for name, value in wanted.items():
            shown = fields.get(name)
            if name.startswith("GID"):
                shown = shown and ", ".join([str(ipaddress.ip_address(shown.split(", ")[0])), *shown.split(", ")[1:]])
                value = ", ".join([str(ipaddress.ip_address(value.split(", ")[0])), "RoCE v2"])
            if shown != value:
                yield f"{device['name']}: {name}: {shown} where {value} was due"


def asyncwatch(run, events, two_events):
    """One line for each event that was caused, in their order; an address that comes may be told twice (as an address and as the port's)."""
    yield from _ended_well(run)
    expected = two_events if run.place.two else events
    device = re.escape(run.place.device(run.place.server))
    lines = [rf"{device}: async event FD [0-9]+", *(rf"  event_type {re.escape(event)}" for event in expected)]
    yield from _transcript("server", run.server, lines)


def perftest(run, count, size):
    """The result table: size, iterations, and figures above nothing; and what the sides tell each other is what the other side has."""
    for said in (run.server, *run.clients):
        # It compares clocks at its start; on a busy machine it then says so, and has no figures.
        if any(line.startswith("Correlation coefficient r^2: ") for line in said.error):
            raise Again(f"{said.program} could not measure the processor's clock")
    yield from _ended_well(run)
    for who, said in (("server", run.server), ("client", run.clients[0])):
        # It knows the devices by their vendor's number, and says this of every other one.
        yield from _quiet(who, said, ["Device not recognized to implement inline feature. Disabling it"])
        text = "\n".join(said.lines)
        for line in (" Link type       : Ethernet", " Connection type : RC"):
            if line not in (found[: len(line)] for found in said.lines):
                yield f"{who}: no line {line!r}"
        latency = said.program.endswith("_lat")
        rows = [line.split() for line in said.lines if re.fullmatch(r" \d+ +\d+ [ \t0-9.]+", line)]
        one_sided = said.program in ("ib_read_lat",) or said.program == "ib_atomic_lat"
        if who == "server" and (one_sided or not rows):
            continue
        heading = r"^ #bytes     #iterations    BW peak\[Mi?B/sec\]    BW average\[Mi?B/sec\]"
        if len(rows) != 1 or not latency and not re.search(heading, text, re.MULTILINE):
            yield f"{who}: {len(rows)} rows of results"
            continue
        (row,) = rows
        if row[:2] != [str(size), str(count)]:
            yield f"{who}: {row[1]} messages of {row[0]} bytes where {count} of {size} were due"
        figures = [float(figure) for figure in row[2:]]
        if latency:
            least, most, typical, average = figures[:4]
            if not 0 < least <= typical <= most or not least <= average <= most:
                yield f"{who}: figures that cannot be: {row}"
        elif not (figures[1] > 0 and figures[2] > 0):
            yield f"{who}: figures that cannot be: {row}"
    address = r"address: LID 0000 QPN (0x[0-9a-f]+) PSN (0x[0-9a-f]+)(.*)"
    sides = []
    for said in (run.server, run.clients[0]):
        found = [[m.groups() for m in map(re.compile(f" {which} +{address}").fullmatch, said.lines) if m] for which in ("local", "remote")]
        sides.append(found)
    (ours, theirs), (mine, yours) = sides
    if not ours or ours != yours or theirs != mine:
        yield f"the two sides do not mean the same addresses: {sides}"
