#!/usr/bin/env bash
# Random lists of operations on both sides of every kind of queue pair agree with a reference model of memory and completions, byte by
# byte, at 0 and 2 % loss, with repetitions, packets out of order, receivers that are not ready, and faults. 300 seeds;
# OARLOCK_SEEDS changes that. OARLOCK_MODEL is the built test.
OARLOCK_ACCEPT_HERE=1
. "$(dirname "$0")/lib.sh"
seeds=${OARLOCK_SEEDS:-300}
if [ -z "${OARLOCK_MODEL:-}" ]; then
  OARLOCK_MODEL=$(cd "$here" && cargo test --release --locked -q -p oarlock-transport --test model --no-run --message-format=json |
    python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])')
fi
OARLOCK_SEEDS=$seeds "$OARLOCK_MODEL" --nocapture >"$work/model.out" 2>"$work/model.err" || fail "the model disagrees, or a planted fault is not caught"
cat "$work/model.out" "$work/model.err" >"$work/all.out"
expect "$work/all.out" "^$seeds seeds\$"
expect "$work/all.out" '^test result: ok\. [1-9][0-9]* passed; 0 failed'
pass "$seeds seeds; $(grep -h "^network: " "$work/all.out"); $(grep -c ": seed [0-9]" "$work/all.out") planted faults caught"
