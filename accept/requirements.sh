#!/usr/bin/env bash
# docs/requirements.md names a test for each requirement that is answered so far, and each named test exists and cites it.
OARLOCK_ACCEPT_HERE=1
. "$(dirname "$0")/lib.sh"
python3 - "$here" <<'P' || fail "docs/requirements.md"
import os, re, sys
root = sys.argv[1]; rows = {}
for line in open(root + '/docs/requirements.md'):
    m = re.match(r'\| (R-[A-Z]+-\d+) \|[^|]*\|([^|]*)\|', line)
    if m: rows[m[1]] = re.findall(r'`([^`]+?)::([a-z0-9_]+)`', m[2])
want = ['R-MIG-%d' % i for i in range(1, 11)] + ['R-PAR-%d' % i for i in range(1, 5)] + ['R-ADDR-1', 'R-ADDR-2']
bad = [r for r in want if not rows.get(r)]
named = 0
for req, tests in rows.items():
    for path, name in tests:
        full = os.path.join(root, path)
        text = open(full).read() if os.path.exists(full) else ''
        m = re.search(r'((?:[ \t]*//[/!].*\n|[ \t]*#\[.*\n)*)[ \t]*(?:pub )?fn %s\b' % name, text)
        if path.endswith('.sh'): m = re.search(r'^', text) if text else None; ok = bool(m)
        else: ok = bool(m) and '#[test]' in m[1] and req in m[1]
        if not ok: bad.append('%s: %s::%s' % (req, path, name))
        named += 1
if bad: print('missing:', *bad, sep='\n  ', file=sys.stderr); sys.exit(1)
print('%d requirements, %d tests named' % (len(want), named))
P
pass "each requirement of MIG 1-10, PAR 1-4, ADDR 1-2 has a test that cites it"
