#!/usr/bin/env bash
# Data transfer, side by side in one run: write, send and read at 64 B and 1 MiB, polled and event-driven, bandwidth and latency, beside a bulk stream
# over bare UDP (the floor of RoCEv2 over UDP: the same packets, window and acknowledgements, with and without the ICRC), TCP by the same driver
# and by a bare program, and libfabric's tcp provider. Interleaved; medians and ratios of one run, reported, never judged.
# usage: bash benches/data.sh [ROUNDS [SECONDS]]     OARLOCK names the program, which is else the release build of this tree
#        bash benches/data.sh profile                the three largest costs of the bulk transfers and of small messages, by perf
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} seconds=${2:-0.5}
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
"$OARLOCK" host >"$work/host" 2>&1 & service=$!
for _ in $(seq 100); do "$OARLOCK" ps >/dev/null 2>&1 && break; sleep 0.1; done

if [ "$rounds" = profile ]; then
  command -v perf >/dev/null || { echo 'not run: perf is not installed' >&2; exit 0; }
  # The recipe: both processes of a run are children of the one that perf starts; cpu-clock samples need no hardware counters.
  for what in 'write --size 1048576' 'send --size 1048576' 'read --size 1048576' 'send --size 64'; do
    perf record -q -e cpu-clock -F 999 -g -o "$work/perf" -- "$OARLOCK" bench $what --local --mode event --no-check --seconds 5 --json >"$work/run" 2>/dev/null ||
      { echo "not run: perf cannot record here (kernel.perf_event_paranoid?)" >&2; exit 0; }
    echo "$what, event-driven: the three largest costs (share of all samples of both processes)"
    perf report -q -i "$work/perf" --no-children -g none --percent-limit 0.5 --sort symbol 2>/dev/null | sed 's/ *- *- *$//' | awk 'NF && ++n <= 3'
  done
  exit 0
fi

for peer in udpbw sbw lat; do cc -O3 -o "$work/$peer" "benches/peers/$peer.c" -lpthread; done
cc -O2 -o "$work/fabric_data" benches/peers/fabric_data.c -lfabric 2>/dev/null || echo 'not run: libfabric-dev is not installed' >&2

python3 - "$OARLOCK" "$work" "$rounds" "$seconds" <<'PYTHON'
import json, os, re, statistics, subprocess, sys

oarlock, work, rounds, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
MS = str(int(float(seconds) * 1000))
SIZES = ((64, "64 B"), (1 << 20, "1 MiB"))
OPS, MODES = ("write", "send", "read"), ("poll", "event")
found = {}

def put(row, column, value):
    if value:
        found.setdefault(row, {}).setdefault(column, []).append(value)

def bench(op, size, mode, path, lat):
    command = [oarlock, "bench", op, "--local", "--path", path, "--size", str(size), "--mode", mode, "--seconds", seconds, "--json"]
    run = subprocess.run(command + (["--lat"] if lat else []), capture_output=True, text=True, timeout=300)
    if run.returncode:
        print(f"{' '.join(command)}: {run.stderr.strip()}", file=sys.stderr)
        return None
    result = json.loads(run.stdout)["results"][0]
    return result["lat_us"]["p50"] if lat else result["bytes_per_s"] / 1e9

def peer(pattern, name, *arguments):
    path = os.path.join(work, name)
    if not os.access(path, os.X_OK):
        return None
    try:
        text = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=30).stdout
    except subprocess.TimeoutExpired:
        print(f"{name} {' '.join(arguments)}: not within 30 s", file=sys.stderr)
        return None
    match = re.search(pattern, text)
    return float(match.group(1)) if match else None

print(f"machine: {os.cpu_count()} cores, Linux {os.uname().release}, load {os.getloadavg()[0]:.1f}; {rounds} rounds of {seconds} s")
for number in range(rounds):
    for size, name in SIZES:
        window = "128" if size == 64 else "8"
        for mode in MODES:
            for op in OPS:
                row = f"{op} {name} {mode}"
                put(row, "GB/s", bench(op, size, mode, "udp", False))
                put(row, "us", bench(op, size, mode, "udp", True))
                put(row, "TCP GB/s", bench(op, size, mode, "tcp", False))
                put(row, "TCP us", bench(op, size, mode, "tcp", True))
                put(row, "fabric GB/s", peer(r"([\d.]+) GB/s", "fabric_data", "tcp", op, str(size), window, MS, mode))
                put(row, "fabric us", peer(r"median ([\d.]+) us", "fabric_data", "tcp", op, str(size), "1", MS, mode))
    for label, *arguments in (("UDP stream, 4 KiB, polled", ), ("UDP stream, 4 KiB, with ICRC, polled", "txc=1", "rxc=1"), ("UDP stream, 4 KiB, with ICRC, event-driven", "txc=1", "rxc=1", "spin=0")):
        put(label, "GB/s", peer(r"([\d.]+) GB/s", "udpbw", f"ms={MS}", *arguments))
    put("TCP stream, bare, 1 MiB", "GB/s", peer(r"([\d.]+) GB/s", "sbw", "tcp", str(1 << 20), MS))
    for kind, label in (("tcp", "sleeping"), ("tcpspin", "polled"), ("udp", "sleeping"), ("udpspin", "polled")):
        put(f"{kind[:3].upper()} 64 B there, bare, {label}", "us", peer(r"one-way p50 ([\d.]+) us", "lat", kind, "2000"))
    print(f"round {number + 1} done", file=sys.stderr)

middle = {row: {column: statistics.median(values) for column, values in columns.items()} for row, columns in found.items()}
floor = middle.get("UDP stream, 4 KiB, with ICRC, polled", {}).get("GB/s")
print("\nMedians. us: send and write half of the way there and back, read the whole; of libfabric until its completion, which for send and write")
print("is local. Ratios: bandwidth to TCP by the same driver, to libfabric, and at 1 MiB to the UDP stream with ICRC; times likewise (below 1 is faster).\n")
print(f"| {'':22} | GB/s | us | TCP GB/s | TCP us | fabric GB/s | fabric us | GB/s to TCP | to fabric | to UDP | us to TCP |")
print("|---|" + "---|" * 10)
for row, cells in middle.items():
    if not any(row.startswith(op + " ") for op in OPS):
        continue
    def ratio(a, b):
        return f"{a / b:.2f}" if a and b else "-"
    def cell(column, digits):
        return f"{cells[column]:.{digits}f}" if column in cells else "-"
    print(f"| {row:22} | {cell('GB/s', 3)} | {cell('us', 1)} | {cell('TCP GB/s', 3)} | {cell('TCP us', 1)} | {cell('fabric GB/s', 3)} | {cell('fabric us', 1)} | "
          f"{ratio(cells.get('GB/s'), cells.get('TCP GB/s'))} | {ratio(cells.get('GB/s'), cells.get('fabric GB/s'))} | "
          f"{ratio(cells.get('GB/s'), floor) if '1 MiB' in row else '-'} | {ratio(cells.get('us'), cells.get('TCP us'))} |")
print()
for row, cells in middle.items():
    if not any(row.startswith(op + " ") for op in OPS):
        print(f"{row}: " + ", ".join(f"{value:.3f} {column}" for column, value in cells.items()))
PYTHON
