#!/usr/bin/env bash
# The list of what the verbs interface has (crates/device/verbs.list), against the installed infiniband/verbs.h: every constant
# has its row, every row's test exists, nothing stands there twice, numbers are those of the header, docs/verbs.md says the same.
OARLOCK_ACCEPT_HERE=1
. "$(dirname "$0")/lib.sh"
semantics=${OARLOCK_SEMANTICS:-}
if [ -z "$semantics" ]; then
  semantics=$(cd "$here" && cargo test --locked -q -p oarlock-device --test semantics --no-run --message-format=json 2>/dev/null |
    python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])')
fi
export OARLOCK_SOURCES="$here"
if [ ! -e /usr/include/infiniband/verbs.h ]; then
  echo "not run: libibverbs-dev is not installed" >&2
  case ",${OARLOCK_REQUIRE:-}," in *,programs,*) exit 1 ;; *) exit 0 ;; esac
fi
"$semantics" list:: --nocapture >"$work/verbs.out" 2>"$work/verbs.err" || fail "the list"
expect "$work/verbs.out" '^verbs: implemented=[1-9][0-9]* refused=[1-9][0-9]* tests=[1-9][0-9]*$'
for test in the_list_is_complete_and_its_tests_exist the_judge_sees_what_is_missing_doubled_or_not_there \
  constants_have_the_numbers_of_the_header what_is_absent_has_no_number_here listed_transitions_are_those_of_the_table \
  the_document_says_what_the_list_says; do
  expect "$work/verbs.out" "^test list::(constants::)?$test \.\.\. .*ok\$"
done
# Counted once more, by another program: rows of the list, without comments.
line=$(grep '^verbs: ' "$work/verbs.out")
python3 - "$here/crates/device/verbs.list" "$line" <<'P' || fail "the list has other counts: $line"
import sys
rows = [r.strip().split(' | ') for r in open(sys.argv[1]) if r.strip() and not r.startswith('#')]
said = dict(f.split('=') for f in sys.argv[2].split()[1:])
kinds = [r[1] for r in rows]
assert set(kinds) == {'implemented', 'refused'}
assert int(said['implemented']) == kinds.count('implemented') and int(said['refused']) == kinds.count('refused')
assert int(said['tests']) == len({r[-1] for r in rows})
assert len({r[0] for r in rows}) == len(rows)
P
# Planted: a row that is gone, one that stands there twice, one whose test is none.
planted() {
  if OARLOCK_VERBS_LIST=$work/planted.list "$semantics" --exact list::the_list_is_complete_and_its_tests_exist \
    >"$work/planted.out" 2>&1; then fail "not seen: $1"; fi
  grep -q "$1" "$work/planted.out" || fail "not said: $1"
}
list=$here/crates/device/verbs.list
grep -v '^send flag IBV_SEND_FENCE ' "$list" >"$work/planted.list"
planted 'missing: send flag IBV_SEND_FENCE'
{ cat "$list"; grep '^send flag IBV_SEND_FENCE ' "$list"; } >"$work/planted.list"
planted 'twice: send flag IBV_SEND_FENCE'
sed 's/^\(send flag IBV_SEND_FENCE |.*::\)fence$/\1fences/' "$list" >"$work/planted.list"
planted 'no such test: oarlock-device::semantics::fences'
pass "${line#verbs: }"
