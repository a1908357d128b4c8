#!/usr/bin/env bash
# Two processes move data both ways by every operation at 1 % loss, with repetitions and packets out of order beside it: no byte differs,
# no descriptor and no memory is left behind, whatever the number of cycles. OARLOCK_SOAK_SECONDS says how long (120).
. "$(dirname "$0")/lib.sh"
seconds=${OARLOCK_SOAK_SECONDS:-120}
"$OARLOCK" soak data --seconds "$seconds" --loss 0.01 --fault duplicate:p=0.005,seed=3 --fault reorder:p=0.005,seed=4 --seed "${OARLOCK_SOAK_SEED:-1}" \
  >"$work/soak.json" 2>"$work/soak.err" || fail "it exited with $?: $(tail -n 3 "$work/soak.err" "$work/soak.json")"
python3 - "$work/soak.json" <<'P' || fail "the figures: $(cat "$work/soak.json")"
import json, sys
r = json.load(open(sys.argv[1]))
assert r["schema"] == "oarlock.soak/1" and r["ok"] and r["mismatches"] == 0 and r["complaint"] is None, r
for side in (r["active"], r["passive"]):
    for what in ("sends", "writes", "writes_with_imm", "reads", "atomics", "received", "retransmits", "faults"):
        assert side[what] > 0, what
    assert side["cycles"] >= 10 and side["mismatches"] == 0, side
    assert side["fds"][0] == side["fds"][1], side["fds"]
    # The margin is what a heap keeps in pieces; a leak of one connection a cycle is above it after an hour, and of one buffer at once.
    assert side["rss_bytes"][1] <= side["rss_bytes"][0] * 1.3 + (4 << 20), side["rss_bytes"]
assert r["service_rss_bytes"][1] <= r["service_rss_bytes"][0] * 1.2 + (2 << 20), r["service_rss_bytes"]
P
nothing_left || fail "something is left: $(cat "$work/ps.json")"
pass "$(python3 -c 'import json,sys; r=json.load(open(sys.argv[1])); a,p=r["active"],r["passive"]; print("%d s, %d cycles, %.0f MB both ways, faults %d, repeated packets %d, mismatches 0, descriptors %s %s, resident MiB %.1f to %.1f and %.1f to %.1f" % (r["seconds"], a["cycles"], (a["bytes"]+p["bytes"])/1e6, a["faults"]+p["faults"], a["retransmits"]+p["retransmits"], a["fds"], p["fds"], a["rss_bytes"][0]/2**20, a["rss_bytes"][1]/2**20, p["rss_bytes"][0]/2**20, p["rss_bytes"][1]/2**20))' "$work/soak.json")"
