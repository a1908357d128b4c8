"""What the programs of more.toml must have said; see oracles.py."""

import re

from oracles import Again, _ended_well, _quiet, _transcript


def qperf(run, figure, unit):
    """Both sides end with 0, and the figure of the test is above nothing."""
    yield from _ended_well(run)
    yield from _transcript("server", run.server, [])
    test = run.row["name"].split()[-1]
    for client in run.clients:
        yield from _transcript("client", client, [f"{test}:", rf"    {figure} +=  +([0-9.,]+) {unit}", "quit:"])
        if not any(re.search(r"=  +[0-9.,]*[1-9]", line) for line in client.lines):
            yield "client: nothing was measured"


def fio(run, count, answers=0):
    """No error, every request of the client served, none short or dropped; with SEND the server has had as many."""
    yield from _ended_well(run)
    for who, said, wanted in (("server", run.server, (answers, 0)), ("client", run.clients[0], (0, count))):
        text = "\n".join(said.lines)
        if "err= 0: pid=" not in text:
            yield f"{who}: does not say that there was no error"
        issued = re.findall(r"issued rwts: total=(\d+),(\d+),0,0 short=0,0,0,0 dropped=0,0,0,0", text)
        # A server of READ and WRITE counts its one wait for the end.
        due = [tuple(map(str, wanted))] if wanted != (0, 0) else [("1", "0")]
        if issued != due:
            yield f"{who}: issued {issued} where {due} were due"
        yield from _quiet(who, said)


LATE = r"\[error\] util/pingpong\.c:\d+: cq_readerr: Work Request Flushed Error"


def fi_pingpong(run, sizes, two_sizes=None):
    """Each size ten times there and back; with -c both sides compare every byte and end otherwise."""
    sizes = two_sizes if two_sizes and run.place.two else sizes
    head = r"bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec"
    rows = [rf"{size} +10 +=10 +[0-9.]+[km]? +[0-9.]+s +[0-9.]+ +[0-9.]+ +[0-9.]+" for size in sizes]
    sides = (("server", run.server), ("client", run.clients[0]))
    wrong = [complaint for who, said in sides for complaint in _transcript(who, said, [head, *rows], [LATE])]
    # ofi_rxm has a thread that destroys the queue pair as soon as the peer has disconnected. On a busy machine that is before the program's
    # thread has polled the completion of its last message, which goes with the queue pair (as with network cards), and libfabric makes an
    # error of it. Everything has been measured and compared then, and the other side has that message.
    late = [said for _, said in sides if re.fullmatch(LATE, "\n".join(said.error))]
    if "ofi_rxm" in run.row["name"] and len(late) == 1 and not wrong and sorted(said.status or 0 for _, said in sides) == [0, 125]:
        raise Again("libfabric's other thread has closed the connection before the end was seen")
    yield from _ended_well(run)
    for who, said in sides:
        yield from _transcript(who, said, [head, *rows])


def ucx(run, columns):
    """The one line of figures, which begins with the number of messages."""
    yield from _ended_well(run)
    for client in run.clients:
        lines = [line for line in client.lines if line.strip() and line[0] not in "+|"]
        if len(lines) != 1 or not re.fullmatch(r"\s*200" + r"\s+[0-9.]+" * columns, lines[0]):
            yield f"client: {lines}"
    for who, said in (("server", run.server), ("client", run.clients[0])):
        yield from (f"{who}: {line}" for line in [*said.lines, *said.error] if "ERROR" in line or "WARN" in line)


def says(run, lines):
    """All sides end with 0, and each says these lines, in this order and among others, and nothing of an error."""
    yield from _ended_well(run)
    for who, said in [("server", run.server), *(("client", client) for client in run.clients)]:
        heard = iter(said.lines)
        for pattern in lines:
            if not any(re.fullmatch(pattern, line.strip()) for line in heard):
                yield f"{who}: does not say {pattern!r}"
        yield from (f"{who}: {line}" for line in [*said.lines, *said.error] if re.search(r"ERR|FAIL|rror:", line))


def pyverbs(run, least):
    """Python's unit tests: none failed, and at least so many ran to their end."""
    yield from _ended_well(run)
    error = run.server.error
    ran = sum(line.endswith("... ok") or line == "ok" for line in error)
    if not error or not re.fullmatch(r"OK( \(skipped=\d+\))?", error[-1]):
        yield f"the tests end with {error[-1:]}"
    if ran < least:
        yield f"{ran} tests ran where {least} were due"
