#!/usr/bin/env bash
# The service killed (-9) in the middle: both programs get device-fatal and end with a clear error; a new service starts at once.
. "$(dirname "$0")/lib.sh"
"$OARLOCK" host --grace 60 >"$work/host.out" 2>"$work/host.err" & host=$!; children+=($host)
within 120 "$OARLOCK" ps >/dev/null 2>&1 || fail "the service does not answer"
"$OARLOCK" cmatose -c 20 -C 1000000 -S 4096 >"$work/server.out" 2>"$work/server.err" & server=$!; children+=($server)
within 120 grep -q 'listening' "$work/server.out" || fail "the server does not listen"
"$OARLOCK" cmatose -s 127.0.0.1 -c 20 -C 1000000 -S 4096 >"$work/client.out" 2>"$work/client.err" & client=$!; children+=($client)
within 120 grep -q 'initiating data transfers' "$work/client.out" || fail "the client does not transfer"
sleep 0.3
kill -9 "$host"; wait "$host" 2>/dev/null || true
for p in server client; do
  pid=${!p}
  within 120 gone "$pid" || fail "$p did not end"
  ended "$pid"; [ "$s" = 1 ] || fail "$p exited with $s, not 1"
  cat "$work/$p.out" "$work/$p.err" >"$work/$p.all.out"
  expect "$work/$p.all.out" 'device fatal'
done
"$OARLOCK" demo -c 5 -C 2 -S 64 >"$work/demo.out" 2>"$work/demo.err" || fail "no new service: demo exited with $?"
expect "$work/demo.out" '^summary: connections=5/5 messages=20/20 migrations=10 events_lost=0 mismatches=0$'
pass "both programs say device fatal and exit 1; a new service starts at once"
