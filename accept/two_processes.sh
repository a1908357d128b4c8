#!/usr/bin/env bash
# Two processes of one host: cmatose, server and client, over 127.0.0.1 and ::1; every message checked on both sides.
. "$(dirname "$0")/lib.sh"
args="-c 100 -C 10 -S 4096 -m"
for addr in 127.0.0.1 ::1; do
  "$OARLOCK" cmatose $args >"$work/server.out" 2>"$work/server.err" & server=$!; children+=($server)
  within 10 grep -q 'listening' "$work/server.out" || fail "$addr: the server does not listen"
  "$OARLOCK" cmatose -s "$addr" $args >"$work/client.out" 2>"$work/client.err" || fail "$addr: client exited with $?"
  ended "$server"; [ "$s" = 0 ] || fail "$addr: server exited with $s"
  for side in server client; do
    expect "$work/$side.out" '^migrating to new event channel$'
    expect "$work/$side.out" '^test complete$'
    expect "$work/$side.out" '^return status 0$'
    expect "$work/$side.out" '^messages checked: 1000 of 1000, mismatches: 0$'
  done
  within 5 nothing_left || fail "$addr: something is left: $(cat "$work/ps.json")"
done
pass "100 connections, 10 messages of 4096 bytes each way, migrated, over 127.0.0.1 and ::1"
