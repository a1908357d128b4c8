#!/usr/bin/env bash
# Every row of crates/ucm/conformance gets the kernel's answer, or the one of a listed deviation; a row that is made wrong turns it red.
OARLOCK_ACCEPT_HERE=1
. "$(dirname "$0")/lib.sh"
judge=${OARLOCK_CONFORMANCE:-}
if [ -z "$judge" ]; then
  judge=$(cd "$here" && cargo test --locked -q -p oarlock-ucm --test conformance --no-run --message-format=json 2>/dev/null |
    python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])')
fi
rows=$here/crates/ucm/conformance
OARLOCK_ROWS=$rows "$judge" --nocapture >"$work/rows.out" 2>&1 || fail "rows are answered otherwise"
expect "$work/rows.out" 'conformance: rows=[1-9][0-9]{3} passed=[1-9][0-9]{3} deviating=[1-9][0-9]* newer=0 unjudged=[0-9]+ failed=0$'
python3 - "$rows" "$work/rows.out" <<'P' || fail "the numbers"
import glob, os, re, sys
said = dict((k, int(v)) for k, v in re.findall(r'(\w+)=(\d+)', re.search(r'conformance: (.*)', open(sys.argv[2]).read())[1]))
assert said['rows'] == said['passed'] + said['deviating'] + said['unjudged'], said
# The rows counted once more, without the judge's reader: a row, or a cell of a table, each.
count, unjudged, states = 0, 0, 0
for path in sorted(glob.glob(os.path.join(sys.argv[1], '*.txt'))):
    if os.path.basename(path) == 'layout.txt': continue
    kind = ''
    for line in open(path):
        line = re.sub(r'"[^"]*"', 'text', line).split('#')[0].rstrip()
        if line and line[0] != ' ': kind = line.split()[0]; count += kind == 'row'
        elif kind == 'row' and re.match('  unjudged( here)?:', line): unjudged += 1; assert len(line.split()) > 3, line
        elif kind == 'table' and line.startswith('  states:'): states = len(line.split()) - 1
        elif kind == 'table' and ' | ' in line: count += states; unjudged += line.split(' | ')[1].split().count('?')
assert (count, unjudged) == (said['rows'], said['unjudged']), (count, unjudged, said)
P
cp -r "$rows" "$work/wrong"
sed -i 's/^  RESOLVE_ROUTE x timeout_ms=0 => EINVAL$/  RESOLVE_ROUTE x timeout_ms=0 => ok/' "$work/wrong/commands.txt"
if OARLOCK_ROWS=$work/wrong "$judge" --nocapture >"$work/wrong.out" 2>&1; then fail "a wrong row was not seen"; fi
expect "$work/wrong.out" 'failed=1$'
expect "$work/wrong.out" 'RESOLVE_ROUTE: a timeout of 0'
pass "$(sed -n 's/^.*conformance: \(rows=.*\)/\1/p' "$work/rows.out" | tail -n 1)"
