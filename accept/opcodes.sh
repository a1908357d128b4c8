#!/usr/bin/env bash
# A capture of every opcode of RC, UC, UD and XRC, made by the semantic suite between two processes, with IPv4 and with IPv6.
# tshark finds nothing malformed in it, and finds a planted packet that was cut short; an independent program finds every ICRC
# right, and one flipped bit turns it red.
. "$(dirname "$0")/lib.sh"
need tshark tshark
semantics=${OARLOCK_SEMANTICS:-}
if [ -z "$semantics" ]; then
  semantics=$(cd "$here" && cargo test --locked -q -p oarlock-device --test semantics --no-run --message-format=json 2>/dev/null |
    python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])')
fi
export OARLOCK_TEST_IN_NAMESPACE=1
# tshark guesses protocols by the first bytes of a message, and calls short messages malformed for them: headers are judged here.
headers_only=()
while read -r protocol; do headers_only+=(--disable-protocol "$protocol"); done < <(
  tshark -G heuristic-decodes 2>/dev/null | awk '$1 == "infiniband.payload" && $2 != "ethertype" { print $2 }')
malformed() { tshark -r "$1" "${headers_only[@]}" -Y '_ws.malformed || _ws.expert.severity == error' 2>/dev/null; }
cases=send,send_with_immediate,write,write_with_immediate,read,compare_and_swap,fetch_and_add,send_with_invalidate
for medium in udp4 udp6; do
  cap=$work/$medium.pcap; rm -f "$cap"
  OARLOCK_SEMANTICS_PCAP=$cap OARLOCK_SEMANTICS_MEDIUM=$medium OARLOCK_SEMANTICS_CASE=$cases \
    "$semantics" --exact "$medium" --nocapture >"$work/$medium.out" 2>"$work/$medium.err" || fail "$medium: the cases"
  expect "$work/$medium.out" "^semantics: medium=$medium cases=8 passed=8\$"
  tshark -r "$cap" "${headers_only[@]}" -T fields -e infiniband.bth.opcode 2>/dev/null >"$work/opcodes.txt"
  n=$(wc -l <"$work/opcodes.txt"); [ "$n" -gt 1000 ] || fail "$medium: only $n packets"
  python3 - "$work/opcodes.txt" >"$work/opcodes.out" <<'P' || fail "$medium: $(tail -n 1 "$work/opcodes.out")"
import sys
# IBA Vol. 1 ch. 9, operation codes; 0x15 is RESYNC, of reliable datagrams, which do not exist here.
reliable = [*range(0x00, 0x15), 0x16, 0x17]
unreliable = range(0x00, 0x0C)
every = [c for c in reliable] + [0x20 | c for c in unreliable] + [0x64, 0x65] + [0xA0 | c for c in reliable]
seen = {int(line.split(',')[0]) for line in open(sys.argv[1]) if line.strip()}
missing = [hex(c) for c in every if c not in seen]
strange = [hex(c) for c in seen if c not in every]
print(f'opcodes: {len(every)} exist, missing: {" ".join(missing) or "none"}, others: {" ".join(strange) or "none"}')
sys.exit(0 if not missing and not strange else 1)
P
  malformed "$cap" >"$work/bad.out"
  [ ! -s "$work/bad.out" ] || fail "$medium: tshark finds malformed packets"
  python3 "$here/interop/check_icrc.py" "$cap" >"$work/icrc.out" || fail "$medium: a wrong ICRC"
  expect "$work/icrc.out" "icrc ok=$n bad=0"
  # Planted: one flipped bit at the end of the last packet, and the first fetch-and-add with its AtomicETH cut short.
  python3 - "$cap" "$work/flipped.pcap" "$work/cut.pcap" <<'P'
import struct, sys
d = bytearray(open(sys.argv[1], 'rb').read())
flipped = bytearray(d); flipped[-1] ^= 1; open(sys.argv[2], 'wb').write(flipped)
order = '<' if d[:4] in (b'\xd4\xc3\xb2\xa1', b'\x4d\x3c\xb2\xa1') else '>'
at = 24
while True:
    seconds, micros, length, _ = struct.unpack_from(order + '4I', d, at)
    packet = d[at + 16:at + 16 + length]
    ip = 20 if packet[0] >> 4 == 4 else 40
    if packet[ip + 8] == 0x14: break
    at += 16 + length
keep = ip + 8 + 12 + 10 + 4
packet = packet[:keep]
if ip == 20: struct.pack_into('>H', packet, 2, keep)
else: struct.pack_into('>H', packet, 4, keep - ip)
struct.pack_into('>H', packet, ip + 4, keep - ip)
open(sys.argv[3], 'wb').write(d[:24] + struct.pack(order + '4I', seconds, micros, keep, keep) + packet)
P
  if python3 "$here/interop/check_icrc.py" "$work/flipped.pcap" >"$work/flipped.out"; then fail "$medium: a flipped bit is not seen"; fi
  expect "$work/flipped.out" "icrc ok=$((n - 1)) bad=1"
  [ "$(malformed "$work/cut.pcap" | wc -l)" = 1 ] || fail "$medium: tshark does not see a packet that was cut short"
done
pass "$(cut -d, -f1 "$work/opcodes.out"), none missing, nothing malformed, every ICRC right, planted faults found (IPv4 and IPv6; last capture: $n packets)"
