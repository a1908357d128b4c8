#!/usr/bin/env bash
# The client killed (-9) in the middle: the server sees 100 disconnects within 10 s and says so; nothing is left; the port is free.
. "$(dirname "$0")/lib.sh"
# A service that outlives the programs, so that what is left behind can be seen.
"$OARLOCK" host --grace 60 >"$work/host.out" 2>"$work/host.err" & children+=($!); host=$!
within 120 "$OARLOCK" ps >/dev/null 2>&1 || fail "the service does not answer"
"$OARLOCK" cmatose -c 100 -C 1000000 -S 4096 >"$work/server.out" 2>"$work/server.err" & server=$!; children+=($server)
within 120 grep -q 'listening' "$work/server.out" || fail "the server does not listen"
"$OARLOCK" cmatose -s 127.0.0.1 -c 100 -C 1000000 -S 4096 >"$work/client.out" 2>"$work/client.err" & client=$!
within 120 grep -q 'initiating data transfers' "$work/client.out" || fail "the client does not transfer"
sleep 0.5
kill -9 "$client"; wait "$client" 2>/dev/null || true
within 10 gone "$server" || fail "the server did not end within 10 s"
ended "$server"; [ "$s" != 0 ] || fail "the server exited with 0"
expect "$work/server.out" '^disconnected: 100$'
expect "$work/server.out" '^return status -?[1-9][0-9]*$'
within 120 nothing_left || fail "something is left: $(cat "$work/ps.json")"
[ -e "/proc/$host" ] || fail "the service did not survive"
"$OARLOCK" cmatose -c 1 -C 1 -S 64 >"$work/again.out" 2>"$work/again.err" & again=$!; children+=($again)
within 1 grep -q 'listening' "$work/again.out" || fail "a new server does not listen within a second"
"$OARLOCK" cmatose -s 127.0.0.1 -c 1 -C 1 -S 64 >"$work/client2.out" 2>"$work/client2.err" || fail "the new server does not accept"
ended "$again"; [ "$s" = 0 ] || fail "the new server exited with $s"
pass "server: disconnected: 100, return status non-zero; nothing left; the port accepts again"
