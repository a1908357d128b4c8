"""What `oarlock run` adds to a program's start, and what the programs measure beside `oarlock bench`.

Runs alternate, and each figure is the median of all runs of its kind, so that whatever else the machine does falls on both sides alike.
Musts: less than 20 ms; 0.9 of the bandwidth and 1.1 of the latency of `oarlock bench`. The ratios' musts are widened by NOISE, what two
equal runs differ by here: it is measured by the same runs, as the median distance of bench's own runs from their median, and capped.
"""

import json
import re
import statistics
import sys
import time

import hosts

STARTS, PAIRS = 21, 7
NOISE_CAP = 0.15


def finished(process, seconds, what):
    if not process.wait(time.monotonic() + seconds):
        process.end()
        raise SystemExit(f"{what} still runs after {seconds} s")
    process.end()
    if process.status != 0:
        raise SystemExit(f"{what} ended with {process.status}: {process.lines[-3:]} {process.error[-3:]}")


def start_cost(host, program):
    """Milliseconds that a program takes from its start to its end: as it is, and through `oarlock run`; medians."""
    took = {"plain": [], "run": []}
    for _ in range(STARTS):
        for kind, before in (("plain", []), ("run", [hosts.OARLOCK, "run", "--"])):
            began = time.monotonic()
            process = host.start([*before, *program])
            process.wait(began + 20)
            took[kind].append((time.monotonic() - began) * 1000)
            process.end()
            if kind == "run" and process.status != 0:
                raise SystemExit(f"{program} through `oarlock run` ended with {process.status}: {process.error}")
    return {kind: statistics.median(times) for kind, times in took.items()}


def bench(host, *arguments):
    process = host.start([hosts.OARLOCK, "bench", "write", "--local", "--no-check", "--json", "--seconds", "1", *arguments])
    finished(process, 60, "oarlock bench")
    return json.loads(process.lines[-1])["results"][0]


def perftest(host, program, *options):
    command = [hosts.OARLOCK, "run", "--", program, "-F", "-d", "soft_lo", "-x", "0", *options]
    server = host.start(command)
    end = time.monotonic() + 20
    while not host.listens("tcp", 18515):
        if time.monotonic() > end or not server.running():
            raise SystemExit(f"{program} does not listen: {server.lines} {server.error}")
        time.sleep(0.02)
    client = host.start([*command, "127.0.0.1"])
    finished(client, 60, program)
    finished(server, 20, f"{program}, the server")
    (row,) = [line.split() for line in client.lines if re.fullmatch(r" \d+ +\d+ [ \t0-9.]+", line)]
    return row


def compare(ours, theirs):
    """Medians, and the noise of ours."""
    middle = statistics.median(ours)
    noise = statistics.median(abs(figure / middle - 1) for figure in ours)
    return middle, statistics.median(theirs), min(noise, NOISE_CAP)


def main():
    host = hosts.Host()
    wrong, said = [], []
    try:
        service = host.start([hosts.OARLOCK, "host", "--grace", "600"])
        while host.ps() is None:
            time.sleep(0.05)
        for program in (["true"], ["ibv_devices"]):
            cost = start_cost(host, program)
            added = cost["run"] - cost["plain"]
            said.append(f"start_of_{program[0]}_ms={cost['plain']:.1f} through_run_ms={cost['run']:.1f} added_ms={added:.1f}")
            if added >= 20:
                wrong.append(f"`oarlock run -- {program[0]}` takes {added:.1f} ms more")

        ours, theirs = [], []
        for _ in range(PAIRS):
            ours.append(bench(host, "--size", "65536", "--window", "128")["bytes_per_s"] / 2**20)
            theirs.append(float(perftest(host, "ib_write_bw", "-s", "65536", "-t", "128", "-n", "20000", "-N")[3]))
        middle, other, noise = compare(ours, theirs)
        said.append(f"write_bw_MiB_per_s: bench={middle:.0f} ib_write_bw={other:.0f} ratio={other / middle:.2f} noise={noise:.2f}")
        if other < middle * (0.9 - noise):
            wrong.append(f"ib_write_bw reaches {other / middle:.2f} of the bandwidth of `oarlock bench`")

        ours, theirs = [], []
        for _ in range(PAIRS):
            ours.append(bench(host, "--size", "64", "--lat")["lat_us"]["p50"])
            theirs.append(float(perftest(host, "ib_write_lat", "-s", "64", "-n", "10000")[4]))
        middle, other, noise = compare(ours, theirs)
        said.append(f"write_lat_us: bench={middle:.2f} ib_write_lat={other:.2f} ratio={other / middle:.2f} noise={noise:.2f}")
        if other > middle * (1.1 + noise):
            wrong.append(f"ib_write_lat takes {other / middle:.2f} of the latency of `oarlock bench`")
        service.end()
    finally:
        host.close()
    print("\n".join(wrong + ["; ".join(said)]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
