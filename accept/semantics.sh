#!/usr/bin/env bash
# The semantic suite: the same cases between two private devices of one process, and between two processes by UDP 4791 with IPv4
# and with IPv6. All pass, and there are equally many of each.
. "$(dirname "$0")/lib.sh"
semantics=${OARLOCK_SEMANTICS:-}
if [ -z "$semantics" ]; then
  semantics=$(cd "$here" && cargo test --locked -q -p oarlock-device --test semantics --no-run --message-format=json 2>/dev/null |
    python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])')
fi
# Our namespace is fresh and the loopback interface up: the program needs none of its own.
export OARLOCK_TEST_IN_NAMESPACE=1
counts=()
for medium in private udp4 udp6; do
  OARLOCK_SEMANTICS_MEDIUM=$medium "$semantics" --exact "$medium" --nocapture >"$work/$medium.out" 2>"$work/$medium.err" ||
    fail "$medium: $(grep -h '^semantics: .*passed=' "$work/$medium.out" | tail -n 1)"
  line=$(grep -E "^semantics: medium=$medium cases=[0-9]+ passed=[0-9]+\$" "$work/$medium.out") || fail "$medium: no count"
  echo "$line"
  n=${line##*passed=}
  [ "$n" = "$(sed 's/.*cases=\([0-9]*\) .*/\1/' <<<"$line")" ] || fail "$medium: $line"
  [ "$n" -ge 80 ] || fail "$medium: only $n cases"
  counts+=("$n")
done
[ "${counts[0]}" = "${counts[1]}" ] && [ "${counts[1]}" = "${counts[2]}" ] || fail "unequal counts: ${counts[*]}"
# No case is no success.
if OARLOCK_SEMANTICS_CASE=no_such_case "$semantics" --exact private >"$work/none.out" 2>&1; then
  fail "a case that does not exist passes"
fi
pass "${counts[0]} cases on each of private, udp4, udp6"
