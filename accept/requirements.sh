#!/usr/bin/env bash
# docs/requirements.md names tests for each requirement that is answered so far, docs/public-faults.md for each fault that others
# reported, and each named test exists and cites what it shows. Each manual page has tests, one for each statement.
OARLOCK_ACCEPT_HERE=1
OARLOCK=none # nothing is run, only read
. "$(dirname "$0")/lib.sh"
counts=$(python3 - "$here" <<'P'
import glob, os, re, sys

root = sys.argv[1]
bad = []
with open(os.path.join(root, 'crates/capi/tests/c/rules.txt')) as lines:
    RULES = {line.split('\t')[0]: line.strip() for line in lines if line.count('\t') == 2}
CITED = re.compile(r'[Pp]ublic faults? (\d+b?(?:(?:, | and |, and )\d+b?)*)')


def documentation(path, name):
    """The doc comment of a test, in one line, or the sentence of a rule of the C library; None if there is none."""
    if path == 'rule':
        return RULES.get(name)
    full = os.path.join(root, path)
    text = open(full).read() if os.path.exists(full) else ''
    above = r'((?:[ \t]*//[/!].*\n|[ \t]*#\[.*\n(?:[ \t]*\)\]\n)?)*)'
    for m in re.finditer(above + r'[ \t]*(?:pub )?(?:async )?fn %s\b' % name, text):
        if '#[test]' in m[1]:
            return ' '.join(line.strip()[3:] for line in m[1].splitlines() if '///' in line)
    return None


def cites(doc, what):
    if what.startswith('R-'):
        return re.search(re.escape(what) + r'\b', doc)
    return any(what in re.findall(r'\d+b?', numbers) for numbers in CITED.findall(re.sub(r'\s+', ' ', doc)))


def rows(document, number):
    """What each row of the tables of a document says at its end: a text, and the tests in it."""
    found = {}
    for line in open(os.path.join(root, document)):
        cells = [cell.strip() for cell in re.split(r'(?<!\\)\|', line.strip())[1:-1]]
        if cells and re.fullmatch(number, cells[0]):
            if cells[0] in found:
                bad.append('%s: %s stands there twice' % (document, cells[0]))
            rules = [('rule', name) for name in re.findall(r'`rule ([\w-]+)`', cells[-1])]
            found[cells[0]] = (cells[-1], re.findall(r'`([^`]+?)::(\w+)`', cells[-1]) + rules)
    return found


def check(document, found, wanted, may_be_a_reason):
    named = 0
    for what in wanted:
        text, tests = found.get(what, ('', []))
        if not tests and (what not in may_be_a_reason or len(text) < 20):
            bad.append('%s: nothing shows %s' % (document, what))
    for what, (_, tests) in found.items():
        for path, name in tests:
            named += 1
            doc = documentation(path, name)
            if doc is None:
                bad.append('%s: %s: no test %s::%s' % (document, what, path, name))
            elif not cites(doc, what):
                bad.append('%s: %s::%s does not cite %s' % (document, path, name, what))
    return named


requirements = rows('docs/requirements.md', r'R-[A-Z]+-\d+')
wanted = [
    'R-%s-%d' % (group, n)
    for group, last in (('MIG', 11), ('PAR', 8), ('ADDR', 4), ('NAME', 4), ('MEM', 5))
    for n in range(1, last + 1)
]
named = check('docs/requirements.md', requirements, wanted, set())

# Those of the list that a software stack can be tested for.
FAULTS = (
    '1 2 3 4 7 8 9 10 10b 13 14 16 17 19 20 21 23 26 27 29 30 31 32 33 34 35 36 37 39 40 42 43 45 46 47 50 51 53 54 56 59 60 62 63 '
    '64 66 68 69 70 71'
).split()
# No test can show these here; the document says why.
REASONED = {'30', '46', '47', '66', '68'}
faults = rows('docs/public-faults.md', r'\d+b?')
shown = check('docs/public-faults.md', faults, FAULTS, REASONED)
bad += ['docs/public-faults.md: %s is not of the list' % n for n in faults if n not in FAULTS]

pages = {}
for path in glob.glob(os.path.join(root, 'crates/rdmacm/tests/manpage/*.rs')):
    page = os.path.basename(path)[:-3]
    if page != 'main':
        pages[page] = len(re.findall(r'^#\[test\]$', open(path).read(), re.M))
for page in ('accept', 'connect', 'get_cm_event', 'migrate_id'):
    if not pages.get(page):
        bad.append('crates/rdmacm/tests/manpage/%s.rs: no test' % page)

if bad:
    print('missing:', *bad, sep='\n  ', file=sys.stderr)
    sys.exit(1)
reasons = sum(1 for text, tests in faults.values() if not tests)
print('requirements: %d demanded, %d tests named' % (len(wanted), named))
print('public faults: %d, %d with tests (%d named), %d with a reason' % (len(faults), len(faults) - reasons, shown, reasons))
print('statements of manual pages: ' + ', '.join('%s %d' % page for page in sorted(pages.items())))
P
) || fail "docs"
echo "$counts"
pass "each requirement of MIG, PAR, ADDR, NAME, MEM and each public fault has a test that cites it, or its reason"
