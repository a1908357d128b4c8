#!/usr/bin/env bash
# ping between two processes: both families, sizes, several clients of one persistent server at once, every message compared on both sides;
# another program's server is left with a sentence; the end by a signal; nothing is left.
. "$(dirname "$0")/lib.sh"
"$OARLOCK" ping -s -P -V --json >"$work/server.json" 2>"$work/server.err" & server=$!; children+=($server)
within 120 grep -qs 'listening' "$work/server.err" || fail "the server does not listen"
total=0
for size in 1 64 4096 65536 1048576; do
  "$OARLOCK" ping -c -a 127.0.0.1 -C 20 -S $size -V >"$work/client.out" 2>"$work/client.err" || fail "$size bytes: client exited with $?"
  expect "$work/client.out" "^20 messages of $size bytes sent, 20 received, 0 lost, 0 wrong, time [0-9.]+ ms$"
  expect "$work/client.out" '^rtt min/avg/max/mdev = [0-9.]+/[0-9.]+/[0-9.]+/[0-9.]+ ms$'
  total=$((total + 20))
done
clients=()
for n in 1 2 3 4 5 6; do
  addr=127.0.0.1; [ $((n % 2)) = 0 ] && addr=::1
  "$OARLOCK" ping -c -a $addr -C 200 -S $((n * 1000)) -V --json >"$work/client$n.json" 2>"$work/client$n.err" & clients+=($!); children+=($!)
  total=$((total + 200))
done
for pid in "${clients[@]}"; do ended "$pid"; [ "$s" = 0 ] || fail "one of six clients exited with $s"; done
python3 - "$work" <<'P' || fail "a client's figures"
import json, sys
for n in range(1, 7):
    c = json.load(open(f"{sys.argv[1]}/client{n}.json"))
    r = c["rtt_us"]
    assert c["schema"] == "oarlock.ping/1" and c["ok"] and c["side"] == "client", c
    assert (c["asked"], c["sent"], c["received"], c["lost"], c["late"], c["mismatches"]) == (200, 200, 200, 0, 0, 0), c
    assert 0 < r["min"] <= r["avg"] <= r["max"] and 0 <= r["mdev"] <= r["max"] - r["min"] and c["size"] == 1000 * n, c
P
# A client without a number, ended by Ctrl-C, sums up.
"$OARLOCK" ping -c -a ::1 -v >"$work/endless.out" 2>"$work/endless.err" & endless=$!; children+=($endless)
within 120 grep -qs '^ping 9: ' "$work/endless.out" || fail "the endless client gets no replies"
kill -INT "$endless"; ended "$endless"; [ "$s" = 0 ] || fail "the endless client exited with $s"
expect "$work/endless.out" ' 0 lost, 0 wrong'
# A client killed is a client that ended.
"$OARLOCK" ping -c -a 127.0.0.1 -v >"$work/killed.out" 2>&1 & killed=$!; children+=($killed)
within 120 grep -qs '^ping 9: ' "$work/killed.out" || fail "the client to be killed gets no replies"
kill -9 "$killed"; wait "$killed" 2>/dev/null || true
within 120 sh -c "[ \$(grep -c ': ended, messages' '$work/server.err') = 13 ]" || fail "the server has not seen the end of 13 clients"
kill -TERM "$server"; ended "$server"; [ "$s" = 0 ] || fail "the server exited with $s"
python3 - "$work/server.json" "$total" <<'P' || fail "the server's figures"
import json, sys
c = json.load(open(sys.argv[1]))
assert c["ok"] and c["side"] == "server" and (c["clients"], c["refused"], c["mismatches"]) == (13, 0, 0), c
assert c["answered"] > int(sys.argv[2]), c
P
# Another program's server is left with a sentence.
"$OARLOCK" cmatose -p 7001 >"$work/other.out" 2>"$work/other.err" & other=$!; children+=($other)
within 120 grep -qs 'listening' "$work/other.out" || fail "cmatose does not listen"
s=0; timeout 120 "$OARLOCK" ping -c -a 127.0.0.1 -p 7001 >"$work/left.out" 2>"$work/left.err" || s=$?
[ "$s" = 1 ] || fail "the client of a foreign server exited with $s"
expect "$work/left.err" '^error: .*other side is another program|.*local length error'
within 120 gone "$other" || fail "the foreign server still waits"
s=0; timeout 120 "$OARLOCK" ping -c -a 127.0.0.1 -p 7002 >"$work/nobody.out" 2>"$work/nobody.err" || s=$?
[ "$s" = 1 ] || fail "the client of nobody exited with $s"
expect "$work/nobody.err" '^error: .*invalid service ID \(8\)'
within 120 nothing_left || fail "something is left: $(cat "$work/ps.json")"
pass "$total messages of 1 to 1048576 bytes compared on both sides, 6 clients at once, a foreign server left, nothing left"
