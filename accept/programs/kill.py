"""Kills either side of pairs of programs at random moments; afterwards nothing is left. kill.py ROWS SEED KILLS

Several lanes work at once, each on a host of its own whose service lives as long as the lane: whatever a killed program leaves in it stays
visible, and the next pair of programs needs the same ports.
"""

import concurrent.futures
import os
import random
import signal
import sys
import time

import hosts
import run

LANES = 4
# How long a program that waits for ever by design is left alone before it is ended by SIGTERM, and how long it may take then.
PATIENCE, TERM_LIMIT = 1.5, 10
BY_ITSELF_LIMIT = 30
LEFT_LIMIT = 20


class Lane:
    def __init__(self, number, seed, kills, rows):
        self.rng = random.Random(seed * 100 + number)
        self.kills, self.rows = kills, rows
        self.place = run.PLACES[number % 2]
        self.counts = {"by itself": 0, "by SIGTERM": 0, "before the kill": 0}

    def go(self):
        self.host = hosts.Host()
        self.host.root("ip", "route", "add", "239.0.0.0/8", "dev", "lo")
        service = self.host.start([hosts.OARLOCK, "host", "--grace", "600"])
        try:
            end = time.monotonic() + 20
            while self.host.ps() is None:
                if time.monotonic() > end:
                    raise SystemExit("no service")
                time.sleep(0.05)
            for kill in range(self.kills):
                self.one(kill)
                assert service.running(), "the service has ended"
            return self.counts
        finally:
            service.end()
            self.host.close()

    def one(self, kill):
        row = self.rng.choice([row for row in self.rows if self.place.name not in row.get("no", {})])
        victim_is_server, before_client = self.rng.random() < 0.5, self.rng.random() < 0.1
        moment = self.rng.uniform(0, row.get("span", 1.0))
        what = f"{row['name']} ({self.place.name}), kill {kill} of the {'server' if victim_is_server else 'client'} after {moment:.3f} s"
        pair = run.Run(row, self.place, None)
        pair.planted_now, pair.server_host = False, self.host
        processes = []
        try:
            pair.server = pair.start(self.host, "server", self.place.server)
            processes.append(pair.server)
            if victim_is_server and before_client:
                time.sleep(moment / 5)
                self.kill(pair.server)
            else:
                late = pair.wait_ready(20)
                assert late is None, late
                processes += [pair.start(self.host, "client", self.place.client) for _ in range(row.get("clients", 1))]
                time.sleep(moment)
                victim = pair.server if victim_is_server else processes[1]
                if not victim.running():
                    self.counts["before the kill"] += 1
                self.kill(victim)
            for survivor in processes:
                if survivor.running():
                    self.survives(row, survivor)
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from None
        finally:
            for process in processes:
                process.end()
        left = self.left()
        assert not left, f"{what}: left after {LEFT_LIMIT} s: {left}"

    def kill(self, victim):
        """SIGKILL to the program itself, whatever stands before it."""
        for pid in self.host.processes():
            try:
                if os.getpgid(pid) == victim.pid and pid != victim.pid:
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        victim.signal(signal.SIGKILL)
        assert victim.wait(time.monotonic() + 10), "the killed program does not go"

    def survives(self, row, survivor):
        connected = "by_itself" in row and any(row["by_itself"] in line for line in survivor.lines)
        if survivor.wait(time.monotonic() + (BY_ITSELF_LIMIT if connected else PATIENCE)):
            self.counts["by itself"] += 1
            return
        assert not connected, f"{survivor.program} does not end by itself: {survivor.lines[-3:]}"
        survivor.signal(signal.SIGTERM)
        assert survivor.wait(time.monotonic() + TERM_LIMIT), f"{survivor.program} does not end by SIGTERM"
        self.counts["by SIGTERM"] += 1

    def left(self):
        end = time.monotonic() + LEFT_LIMIT
        while True:
            shown = self.host.ps()
            if shown is None:
                return "the service does not answer"
            processes = set(self.host.processes()) - {shown["host"]["pid"]}
            left = [*shown["ids"], *shown["host"]["slots"], *shown["host"]["ports"], *shown["host"]["clients"], *processes]
            if not left or time.monotonic() > end:
                return left and f"{left} {hosts.described(processes)}"
            time.sleep(0.05)


def main():
    path, seed, kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rows = list(run.load(path))
    print(f"seed={seed}")
    with concurrent.futures.ThreadPoolExecutor(LANES) as pool:
        lanes = [Lane(n, seed, kills // LANES, rows) for n in range(LANES)]
        done = [pool.submit(lane.go) for lane in lanes]
        failed = [error for one in done if (error := one.exception()) is not None]
    for error in failed:
        print(f"{type(error).__name__}: {error}")
    if failed:
        sys.exit(1)
    counts = {key: sum(one.result()[key] for one in done) for key in lanes[0].counts}
    print(f"seed={seed} kills={kills} rows={len(rows)} survivors_ended_by_themselves={counts['by itself']} "
          f"by_sigterm={counts['by SIGTERM']} ended_before_the_kill={counts['before the kill']} left=0")


if __name__ == "__main__":
    main()
