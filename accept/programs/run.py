"""Runs the rows of a file in every place and judges them.

    run.py ROWS [--out RESULTS] [--only REGEX] [--place NAME] [--jobs N]    all rows must be green
    run.py ROWS --planted absent|killed [...]                              the service is gone: all rows must be red

With `absent` no service runs and none can be started; with `killed` it is killed, and none can be started any more, when the server is ready
and the client is about to start (of a program that is ready at once: before it starts). Verdicts of planted runs are those of the oracles
alone, and of what the programs say: what was counted in a service that is gone has no say.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
import tomllib

import hosts
import mixed
import more
import oracles

EXAMPLES = os.environ.get("OARLOCK_EXAMPLES", "")
HERE = os.path.dirname(os.path.abspath(__file__))
NO_SERVICE = {"OARLOCK_HOSTD": "/bin/false"}
# How often a program is run that says it could not do its own measuring.
TRIES = 5
# What does not end for want of a service is ended, in seconds.
PLANTED_LIMIT = 4


class Place:
    """Where a row runs: on one host over its loopback interface, or on two hosts with a cable between them."""

    def __init__(self, name, server, client, group, group_gid, two):
        self.name, self.server, self.client, self.group, self.group_gid, self.two = name, server, client, group, group_gid, two
        self.is_ipv6 = ":" in server
        self.tcp = "10.91.0.2" if two else "127.0.0.1"

    def device(self, address):
        return "soft_" + self.interface(address)

    def interface(self, address):
        return "lo" if not self.two else "oar1" if address == self.server else "oar0"

    def set_up(self, row):
        """The server's host and the client's."""
        alone = self.name in row.get("alone", [])
        if not self.two:
            host = hosts.Host()
            host.root("ip", "route", "add", "239.0.0.0/8", "dev", "lo")
            if alone and self.is_ipv6:
                host.root("ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
            if alone and not self.is_ipv6:
                host.root("ip", "addr", "del", "::1/128", "dev", "lo")
            return host, host
        near, far = hosts.Host(), hosts.Host()
        hosts.join(near, far)
        if alone and self.is_ipv6:
            for host, name, n in ((near, "oar0", 1), (far, "oar1", 2)):
                host.root("ip", "addr", "del", f"10.91.0.{n}/24", "dev", name)
                host.root("ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
        return far, near


PLACES = [
    Place("127.0.0.1", "127.0.0.1", "127.0.0.1", "239.1.2.3", "::ffff:239.1.2.3", False),
    Place("::1", "::1", "::1", "ff05::1:2:3", "ff05::1:2:3", False),
    Place("two hosts, IPv4", "10.91.0.2", "10.91.0.1", "239.1.2.3", "::ffff:239.1.2.3", True),
    Place("two hosts, IPv6", "fd00:91::2", "fd00:91::1", "ff05::1:2:3", "ff05::1:2:3", True),
]


def load(path):
    rows = tomllib.load(open(path, "rb"))["row"]
    for row in rows:
        for each in row.pop("each", [None]):
            yield {key: value.replace("{each}", each) if isinstance(value, str) and each is not None else value for key, value in row.items()}


KEYS = {"name", "server", "server6", "client", "client6", "ready", "clients", "ends", "do", "two_do", "oracle", "limit", "no", "alone", "needs", "has_text", "after"}


class Run:
    """One row in one place."""

    def __init__(self, row, place, planted):
        self.row, self.place, self.planted = row, place, planted
        self.ends = row.get("ends")
        self.parameters = {key: value for key, value in row.items() if key not in KEYS}
        self.server, self.clients = None, []
        self.counters, self.devices = {}, []
        self.limit = PLANTED_LIMIT if planted else row.get("limit", 60)

    def start(self, host, side, me):
        """Starts the row's command of a side through `oarlock run`; a program of ours runs as it is."""
        place = self.place
        command = self.row.get(side + "6", self.row[side]) if place.is_ipv6 else self.row[side]
        words = shlex.split(
            command.format(
                server=place.server, client=place.client, tcp=place.tcp, group=place.group, device=place.device(me),
                gid=int(place.is_ipv6), interface=place.interface(me), oarlock=hosts.OARLOCK, examples=EXAMPLES, here=HERE,
            )
        )
        ours = words[0].startswith("/")
        process = host.start(words if ours else [hosts.OARLOCK, "run", "--", *words], NO_SERVICE if self.planted else None)
        process.program, process.is_ours = os.path.basename(words[0]), ours
        return process

    def is_ready(self):
        if "ready" not in self.row:
            return True
        space, what = self.row["ready"].split(" ", 1)
        if space == "line":
            return any(what in line for line in self.server.lines)
        return self.server_host.listens(space, int(what))

    def wait_ready(self, seconds):
        end = time.monotonic() + seconds
        while not self.is_ready():
            if not self.server.running():
                return f"the server has ended ({self.server.status}) before it was ready"
            if time.monotonic() > end:
                return f"the server is not ready within {seconds} s"
            time.sleep(0.03)
        return None

    def wait_heard(self, times, until):
        """Waits until the server has said the row's `after` so often."""
        said = self.row.get("after")
        while said and sum(said in line for line in self.server.lines) < times:
            if not self.server.running() or time.monotonic() > until:
                return f"the server has not said {said!r} {times} times"
            time.sleep(0.01)
        return None

    def complaints(self):
        name = self.row["oracle"]
        judge = next(getattr(module, name) for module in (oracles, mixed, more) if hasattr(module, name))
        said = judge(self, **self.parameters)
        return [complaint for complaint in said if not (self.planted and complaint.startswith("service: "))]

    def nothing_left(self):
        """No process of a program is left within some seconds, and no identifier, port or slot in a service."""
        end = time.monotonic() + 20
        for host in {self.server_host, self.client_host}:
            while left := host.programs():
                if time.monotonic() > end:
                    return [f"left behind: {hosts.described(left)}"]
                time.sleep(0.05)
        for host in {self.server_host, self.client_host}:
            while True:
                shown = host.ps()
                if shown is None or shown["ids"] == [] and shown["host"]["slots"] == [] and shown["host"]["ports"] == []:
                    break
                if time.monotonic() > end:
                    return [f"left in the service: {shown['ids']} {shown['host']}"]
                time.sleep(0.05)
        return []

    def go(self):
        """What is wrong; nothing when all is well."""
        self.planted_now = self.planted == "absent"
        self.server_host, self.client_host = self.place.set_up(self.row)
        wrong, unended = [], []
        try:
            wrong = self.on_hosts()
        finally:
            self.end_programs()
            for host in {self.server_host, self.client_host}:
                unended += host.close()
        return wrong if self.planted else wrong + unended

    def on_hosts(self):
        alone = "ready" not in self.row
        # This starts a service. A program of a planted run finds that one or none: what it starts again would be no loss.
        if self.planted != "absent" or alone:
            self.devices = self.server_host.devices()
        if self.planted and alone:
            self.lose_service()
        self.server = self.start(self.server_host, "server", self.place.server)
        wrong = []
        late = self.wait_ready(1 if self.planted_now else 60)
        if late and not self.planted:
            self.end_programs()
            return [late, *self.said()]
        if self.planted == "killed":
            self.lose_service()
        until = time.monotonic() + self.limit
        for _ in range(self.row.get("clients", 1 if "client" in self.row else 0)):
            late = self.wait_heard(len(self.clients), until)
            if late and not self.planted:
                wrong.append(late)
                break
            self.clients.append(self.start(self.client_host, "client", self.place.client))
        for command in self.row.get("two_do" if self.place.two and "two_do" in self.row else "do", []):
            self.server_host.root(*command.format(interface=self.place.interface(self.place.server)).split())
            time.sleep(0.3)
        for client in self.clients:
            if not client.wait(until):
                wrong.append(f"the client still runs after {self.limit} s")
                break
        if self.planted and any(client.status not in (None, 0) for client in self.clients):
            until = min(until, time.monotonic() + 0.3)  # what the server does makes it no better
        if self.ends:
            wrong += self.end_server(until)
        elif not wrong and not self.server.wait(until):
            wrong.append(f"the server still runs after {self.limit} s")
        if not self.planted and not wrong:
            wrong += self.nothing_left()
        shown = self.server_host.ps()
        self.counters = shown["counters"] if shown else {}
        self.end_programs()
        said_wrong = self.complaints()
        if self.planted:
            wrong = []
        return [*wrong, *said_wrong, *self.said()] if wrong or said_wrong else []

    def end_programs(self):
        """Ends what still runs of the row: first all processes of its hosts, so that nobody keeps open what is read here to its end."""
        for host in {self.server_host, self.client_host}:
            host.end_programs()
        for process in [self.server, *self.clients]:
            if process is not None:
                process.end()

    def lose_service(self):
        self.planted_now = True
        for host in {self.server_host, self.client_host}:
            host.kill_service()

    def end_server(self, until):
        """A server that serves for ever: when it has said all it has to say it is ended."""
        before = None
        events = self.parameters.get("two_events" if self.place.two else "events", [])
        due = len(events) + 1 if events else 0  # after a heading
        while self.server.running() and time.monotonic() < until:
            said = len(self.server.lines)
            if said == before and said >= due:
                break
            before = said
            time.sleep(0.3)
        if not self.server.running():
            return []
        self.server.signal(signal.SIGTERM)
        return [] if self.server.wait(time.monotonic() + 5) else ["the server does not end by SIGTERM"]

    def said(self):
        """The ends of what was said, for a reader."""
        for who, process in [("server", self.server), *(("client", client) for client in self.clients)]:
            if process is None:
                continue
            yield f"  {who}: {' '.join(process.command[process.command.index(hosts.OARLOCK) if hosts.OARLOCK in process.command else 8:])}"
            for line in [*process.lines[-8:], *(f"(stderr) {line}" for line in process.error[-6:])]:
                yield f"    | {line}"


def missing(row):
    """Why the row cannot be run on this machine, or None."""
    for program in row.get("needs", []):
        if shutil.which(program) is None and not os.path.isfile(program):
            return f"{program} is not installed"
    for side in ("server", "client") if "has_text" in row else ():
        program = shlex.split(row[side])[0]
        path = shutil.which(program)
        if path and row["has_text"].encode() not in open(path, "rb").read():
            return f"this {program} is another program"
    return None


def cells(rows, only="", place=None):
    """What can run, and the results of what cannot."""
    possible, impossible = [], []
    for row in rows:
        for where in PLACES:
            if not re.search(only, row["name"]) or place not in (None, where.name):
                continue
            if where.name in row.get("no", {}):
                impossible.append({"row": row["name"], "place": where.name, "not": row["no"][where.name]})
            else:
                possible.append((row, where))
    return possible, impossible


def cell(row, place, planted):
    began = time.monotonic()
    judged, wrong = True, ["never judged"]
    try:
        for _ in range(TRIES):
            try:
                wrong = Run(row, place, planted).go()
                break
            except oracles.Again as reason:
                wrong = [f"{TRIES} times: {reason}"]
    except Exception as error:  # a cell that cannot be judged is neither green nor red
        wrong, judged = [f"{type(error).__name__}: {error}"], False
    print(f"{'red' if wrong else 'green'} {time.monotonic() - began:5.1f} s  {row['name']} ({place.name})", file=sys.stderr, flush=True)
    return {"row": row["name"], "place": place.name, "wrong": wrong, "judged": judged, "seconds": round(time.monotonic() - began, 1)}


def main():
    options = argparse.ArgumentParser()
    options.add_argument("rows")
    options.add_argument("--out")
    options.add_argument("--only", default="")
    options.add_argument("--place")
    options.add_argument("--jobs", type=int)
    options.add_argument("--planted", choices=["absent", "killed"])
    chosen = options.parse_args()
    rows, unfit = [], 0
    for row in load(chosen.rows):
        reason = missing(row)
        if reason:
            print(f"not run: {row['name']}: {reason}", file=sys.stderr)
            unfit += 1
        else:
            rows.append(row)
    possible, impossible = cells(rows, chosen.only, chosen.place)
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs or (12 if chosen.planted else 4)) as pool:
        results = list(pool.map(lambda c: cell(*c, chosen.planted), possible))
    if chosen.out:
        json.dump(results + impossible, open(chosen.out, "w"), indent=1)
    bad = [r for r in results if bool(r["wrong"]) == (chosen.planted is None) or not r["judged"]]
    for r in bad:
        what = "not judged" if not r["judged"] else "green without a service" if chosen.planted else "red"
        print(f"{what}: {r['row']} ({r['place']}, {r['seconds']} s)")
        for line in r["wrong"]:
            print(f"    {line}")
    slowest = max(results, default={"row": "none", "place": "", "seconds": 0}, key=lambda r: r["seconds"])
    print(f"{'red' if chosen.planted else 'green'}={len(results) - len(bad)} of {len(results)} rows={len({r['row'] for r in results})} "
          f"impossible={len(impossible)} not_run={unfit} slowest={slowest['row']} ({slowest['place']}) {slowest['seconds']} s")
    sys.exit(1 if bad or not (results or unfit) else 0)


if __name__ == "__main__":
    main()
