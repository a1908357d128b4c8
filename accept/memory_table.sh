#!/usr/bin/env bash
# Which operation on which kind of memory is seen, done cell by cell; and the table of docs/memory-events.md says the same as the test printed.
# The command that writes the table anew, from what the test promises and proves:
#   OARLOCK_UPDATE=1 cargo test -p oarlock-memwatch --test operations the_documentation_has_the_table
OARLOCK_ACCEPT_HERE=1
OARLOCK=none
. "$(dirname "$0")/lib.sh"
operations=$(memory_test operations)
table() { # table OUT: does all cells of both modes
  timeout 120 env ${preload:+LD_PRELOAD="$preload"} "$operations" every_cell --nocapture --test-threads 1 >"$1.out" 2>"$1.err"
}
table "$work/table" || fail "a cell differs"
grep '^not run: ' "$work/table.err" >&2 || true
if ! grep -qE '(^|\.\.\. )Full, [0-9]+ cells done$' "$work/table.out"; then # the test has said why, and whether that may be
  echo "not run: no table of full mode on this machine" >&2
  exit 0
fi

# compare DOCUMENT: the table that the test printed for full mode, beside that of the documentation; a cell that could not be done here is not compared.
compare() {
  python3 - "$work/table.out" "$1" <<'P'
import re, sys

def rows(lines):
    cells = [[cell.strip() for cell in line.strip().strip('|').split('|')] for line in lines]
    return {row[0]: row[1:] for row in cells if not row[0].startswith('---')}

printed = open(sys.argv[1]).read().split('\n')
at = next(number for number, line in enumerate(printed) if re.search(r'(?:^|\.\.\. )Full, \d+ cells done$', line))
done = int(re.search(r'(\d+) cells', printed[at])[1])
measured = []
for line in printed[at + 1:]:
    if not line.startswith('|'):
        break
    measured.append(line)
document = open(sys.argv[2]).read()
_, after = document.split('## The table: what becomes of a region (full mode)\n')
measured, written = rows(measured), rows(line for line in after.split('\n') if line.startswith('|'))
bad, skipped, same = [], 0, 0
if list(measured) != list(written):
    bad.append('other rows: %s' % sorted(set(measured) ^ set(written)))
for operation in measured:
    if len(measured[operation]) != len(written.get(operation, [])):
        bad.append('%s: other columns' % operation)
        continue
    for mapping, found, said in zip(measured['operation'], measured[operation], written[operation]):
        if found == 'not run':
            skipped += 1
        elif found == said:
            same += 1
        else:
            bad.append('%s of %s: %s, the documentation says %s' % (operation, mapping, found, said))
print('\n'.join(bad) if bad else '%d cells done, %d compared, %d not run here' % (done, same, skipped))
sys.exit(bool(bad))
P
}
compare "$here/docs/memory-events.md" >"$work/compared.log" || fail "the documentation differs from the test"
counts=$(cat "$work/compared.log")
[[ $counts =~ ^[2-9][0-9][0-9]' ' ]] || fail "only $counts"

# Neither is silent about a difference: one cell of the documentation changed, and a madvise that does nothing.
sed 's/^| munmap | unmapped |/| munmap | discarded |/' "$here/docs/memory-events.md" >"$work/other.md"
! compare "$work/other.md" >"$work/other.log" || fail "a changed cell of the documentation is not noticed"
grep -q '^munmap of anonymous: unmapped, the documentation says discarded$' "$work/other.log" || fail "the changed cell is not named"
planted=
if command -v cc >/dev/null; then
  echo 'int madvise(void *start, unsigned long len, int advice) { return 0; }' >"$work/nothing.c"
  cc -shared -fPIC -o "$work/nothing.so" "$work/nothing.c"
  ! preload=$work/nothing.so table "$work/planted" || fail "a madvise that does nothing is not noticed"
  grep -q 'MADV_DONTNEED of anonymous: Unchanged, promised Reported(Discarded)' "$work/planted.err" || fail "the planted fault is not named"
  planted=', a madvise that does nothing is noticed'
else
  echo 'not run: no C compiler to plant a fault with' >&2
fi
pass "$counts$planted"
