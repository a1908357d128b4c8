#!/usr/bin/env bash
# Either side of a pair of programs (accept/programs/kill.toml) is killed (-9) at a random moment, 100 times: the other side ends by itself, or
# by SIGTERM where it waits for ever by design; afterwards no process is left, the service answers, and holds no program, identifier, port or
# slot. OARLOCK_SEED repeats a run's choices.
. "$(dirname "$0")/lib.sh"
for program in ucmatose ibv_devinfo ib_write_bw; do need programs $program; done
export PYTHONDONTWRITEBYTECODE=1
seed=${OARLOCK_SEED:-$((RANDOM * 32768 + RANDOM))}
python3 "$here/accept/programs/kill.py" "$here/accept/programs/kill.toml" "$seed" 100 >"$work/kill.out" 2>&1 || fail "$(cat "$work/kill.out")"
pass "$(tail -n 1 "$work/kill.out")"
