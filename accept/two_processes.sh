#!/usr/bin/env bash
# Two processes of one host: cmatose, server and client, over 127.0.0.1 and ::1; every message checked on both sides.
. "$(dirname "$0")/lib.sh"
for addr in 127.0.0.1 ::1; do
  cmatose_pair "$addr"
  within 120 nothing_left || fail "$addr: something is left: $(cat "$work/ps.json")"
done
pass "100 connections, 10 messages of 4096 bytes each way, migrated, over 127.0.0.1 and ::1"
