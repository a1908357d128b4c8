#!/usr/bin/env bash
# A C program of Debian's packages on one side, a program of ours on the Rust interface on the other, both ways, with migration on each side:
# the rows of accept/programs/mixed.toml, judged by what both say; then without a service, and with one that is killed: no row may be green.
. "$(dirname "$0")/lib.sh"
for program in ucmatose ibv_rc_pingpong; do need programs $program; done
export OARLOCK_EXAMPLES=${OARLOCK_EXAMPLES:-${CARGO_TARGET_DIR:-$here/target}/release/examples} OARLOCK_HOSTD=$OARLOCK PYTHONDONTWRITEBYTECODE=1
for example in mckey udaddy pingpong; do
  [ -x "$OARLOCK_EXAMPLES/$example" ] || (cd "$here" && cargo build --release --locked -q -p oarlock-rdmacm -p oarlock-verbs --examples)
done
rows=$here/accept/programs/mixed.toml
python3 "$here/accept/programs/run.py" "$rows" >"$work/rows.out" 2>"$work/rows.err" || fail "$(cat "$work/rows.out")"
for planted in absent killed; do
  python3 "$here/accept/programs/run.py" "$rows" --planted $planted >"$work/$planted.out" 2>"$work/$planted.err" || fail "$planted: $(cat "$work/$planted.out")"
done
pass "$(tail -n 1 "$work/rows.out"); no service: $(tail -n 1 "$work/absent.out"); killed: $(tail -n 1 "$work/killed.out")"
