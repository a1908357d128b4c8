#!/usr/bin/env bash
# 300 seeds of the storm (32 connections, 10 messages and one migration each) over four loss rates; a planted fault turns it red.
OARLOCK_ACCEPT_HERE=1
. "$(dirname "$0")/lib.sh"
storm=${OARLOCK_STORM:-}
if [ -z "$storm" ]; then
  storm=$(cd "$here" && cargo test --locked -q -p oarlock-ucm --test storm --no-run --message-format=json 2>/dev/null |
    python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])')
fi
OARLOCK_SEEDS=${OARLOCK_SEEDS:-300} "$storm" --nocapture >"$work/storm.out" 2>&1 || fail "the storm"
expect "$work/storm.out" "storm: seeds=${OARLOCK_SEEDS:-300} connections=[1-9][0-9]* .*disagreements=0 leaks=0"
expect "$work/storm.out" '^test .*planted.* ok$'
pass "$(grep -E '^storm: ' "$work/storm.out" | tail -n 1)"
