"""What `oarlock run` adds to a program's start, and what the programs measure beside `oarlock bench`.

Musts: less than 20 ms; 0.9 of the bandwidth and 1.1 of the latency of `oarlock bench` for the same shape. Runs alternate. A figure of a
program is divided by the one that bench has measured just before or after it, so that whatever else the machine does falls on both, and
what is judged is the median of these ratios. A median that misses its must is not believed at once: more pairs are measured, up to MOST,
and then the must is widened by what the median may be off (its standard error, from the spread of the ratios), at most by NOISE_CAP.
"""

import json
import math
import re
import statistics
import sys
import time

import hosts

STARTS = 21
LEAST, MOST = 7, 15
NOISE_CAP = 0.1


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
    finished(client, 120, program)
    finished(server, 20, f"{program}, the server")
    (row,) = [line.split() for line in client.lines if re.fullmatch(r" \d+ +\d+ [ \t0-9.]+", line)]
    return row


def standard_error(ratios):
    """Of their median, as far as they are normal: robust, from the median distance to it."""
    middle = statistics.median(ratios)
    distance = statistics.median(abs(ratio - middle) for ratio in ratios)
    return 1.25 * 1.48 * distance / math.sqrt(len(ratios))


def beside(ours, theirs, is_met):
    """Pairs of figures until the median of their ratios meets the must, or MOST; what is said of it, the ratio, and the noise."""
    figures, ratios = [], []
    while len(ratios) < LEAST or (len(ratios) < MOST and not is_met(statistics.median(ratios), 0)):
        # First the one, then the other.
        if len(ratios) % 2:
            other, own = theirs(), ours()
        else:
            own, other = ours(), theirs()
        figures.append((own, other))
        ratios.append(other / own)
    own, other = (statistics.median(side) for side in zip(*figures))
    ratio, noise = statistics.median(ratios), min(standard_error(ratios), NOISE_CAP)
    return f"bench={own:.1f} program={other:.1f} ratio={ratio:.2f} pairs={len(ratios)} noise={noise:.2f}", ratio, noise


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

        def bench_bandwidth():
            return bench(host, "--size", "65536", "--window", "128")["bytes_per_s"] / 2**20

        def program_bandwidth():
            return float(perftest(host, "ib_write_bw", "-s", "65536", "-t", "128", "-n", "10000", "-N")[3])

        def bandwidth_is_met(ratio, noise):
            return ratio >= 0.9 - noise

        line, ratio, noise = beside(bench_bandwidth, program_bandwidth, bandwidth_is_met)
        said.append(f"write_bw_MiB_per_s: {line}")
        if not bandwidth_is_met(ratio, noise):
            wrong.append(f"ib_write_bw reaches {ratio:.2f} of the bandwidth of `oarlock bench`")

        def bench_latency():
            return bench(host, "--size", "64", "--lat")["lat_us"]["p50"]

        def program_latency():
            return float(perftest(host, "ib_write_lat", "-s", "64", "-n", "10000")[4])

        def latency_is_met(ratio, noise):
            return ratio <= 1.1 + noise

        line, ratio, noise = beside(bench_latency, program_latency, latency_is_met)
        said.append(f"write_lat_us: {line}")
        if not latency_is_met(ratio, noise):
            wrong.append(f"ib_write_lat takes {ratio:.2f} of the latency of `oarlock bench`")
        service.end()
    finally:
        host.close()
    print("\n".join(wrong + ["; ".join(said)]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
