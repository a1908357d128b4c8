#!/usr/bin/env bash
# The main job: the demo ends with its summary, nothing lost; no data packet went through the service;
# a capture from outside shows data packets on UDP 4791.
. "$(dirname "$0")/lib.sh"
need tshark dumpcap
dumpcap -i lo -q -P -s 128 -f 'udp port 4791' -w "$work/wire.pcap" 2>"$work/dumpcap.err" & dump=$!; children+=($dump)
within 120 test -s "$work/wire.pcap" || fail "dumpcap did not start"
"$OARLOCK" demo >"$work/demo.out" 2>"$work/demo.err" || fail "demo exited with $?"
[ "$(tail -n 1 "$work/demo.out")" = 'summary: connections=100/100 messages=2000/2000 migrations=200 events_lost=0 mismatches=0' ] \
  || fail "summary line: $(tail -n 1 "$work/demo.out")"
expect "$work/demo.out" 'data packets through the service: 0$'
"$OARLOCK" demo -c 3 -C 2 -S 100 --json >"$work/json.out" 2>"$work/json.err" || fail "demo --json exited with $?"
python3 - "$work/json.out" <<'P' || fail "demo --json"
import json, sys
d = json.load(open(sys.argv[1]))
assert d["schema"] == "oarlock.demo/1" and d["ok"] is True, d
assert (d["connections"], d["messages"], d["migrations"], d["events_lost"], d["mismatches"]) == (3, 12, 6, 0, 0), d
assert d["service_data_packets"] == 0, d
P
sleep 0.3; kill -INT "$dump"; wait "$dump" || true
# BTH opcodes 0x00..0x05 are RC SEND; the destination QP's upper byte (the slot) is 0 for the service only.
python3 - "$work/wire.pcap" <<'P' || fail "the capture shows no data on UDP 4791, or data addressed to the service"
import struct, sys
d = open(sys.argv[1], 'rb').read(); o = 24; data = 0; service = 0
while o + 16 <= len(d):
    n = struct.unpack('<I', d[o+8:o+12])[0]; f = d[o+16:o+16+n]; o += 16 + n
    ip = f[14:]
    b = ip[28:] if ip[0] >> 4 == 4 else ip[48:]
    if len(b) >= 12 and b[0] <= 0x05:
        data += 1; service += b[5] == 0
print('captured data packets: %d, addressed to the service: %d' % (data, service))
sys.exit(0 if data >= 2000 and service == 0 else 1)
P
pass "$(tail -n 1 "$work/demo.out")"
