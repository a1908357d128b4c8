#!/usr/bin/env bash
# Connection set-up, side by side in one run: oarlock one at a time and 1,000 at once, libfabric's tcp provider, plain TCP; system calls
# and context switches per connection; memory per idle connection; cost at 1, 1,000 and 10,000 live connections. Reported, never judged.
# usage: bash benches/setup.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-3}
oarlock=${OARLOCK:-${CARGO_TARGET_DIR:-target}/release/oarlock}
[ -x "$oarlock" ] || cargo build --release --locked -q
if [ -z "${OARLOCK_BENCH_INSIDE:-}" ] && unshare -Urn true 2>/dev/null; then
  OARLOCK_BENCH_INSIDE=1 OARLOCK=$oarlock exec unshare -Urn bash "$0" "$@"
fi
[ -z "${OARLOCK_BENCH_INSIDE:-}" ] || ip link set lo up
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cc -O2 -o "$work/tcp_connect" benches/peers/tcp_connect.c
cc -O2 -o "$work/fabric_connect" benches/peers/fabric_connect.c -lfabric 2>/dev/null || echo 'not run: libfabric-dev is not installed' >&2
report() { python3 -c '
import json, sys
d = json.load(sys.stdin); p = {x["name"]: x for x in d["phases"]}
print("oarlock cmtime concurrency=%d: %d of %d, connects %.0f per s, set-ups %.0f per s, connect p50 %.1f us p99 %.1f us" % (
    d["concurrency"], d["completed"], d["asked"], d["connects_per_s"], d["setups_per_s"], p["connect"]["median_us"], p["connect"]["p99_us"]))'; }
for round in $(seq "$rounds"); do
  echo "round $round"
  "$oarlock" cmtime --local -c 1000 --concurrency 1 --json 2>"$work/err" | report
  "$oarlock" cmtime --local -c 1000 --concurrency 1000 --json 2>"$work/err" | report
  [ ! -x "$work/fabric_connect" ] || timeout 60 "$work/fabric_connect" tcp 1000
  "$work/tcp_connect" 4000
done
for live in 1 1000 10000; do
  printf 'at %d live connections: ' "$live"
  "$oarlock" cmtime --local -c 500 --concurrency 1 --live "$live" --json 2>"$work/err" | python3 -c '
import json, sys
d = json.load(sys.stdin); p = {x["name"]: x for x in d["phases"]}
print("connect p50 %.1f us, set-ups %.0f per s; memory per idle connection: program %d B, service %d B" % (
    p["connect"]["median_us"], d["setups_per_s"], d["program_bytes_per_connection"], d["service_bytes_per_connection"]))' || tail -n 2 "$work/err"
done
if command -v strace >/dev/null; then
  strace -f -c -o "$work/strace" "$oarlock" cmtime --local -c 1000 --concurrency 1 --json >/dev/null 2>&1 || true
  echo 'system calls of 1,000 connections (both programs and the service):'; head -n 14 "$work/strace"
else
  echo 'not run: strace is not installed' >&2
fi
