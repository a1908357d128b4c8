#!/usr/bin/env bash
# Connection set-up, side by side in one run: oarlock one at a time and 1,000 at once, libfabric's tcp provider, plain TCP; wake-ups and
# system calls per connection; memory per idle connection; cost at 1, 1,000 and 10,000 live connections. Reported, never judged.
# usage: bash benches/setup.sh [ROUNDS]      OARLOCK names the program, which is else the release build of this tree
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
export OARLOCK=${OARLOCK:-${CARGO_TARGET_DIR:-$PWD/target}/release/oarlock}
[ -x "$OARLOCK" ] || cargo build --release --locked -q
if [ -z "${OARLOCK_BENCH_INSIDE:-}" ] && unshare -Urn true 2>/dev/null; then
  OARLOCK_BENCH_INSIDE=1 exec unshare -Urn bash "$0" "$@"
fi
[ -z "${OARLOCK_BENCH_INSIDE:-}" ] || ip link set lo up
work=$(mktemp -d)
service=
cleanup() { [ -z "$service" ] || kill "$service" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
cc -O2 -o "$work/tcp_connect" benches/peers/tcp_connect.c
cc -O2 -o "$work/fabric_connect" benches/peers/fabric_connect.c -lfabric 2>/dev/null || echo 'not run: libfabric-dev is not installed' >&2

# A service of our own, so that it can be looked at.
"$OARLOCK" host >"$work/host" 2>&1 & service=$!
for _ in $(seq 100); do "$OARLOCK" ps >/dev/null 2>&1 && break; sleep 0.1; done

python3 - "$OARLOCK" "$work" "$service" "$rounds" <<'PYTHON'
import json, os, re, resource, shutil, statistics, subprocess, sys

oarlock, work, service, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
N = 1000

def switches():
    text = open(f"/proc/{service}/status").read()
    return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.M).group(1))

def cpu():
    fields = open(f"/proc/{service}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

def cmtime(*options):
    before, was = resource.getrusage(resource.RUSAGE_CHILDREN), (switches(), cpu())
    run = subprocess.run([oarlock, "cmtime", "--local", "--json", *map(str, options)], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"oarlock cmtime {options}: {run.stderr.strip()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = json.loads(run.stdout)
    result["phases"] = {phase["name"]: phase for phase in result["phases"]}
    result["sleeps"] = (after.ru_nvcsw - before.ru_nvcsw, switches() - was[0])
    result["cpu_us"] = (1e6 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), 1e6 * (cpu() - was[1]))
    return result

def peer(name, *arguments):
    path = os.path.join(work, name)
    if not os.access(path, os.X_OK):
        return None
    text = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=120).stdout.strip()
    print(f"  {text}")
    found = re.search(r"([0-9.]+) per s", text)
    return float(found.group(1)) if found else None

columns = {"one": [], "one set-up": [], "many": [], "many set-up": [], "fabric": [], "tcp": []}
print(f"machine: {os.cpu_count()} cores, Linux {os.uname().release}, load {os.getloadavg()[0]:.1f}")
for number in range(rounds):
    print(f"round {number + 1}")
    for name, k in (("one", 1), ("many", N)):
        r = cmtime("-c", N, "--concurrency", k)
        p = r["phases"]
        print(f"  oarlock, {k} at a time: connects {r['connects_per_s']:.0f} per s, set-ups {r['setups_per_s']:.0f} per s; median us: " +
              ", ".join(f"{step} {p[step]['median_us']:.0f}" for step in p) +
              f"; sleeps per connection: program {r['sleeps'][0] / N:.1f}, service {r['sleeps'][1] / N:.1f}" +
              f"; CPU us: program {r['cpu_us'][0] / N:.0f}, service {r['cpu_us'][1] / N:.0f}")
        columns[name].append(r["connects_per_s"])
        columns[name + " set-up"].append(r["setups_per_s"])
    for name, value in (("fabric", peer("fabric_connect", "tcp", str(N))), ("tcp", peer("tcp_connect", "4000"))):
        if value:
            columns[name].append(value)
middle = {name: statistics.median(values) for name, values in columns.items() if values}
print("medians per s: " + ", ".join(f"{name} {value:.0f}" for name, value in middle.items()))
for base in ("fabric", "tcp"):
    if base in middle:
        print(f"ratios to {base}: " + ", ".join(f"{name} {middle[name] / middle[base]:.2f}" for name in list(columns)[:4]))

for live in (1, 1000, 10000):
    r = cmtime("-c", 500, "--concurrency", 1, "--live", live)
    line = f"beside {live} live connections: connect median {r['phases']['connect']['median_us']:.0f} us, set-ups {r['setups_per_s']:.0f} per s"
    if live > 1:  # one connection also brings what every program has once
        line += f"; an idle connection holds {r['program_bytes_per_connection'] / 2:.0f} bytes at each end, {r['service_bytes_per_connection']:.0f} in the service for both"
    print(line)

strace = shutil.which("strace")
if not strace:
    print("not run: strace is not installed", file=sys.stderr)
    raise SystemExit
def calls(path):
    rows = [line.split() for line in open(path) if re.match(r"\s*\d+\.\d+\s+\d+\.\d+\s+\d+\s+\d+\s", line)]
    named = {row[-1]: int(row[3]) / N for row in rows if row[-1] != "total"}
    top = sorted(named.items(), key=lambda item: -item[1])[:7]
    return f"{sum(named.values()):.1f}: " + ", ".join(f"{name} {count:.1f}" for name, count in top)
for k in (1, N):
    watch = subprocess.Popen([strace, "-f", "-c", "-o", f"{work}/service", "-p", str(service)], stderr=subprocess.PIPE, text=True)
    watch.stderr.readline()  # attached
    subprocess.run([oarlock, "cmtime", "--local", "-c", str(N), "--concurrency", str(k), "--json"], capture_output=True)
    watch.terminate(); watch.wait()
    subprocess.run([strace, "-f", "-c", "-o", f"{work}/program", oarlock, "cmtime", "--local", "-c", str(N), "--concurrency", str(k), "--json"], capture_output=True)
    print(f"system calls per connection, {k} at a time: program (both ends) {calls(work + '/program')}; service {calls(work + '/service')}")
PYTHON
