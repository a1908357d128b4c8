#!/usr/bin/env bash
# bench measures write, send and read of 64 B and 1 MiB, polled and event-driven, over UDP 4791 and beside it TCP: every content compared,
# figures that hold together. What cannot be measured is refused by name. The README has a run of benches/data.sh with a row for each,
# beside TCP, libfabric and the bare UDP stream, and names the largest costs.
. "$(dirname "$0")/lib.sh"
runs=0
for op in write send read; do for size in 64 1048576; do for mode in poll event; do for path in udp tcp; do
  what="$op $size $mode $path"
  "$OARLOCK" bench $op --local --size $size --mode $mode --path $path --seconds 0.2 --json >"$work/bench.json" 2>"$work/bench.err" || fail "$what exited with $?"
  python3 - "$work/bench.json" $op $size $mode $path <<'P' || fail "$what: $(cat "$work/bench.json")"
import json, sys
op, size, mode, path = sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
r = json.load(open(sys.argv[1]))
assert r["schema"] == "oarlock.bench/1" and r["ok"] and len(r["results"]) == 1, r
r = r["results"][0]
assert (r["op"], r["size"], r["mode"], r["path"], r["mismatches"]) == (op, size, mode, path, 0), r
assert r["msgs_per_s"] > 0 and abs(r["bytes_per_s"] / (r["msgs_per_s"] * size) - 1) < 0.01, r
lat = r["lat_us"]
# A stream of TCP knows no end of a single message.
assert lat is not None or path == "tcp", r
assert lat is None or 0 < lat["min"] <= lat["p50"] <= lat["p99"] <= lat["p999"] <= lat["max"], lat
assert all(cost > 0 for cost in r["cpu_ns_per_msg"].values()) and r["retransmits"] >= 0, r
P
  runs=$((runs + 1))
done; done; done; done
for wrong in 'read --transport uc' 'write --transport ud' 'write --path local' 'send --transport ud --size 5000' 'write --size 0'; do
  s=0; "$OARLOCK" bench $wrong --local --seconds 0.1 >"$work/wrong.out" 2>"$work/wrong.err" || s=$?
  [ "$s" = 2 ] || fail "'$wrong' exited with $s"
  grep -q '^error: ' "$work/wrong.err" || fail "'$wrong' is refused without a sentence"
done
for op in write send read; do for size in '64 B' '1 MiB'; do for mode in polled event-driven; do
  grep -Eq "^\| $op $size, $mode( \| [0-9.]+){6} \|" "$here/README.md" || fail "the README has no row for $op $size, $mode"
done; done; done
for word in udpbw libfabric 'three largest costs'; do grep -q "$word" "$here/README.md" || fail "the README does not speak of $word"; done
pass "$runs measurements, every content compared; 5 impossible ones refused; 12 rows in the README"
