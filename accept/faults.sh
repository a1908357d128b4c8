#!/usr/bin/env bash
# Faults are injected by rules, recorded, and replayed: a record strikes the same packets again; a bad rule is refused with the rule, the
# key and the value; packets that were changed on the way are caught by the ICRC check of the receiver, and the data arrive.
. "$(dirname "$0")/lib.sh"
ping_pair() { # ADDRESS NAME, with the faults in the environment of the client only
  local addr=$1 name=$2
  # What the last server has said is not what this one says.
  rm -f "$work"/server.{out,err}
  env -u OARLOCK_FAULT -u OARLOCK_FAULT_RECORD -u OARLOCK_FAULT_REPLAY "$OARLOCK" ping -s -a "$addr" -V >"$work/server.out" 2>"$work/server.err" &
  local server=$!; children+=($server)
  within 120 grep -qs 'listening' "$work/server.err" "$work/server.out" || fail "$name: the server does not listen"
  "$OARLOCK" ping -c -a "$addr" -C 200 -S 20000 -V --json >"$work/$name.json" 2>"$work/$name.err" || fail "$name: the client exited with $?"
  ended "$server"; [ "$s" = 0 ] || fail "$name: the server exited with $s"
  python3 - "$work/$name.json" <<'P' || fail "$name: $(cat "$work/$name.json")"
import json, sys
r = json.load(open(sys.argv[1]))
assert r["ok"] and (r["sent"], r["received"], r["lost"], r["mismatches"]) == (200, 200, 0, 0), r
P
}
for addr in 127.0.0.1 ::1; do
  rm -f "$work"/*.record
  OARLOCK_FAULT='drop:direction=tx,p=0.02,seed=7;corrupt:p=0.01,seed=8;duplicate:p=0.02,seed=9;reorder:p=0.01,seed=10;delay:p=0.01,us=300,seed=11' \
    OARLOCK_FAULT_RECORD="$work/first.record" ping_pair "$addr" first
  for kind in drop corrupt duplicate reorder delay; do
    grep -q "$kind" "$work/first.record" || fail "$addr: no $kind in the record"
  done
  OARLOCK_FAULT_REPLAY="$work/first.record" OARLOCK_FAULT_RECORD="$work/second.record" ping_pair "$addr" second
  python3 - "$work/first.record" "$work/second.record" <<'P' || fail "$addr: the replay strikes other packets"
import sys
struck = []
for path in sys.argv[1:]:
    # Place in the stream, direction, what was done, stream: numbers of packets and queue pairs differ from run to run.
    lines = [l.split() for l in open(path).read().splitlines() if l and not l.startswith('#')]
    struck.append([(l[0], l[1], l[5].split('=')[0], l[6]) for l in lines])
first, second = struck
assert len(first) > 50 and set(second) <= set(first), set(second) - set(first)
# Repetitions by time-out differ from run to run, and what was recorded for them finds another packet in its place.
assert len(second) > len(first) / 2, (len(first), len(second))
P
done
for rule in 'lose:p=0.1' 'drop:p=2' 'drop:colour=red' 'drop:opcode=nosuch' 'delay:p=0.1' ''; do
  [ -n "$rule" ] || continue
  s=0; OARLOCK_FAULT="$rule" "$OARLOCK" ping -c -a 127.0.0.1 -C 1 >"$work/bad.out" 2>"$work/bad.err" || s=$?
  [ "$s" != 0 ] || fail "the rule '$rule' is accepted"
  grep -q '^error: ' "$work/bad.err" || fail "the rule '$rule' is refused without a sentence"
done
pass "every kind strikes, is recorded and replayed (IPv4 and IPv6), bad rules are refused: $(wc -l <"$work/first.record") lines of record"
