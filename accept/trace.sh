#!/usr/bin/env bash
# `oarlock trace -w` captures all of a host: two programs that come after it, the service's datagrams, without any privilege. tshark
# finds nothing malformed and every connection whole, with its data; an outside program finds every ICRC right; the counts that
# the command tells are those of the file; a cut and a flipped packet turn the judges red. Also: one program by OARLOCK_TRACE,
# a second tracer, the ends, a file that cannot grow.
. "$(dirname "$0")/lib.sh"
need tshark tshark
# tshark guesses protocols by the first bytes of a message, and calls short messages malformed for them: headers are judged here.
headers_only=()
while read -r protocol; do headers_only+=(--disable-protocol "$protocol"); done < <(
  tshark -G heuristic-decodes 2>/dev/null | awk '$1 == "infiniband.payload" && $2 != "ethertype" { print $2 }')
malformed() { tshark -r "$1" "${headers_only[@]}" -Y '_ws.malformed || _ws.expert.severity == error' 2>/dev/null; }
count() { tshark -r "$1" "${headers_only[@]}" -Y "$2" 2>/dev/null | wc -l; }
icrc() { python3 "$here/interop/check_icrc.py" "$1" >"$work/icrc.out" 2>"$work/icrc.err"; }

# trace FILE [OPTION...]: begins to capture; its process is in $tracer.
trace() {
  local file=$1; shift
  rm -f "$work/trace.out" "$work/trace.err" # what an earlier one said must not pass for this one's
  "$OARLOCK" trace -w "$file" "$@" >"$work/trace.out" 2>"$work/trace.err" & tracer=$!; children+=($tracer)
  within 120 grep -qs '^tracing this host to' "$work/trace.out" "$work/trace.err" || fail "the tracer does not begin"
}
# trace_ends [SIGNAL]: ends it, which must go well.
trace_ends() {
  [ $# = 0 ] || kill -"$1" "$tracer"
  ended "$tracer"; [ "$s" = 0 ] || fail "the tracer exited with $s"
}

# Every message with its comm ids, every data packet's queue pair and opcode, as tshark has them, against what the protocol says.
cat >"$work/judge.py" <<'P'
import subprocess, sys
path, connections, messages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ERROR = 0x00800000  # PI_ERROR of tshark's expert information
fields = ['_ws.malformed', '_ws.expert.severity', 'frame.packet_flags_direction',
          'infiniband.bth.destqp', 'infiniband.bth.opcode', 'infiniband.mad.attributeid', 'frame.interface_name', 'ip.src', 'ipv6.src',
          'infiniband.cm.req', 'infiniband.cm.rep', 'infiniband.cm.rep.remotecommid', 'infiniband.cm.rtu.localcommid',
          'infiniband.cm.dreq.localcommid', 'infiniband.cm.dreq.remotecommid', 'infiniband.cm.drsp.localcommid', 'infiniband.cm.drsp.remotecommid']
args = [a for f in fields for a in ('-e', f)]
out = subprocess.run(['tshark', '-r', path, *sys.argv[4:], '-T', 'fields', *args], capture_output=True, text=True, check=True).stdout
seen = {kind: set() for kind in ('req', 'rep', 'rtu', 'dreq', 'drep')}
sends, acks, packets, programs = 0, 0, 0, {}
def check(good, sentence):
    if not good: print('bad: ' + sentence); sys.exit(1)
for line in out.splitlines():
    row = dict(zip(fields, line.split('\t')))
    packets += 1
    check(not row['_ws.malformed'], f'packet {packets} is malformed')
    check(not any(int(n, 0) >= ERROR for n in row['_ws.expert.severity'].split(',') if n), f'packet {packets} is an error to tshark')
    check(row['infiniband.bth.opcode'], f'packet {packets} is not InfiniBand')
    # Each was recorded where it was sent, and nowhere else.
    check(int(row['frame.packet_flags_direction'] or '0', 0) == 2, f'packet {packets} stands there as received')
    programs.setdefault(row['frame.interface_name'], [0, 0])
    first = lambda key: int(row[key], 0) if row[key] else None
    if int(row['infiniband.bth.destqp'], 16) == 1:
        programs[row['frame.interface_name']][0] += 1
        if row['infiniband.cm.req']: seen['req'].add(first('infiniband.cm.req'))
        if row['infiniband.cm.rep']: seen['rep'].add((first('infiniband.cm.rep.remotecommid'), first('infiniband.cm.rep')))
        if row['infiniband.cm.rtu.localcommid']: seen['rtu'].add(first('infiniband.cm.rtu.localcommid'))
        for kind, key in (('dreq', 'infiniband.cm.dreq.'), ('drep', 'infiniband.cm.drsp.')):
            if row[key + 'localcommid']: seen[kind].add(frozenset((first(key + 'localcommid'), first(key + 'remotecommid'))))
    else:
        programs[row['frame.interface_name']][1] += 1
        opcode = int(row['infiniband.bth.opcode'])
        sends += opcode in (2, 3, 4, 5)
        acks += opcode == 17
check(len(seen['req']) == connections, f"{len(seen['req'])} REQs for {connections} connections")
check({a for a, _ in seen['rep']} == seen['req'], 'a REQ without its REP')
check(seen['rtu'] == seen['req'], 'a REP without its RTU')
pairs = {frozenset(pair) for pair in seen['rep']}
check(seen['dreq'] == pairs, f"{len(seen['dreq'] & pairs)} DREQs for {connections} connections")
check(seen['drep'] == pairs, f"{len(seen['drep'] & pairs)} DREPs for {connections} connections")
check(sends >= messages, f'{sends} messages, not {messages}')
check(acks > 0, 'no acknowledgement')
services = [name for name, (management, data) in programs.items() if management]
writers = [name for name, (management, data) in programs.items() if data]
check(len(services) == 1 and services[0].startswith('host service ('), f'management datagrams by {services}')
check(len(writers) == 2 and services[0] not in writers, f'data by {writers}')
print(f'judge: packets={packets} connections={connections} messages={sends} programs={len(writers)}')
P

for addr in 127.0.0.1 ::1; do
  # The tracer first, so that it is there when the service and both programs begin.
  cap=$work/all.pcapng
  trace "$cap" --json
  cmatose_pair "$addr"
  trace_ends INT
  python3 "$work/judge.py" "$cap" 100 2000 "${headers_only[@]}" >"$work/judge.out" || fail "$addr: $(tail -n 1 "$work/judge.out")"
  n=$(sed -n 's/^judge: packets=\([0-9]*\) .*/\1/p' "$work/judge.out")
  [ "$n" -gt 2000 ] || fail "$addr: only $n packets"
  icrc "$cap" || fail "$addr: a wrong ICRC"
  expect "$work/icrc.out" "^icrc ok=$n bad=0 other=0\$"
  python3 - "$work/trace.out" "$n" "$cap" >"$work/counts.out" <<'P' || fail "$addr: $(tail -n 1 "$work/counts.out")"
import json, os, sys
r, n = json.load(open(sys.argv[1])), int(sys.argv[2])
def check(good, sentence):
    if not good: print('bad: ' + sentence); sys.exit(1)
check(r['schema'] == 'oarlock.trace/1' and r['ok'] and r['ended_by'] == 'signal' and r['failure'] is None, 'not as it should be: ' + str(r))
check(r['packets'] == n, f"{r['packets']} packets, tshark sees {n}")
check(r['bytes'] == os.path.getsize(sys.argv[3]) and r['cut_bytes'] == 0, 'not the size of the file')
check(sum(r['management'].values()) + sum(r['data'].values()) == n and r['other'] == 0, 'kinds do not add up')
check(sum(p['packets'] for p in r['programs']) == n, 'programs do not add up')
check(all(r['management'][m] >= 100 for m in ('REQ', 'REP', 'RTU', 'DREQ', 'DREP')), 'too few messages')
P
  # The judges see a planted fault each: a flipped bit in the last packet, a DREP that is not there, a packet cut short.
  python3 - "$cap" "$work/flipped.pcapng" "$work/missing.pcapng" "$work/cut.pcapng" <<'P'
import struct, sys
d = open(sys.argv[1], 'rb').read()
blocks, at = [], 0
while at < len(d):
    (length,) = struct.unpack_from('=I', d, at + 4)
    blocks.append(bytearray(d[at:at + length])); at += length
kind = lambda b: struct.unpack_from('=I', b)[0]
packets = [i for i, b in enumerate(blocks) if kind(b) == 6]
def write(path, blocks): open(path, 'wb').write(b''.join(bytes(b) for b in blocks))
flipped = [bytearray(b) for b in blocks]
captured = struct.unpack_from('=I', blocks[packets[-1]], 20)[0]
flipped[packets[-1]][28 + captured - 1] ^= 1
write(sys.argv[2], flipped)
def ip(b): return 20 if b[28] >> 4 == 4 else 40
# Destination QP 1, attribute DREP (0x0016) of the MAD behind BTH and DETH.
def is_drep(b):
    p = 28 + ip(b) + 8
    return kind(b) == 6 and b[p + 5:p + 8] == b'\0\0\1' and b[p + 20 + 16:p + 20 + 18] == b'\0\x16'
lost = next(i for i, b in enumerate(blocks) if is_drep(b))
same = bytes(blocks[lost][28 + ip(blocks[lost]) + 8 + 20 + 24:][:8])
write(sys.argv[3], [b for b in blocks if not (is_drep(b) and bytes(b[28 + ip(b) + 8 + 20 + 24:][:8]) == same)])
def is_ack(b): return kind(b) == 6 and b[28 + ip(b) + 8] == 17
i = next(i for i, b in enumerate(blocks) if is_ack(b))
b, h = blocks[i], ip(blocks[i])
keep = h + 8 + 12 + 2
p = bytearray(b[28:28 + keep])
if h == 20: struct.pack_into('>H', p, 2, keep)
else: struct.pack_into('>H', p, 4, keep - h)
struct.pack_into('>H', p, h + 4, keep - h)
padded = bytes(p) + bytes(-len(p) % 4)
body = bytes(b[8:20]) + struct.pack('=2I', keep, keep) + padded
length = struct.pack('=I', 12 + len(body))
blocks[i] = bytearray(bytes(b[:4]) + length + body + length)
write(sys.argv[4], blocks)
P
  if icrc "$work/flipped.pcapng"; then fail "$addr: a flipped bit is not seen"; fi
  expect "$work/icrc.out" "^icrc ok=$((n - 1)) bad=1 other=0\$"
  if python3 "$work/judge.py" "$work/missing.pcapng" 100 2000 "${headers_only[@]}" >"$work/planted.out"; then fail "$addr: a missing DREP is not seen"; fi
  expect "$work/planted.out" '^bad: 99 DREPs for 100 connections$'
  [ "$(malformed "$work/cut.pcapng" | wc -l)" = 1 ] || fail "$addr: tshark does not see a packet that was cut short"
  # The ladder, as text and as a picture.
  "$OARLOCK" trace ladder "$cap" >"$work/ladder.out" 2>"$work/ladder.err" || fail "$addr: no ladder"
  expect "$work/ladder.out" '^100 connections; 0 resolutions; 0 groups; 0 packets of exchanges that began before the capture; 0 datagrams'
  "$OARLOCK" trace ladder "$cap" --svg "$work/ladder.svg" >"$work/svg.out" 2>"$work/svg.err" || fail "$addr: no picture"
  python3 - "$work/ladder.svg" <<'P' || fail "$addr: the picture is no SVG of 50 connections"
import sys, xml.etree.ElementTree as E
svg = '{http://www.w3.org/2000/svg}'
root = E.parse(sys.argv[1]).getroot()
titles = [t.text for t in root.iter(svg + 'text') if t.get('class') == 'title']
sys.exit(0 if root.tag == svg + 'svg' and titles == [f'connection {i}' for i in range(1, 51)] else 1)
P
done

# Programs that were there before the tracer are in it from then on; one tracer at a time.
"$OARLOCK" ping -s -a 127.0.0.1 -P >"$work/server.out" 2>"$work/server.err" & server=$!; children+=($server)
within 120 "$OARLOCK" ping -c -a 127.0.0.1 -C 1 >"$work/ping.out" 2>&1 || fail "ping does not begin: $(cat "$work/ping.out")"
"$OARLOCK" ping -c -a 127.0.0.1 -C 1000000 >"$work/long.out" 2>"$work/long.err" & long=$!; children+=($long)
trace "$work/some.pcapng"
s=0; timeout 60 "$OARLOCK" trace -w "$work/second.pcapng" >"$work/second.out" 2>"$work/second.err" || s=$?
[ "$s" = 1 ] || fail "a second tracer exited with $s"
expect "$work/second.err" "^error: process $tracer \(oarlock\) traces this host already"
within 120 bash -c '[ "$(stat -c %s "$0")" -gt 20000 ]' "$work/some.pcapng" || fail "nothing of programs that were there before"
trace_ends TERM
[ "$(count "$work/some.pcapng" 'infiniband.bth.destqp != 1')" -gt 10 ] || fail "nothing of programs that were there before"
# It has ended for them, too: the file stays as it is. (Ten more round trips show that they go on.)
size=$(stat -c %s "$work/some.pcapng")
"$OARLOCK" ping -c -a 127.0.0.1 -C 10 >"$work/ping.out" 2>"$work/ping.err" || fail "ping after the end of the trace"
[ "$(stat -c %s "$work/some.pcapng")" = "$size" ] || fail "a program goes on writing after the end"

# A tracer ends by its time.
trace "$work/time.pcapng" --seconds 0.3
trace_ends
expect "$work/trace.out" '^[0-9]+ packets, [0-9]+ bytes in [0-9.]+ s; the time is over$'

# A tracer that dies ends its capture: the next can begin.
trace "$work/dead.pcapng"
kill -KILL "$tracer"; ended "$tracer"
within 120 bash -c '"$OARLOCK" trace -w "$0" --seconds 0.2 >/dev/null 2>&1' "$work/next.pcapng" || fail "a dead tracer is in the way"

# A file that may not grow: the programs', not the tracer's, limit strikes first here, and ends the capture and nothing else.
(ulimit -f 64; exec "$OARLOCK" ping -c -a 127.0.0.1 -C 1000000 -S 1000) >"$work/limited.out" 2>"$work/limited.err" & limited=$!; children+=($limited)
trace "$work/limited.pcapng" --json
within 60 gone "$tracer" || fail "the limit of file sizes does not end the trace"
ended "$tracer"; [ "$s" = 1 ] || fail "the tracer of a limited program exited with $s"
expect "$work/trace.err" '^error: .*limited.pcapng: process [0-9]+ \(oarlock\) could not write a packet, and tracing ended there: File too large'
gone "$limited" && fail "a program ended because its trace could not grow: $(cat "$work/limited.err")"
kill "$limited"; ended "$limited"
malformed "$work/limited.pcapng" >"$work/bad.out"; [ ! -s "$work/bad.out" ] || fail "half a packet is left in the file"
tshark -r "$work/limited.pcapng" >/dev/null 2>"$work/cut.err" || fail "tshark cannot read the file to its end: $(cat "$work/cut.err")"
kill "$long"; ended "$long"

# One program by itself, and two that name one file: a packet between them stands there as sent and as received, and is one in the ladder.
OARLOCK_TRACE=$work/one.pcapng "$OARLOCK" ping -c -a 127.0.0.1 -C 3 >"$work/ping.out" 2>"$work/ping.err" || fail "ping with OARLOCK_TRACE"
"$OARLOCK" trace ladder "$work/one.pcapng" --connection 1 >"$work/one.out" 2>"$work/ladder.err" || fail "no ladder of one program"
for m in 'A > B  REQ' 'A < B  REP' 'A > B  RTU' 'A = B  data' 'DREQ' 'DREP'; do grep -q "$m" "$work/one.out" || fail "one program: no $m"; done
[ "$(count "$work/one.pcapng" 'frame.packet_flags_direction == 1')" -gt 0 ] || fail "one program: nothing it received"
OARLOCK_TRACE=$work/%p.pcapng "$OARLOCK" ping -c -a 127.0.0.1 -C 1 >"$work/ping.out" 2>"$work/ping.err" & p=$!; ended $p
[ "$s" = 0 ] && [ -s "$work/$p.pcapng" ] || fail "%p is not the process's number"
kill "$server"; ended "$server"
OARLOCK_TRACE=$work/both.pcapng cmatose_pair 127.0.0.1
"$OARLOCK" trace ladder "$work/both.pcapng" >"$work/both.out" 2>"$work/ladder.err" || fail "no ladder of two programs"
expect "$work/both.out" '^100 connections; 0 resolutions; 0 groups; 0 packets of exchanges'
tshark -r "$work/both.pcapng" -Y 'frame.packet_flags_direction == 2' -w "$work/sent.pcapng" 2>/dev/null
"$OARLOCK" trace ladder "$work/sent.pcapng" >"$work/sent.out" 2>"$work/ladder.err" || fail "no ladder of what was sent"
[ "$(count "$work/both.pcapng" frame)" -gt "$(count "$work/sent.pcapng" frame)" ] || fail "two programs: nothing was received"
cmp "$work/both.out" "$work/sent.out" >&2 || fail "a packet between two programs is drawn twice"
if OARLOCK_TRACE=/nowhere/x "$OARLOCK" ping -c -a 127.0.0.1 >"$work/nowhere.out" 2>"$work/nowhere.err"; then fail "a trace that cannot be written is not refused"; fi
expect "$work/nowhere.err" '^error: cannot trace to /nowhere/x, which OARLOCK_TRACE names: '
# The service's end is the tracer's.
trace "$work/last.pcapng"
pid=$("$OARLOCK" ps --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["host"]["pid"])')
kill "$pid"
trace_ends
expect "$work/trace.out" 'the host service has gone$'
pass "$(cat "$work/judge.out" | sed 's/^judge: //'), nothing malformed, every ICRC right, planted faults found (IPv4 and IPv6; last: $n packets); ends, limits, one program"
