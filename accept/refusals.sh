#!/usr/bin/env bash
# What goes wrong on a user's machine is one sentence with the remedy: port taken, lock taken by another service, loopback down, descriptors
# exhausted, no service to ask.
. "$(dirname "$0")/lib.sh"
one_sentence() { # FILE REGEX
  [ "$(grep -c . "$1")" = 1 ] || fail "not one sentence: $(cat "$1")"
  expect "$1" "^error: .*$2"
}
python3 - <<'P' & holder=$!; children+=($holder)
import socket, time
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(('::', 4791)); time.sleep(60)
P
within 120 sh -c 'grep -q " 00000000000000000000000000000000:12B7 " /proc/net/udp6' || fail "the port is not held"
! "$OARLOCK" host >"$work/port.out" 2>"$work/port.err" || fail "host started on a taken port"
one_sentence "$work/port.err" '4791'
kill "$holder"; wait "$holder" 2>/dev/null || true
"$OARLOCK" host --grace 60 >"$work/host.out" 2>"$work/host.err" & host=$!; children+=($host)
within 120 "$OARLOCK" ps >/dev/null 2>&1 || fail "the service does not answer"
! "$OARLOCK" host >"$work/lock.out" 2>"$work/lock.err" || fail "a second service started"
one_sentence "$work/lock.err" 'already'
kill "$host"; wait "$host" 2>/dev/null || true
s=0; "$OARLOCK" ps >"$work/ps.out" 2>"$work/ps.err" || s=$?
[ "$s" = 1 ] || fail "ps without a service exited with $s"
one_sentence "$work/ps.err" 'service'
! (ulimit -n 64; "$OARLOCK" host >"$work/nofile.out" 2>"$work/nofile.err") || fail "host started with 64 descriptors"
one_sentence "$work/nofile.err" 'descriptors.*ulimit'
ip link set lo down
! "$OARLOCK" demo -c 1 >"$work/lo.out" 2>"$work/lo.err" || fail "demo ran without loopback"
expect "$work/lo.err" '^error: .*loopback'
ip link set lo up
if [ -w /proc/sys/net/ipv6/conf/all/disable_ipv6 ]; then # with IPv6 off everything goes on over IPv4
  echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
  "$OARLOCK" demo -c 2 -C 2 -S 64 >"$work/v4.out" 2>"$work/v4.err" || fail "no demo without IPv6: exited with $?"
  expect "$work/v4.out" '^summary: connections=2/2 messages=8/8 migrations=4 events_lost=0 mismatches=0$'
  ! "$OARLOCK" cmatose -s fd00:91::1 -c 1 >"$work/v6.out" 2>"$work/v6.err" || fail "cmatose reached an IPv6 address without IPv6"
  expect "$work/v6.err" '^error: .*(unreachable|no route|IPv6)'
else
  echo 'not run: IPv6 cannot be switched off here' >&2
fi
s=0; "$OARLOCK" cmatose --no-such-flag >/dev/null 2>&1 || s=$?; [ "$s" = 2 ] || fail "wrong usage exited with $s"
pass "port, lock, loopback, descriptors, no IPv6, no service, usage"
