#!/usr/bin/env bash
# tshark finds nothing malformed in a demo capture of more than 1,000 packets; an independent program finds every ICRC right;
# one flipped bit turns that program red.
. "$(dirname "$0")/lib.sh"
need tshark tshark
for addr in 127.0.0.1 ::1; do
  cap=$work/demo.pcap; rm -f "$cap"
  "$OARLOCK" demo -c 50 --address "$addr" --pcap "$cap" >"$work/demo.out" 2>"$work/demo.err" || fail "$addr: demo exited with $?"
  expect "$work/demo.out" '^summary: connections=50/50 messages=1000/1000 migrations=100 events_lost=0 mismatches=0$'
  tshark -r "$cap" -T fields -e frame.number 2>/dev/null >"$work/frames.txt"
  n=$(wc -l <"$work/frames.txt"); [ "$n" -gt 1000 ] || fail "$addr: only $n packets"
  tshark -r "$cap" -Y '_ws.malformed || _ws.expert.severity == error' 2>/dev/null >"$work/bad.out"
  [ ! -s "$work/bad.out" ] || fail "$addr: tshark finds malformed packets"
  tshark -r "$cap" -Y 'infiniband' -T fields -e frame.number 2>/dev/null >"$work/ib.txt"
  [ "$(wc -l <"$work/ib.txt")" = "$n" ] || fail "$addr: tshark sees InfiniBand in $(wc -l <"$work/ib.txt") of $n packets"
  for m in ConnectRequest ConnectReply ReadyToUse DisconnectRequest DisconnectReply; do
    [ "$(tshark -r "$cap" 2>/dev/null | grep -c "$m")" -ge 50 ] || fail "$addr: tshark sees fewer than 50 $m"
  done
  python3 "$here/interop/check_icrc.py" "$cap" >"$work/icrc.out" || fail "$addr: a wrong ICRC"
  expect "$work/icrc.out" "icrc ok=$n bad=0"
  python3 - "$cap" "$work/planted.pcap" <<'P'
import sys
d = bytearray(open(sys.argv[1], 'rb').read()); d[-1] ^= 1; open(sys.argv[2], 'wb').write(d)
P
  if python3 "$here/interop/check_icrc.py" "$work/planted.pcap" >"$work/planted.out"; then fail "$addr: a planted wrong ICRC is not seen"; fi
  expect "$work/planted.out" "icrc ok=$((n - 1)) bad=1"
done
pass "nothing malformed, every ICRC right, the planted one found (IPv4 and IPv6; last capture: $n packets)"
