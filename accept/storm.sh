#!/usr/bin/env bash
# 300 seeds of the storm over four loss rates: 32 connections with 10 messages and one migration each, and mixed in datagram
# services, multicast groups, MRA, alternate paths, devices and addresses that go and come, programs that change their minds.
# Each ingredient must have occurred, and planted faults turn the judge red. Then the scenarios: partitions that heal, a peer
# that restarts, clocks that stand still, a thousand clients before a backlog of eight.
OARLOCK_ACCEPT_HERE=1
. "$(dirname "$0")/lib.sh"
storm=${OARLOCK_STORM:-}
if [ -z "$storm" ]; then
  storm=$(cd "$here" && cargo test --locked -q -p oarlock-ucm --test storm --no-run --message-format=json 2>/dev/null |
    python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])')
fi
# Of the tests beside the storm each has a number of seeds of its own.
"$storm" --nocapture >"$work/storm.out" 2>&1 || fail "the storm"
expect "$work/storm.out" "storm: seeds=${OARLOCK_SEEDS:-300} connections=[1-9][0-9]* .*disagreements=0 leaks=0"
if [ "${OARLOCK_SEEDS:-300}" -ge 100 ]; then
  expect "$work/storm.out" "storm: .* ingredients=([1-9][0-9]*)/\\1 "
fi
for scenario in planted network_breaks heals_in_time clock_that_stands_still heals_too_late restarts hour_that_passes \
  backlog_of_eight_that_drops backlog_of_eight_that_rejects over_a_bad_network come_back_one_by_one; do
  expect "$work/storm.out" "^test .*$scenario.* ok\$"
done
pass "$(grep -E '^storm: ' "$work/storm.out" | tail -n 1)"
