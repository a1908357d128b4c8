#!/usr/bin/env bash
# Programs beyond those that the project promises (accept/programs/more.toml), through `oarlock run`, judged as in accept/programs.sh; a row whose
# package is missing is not run. Then without a service, and with one that is killed: no row may be green.
. "$(dirname "$0")/lib.sh"
rows=$here/accept/programs/more.toml
export PYTHONDONTWRITEBYTECODE=1
python3 "$here/accept/programs/run.py" "$rows" >"$work/rows.out" 2>"$work/rows.err" || fail "$(cat "$work/rows.out")"
grep '^not run: ' "$work/rows.err" >&2 || true
for planted in absent killed; do
  python3 "$here/accept/programs/run.py" "$rows" --planted $planted >"$work/$planted.out" 2>"$work/$planted.err" || fail "$planted: $(cat "$work/$planted.out")"
done
pass "$(tail -n 1 "$work/rows.out"); no service: $(tail -n 1 "$work/absent.out"); killed: $(tail -n 1 "$work/killed.out")"
