#!/usr/bin/env bash
# Every program of accept/programs/rows.toml, as Debian ships it, through `oarlock run`: server and client, over both loopback addresses and
# between two hosts, as an ordinary user without a capability. Judged by what the programs say. Then without a service, and with one that is
# killed before the client starts: no row may be green. The README's table must have these rows; OARLOCK_PROGRAMS_RESULTS keeps the results,
# from which programs/table.py makes it.
. "$(dirname "$0")/lib.sh"
for program in ucmatose ibv_devinfo ib_write_bw; do need programs $program; done
rows=$here/accept/programs/rows.toml results=${OARLOCK_PROGRAMS_RESULTS:-$work/results.json}
export PYTHONDONTWRITEBYTECODE=1
python3 "$here/accept/programs/hosts.py" 2>"$work/hosts.err" || fail "a program hides from the judge"
python3 "$here/accept/programs/run.py" "$rows" --out "$results" >"$work/rows.out" 2>"$work/rows.err" || fail "$(cat "$work/rows.out")"
grep '^not run: ' "$work/rows.err" >&2 || true
for planted in absent killed; do
  python3 "$here/accept/programs/run.py" "$rows" --planted $planted >"$work/$planted.out" 2>"$work/$planted.err" || fail "$planted: $(cat "$work/$planted.out")"
done
python3 "$here/accept/programs/table.py" "$rows" "$here/README.md" --check >"$work/table.out" || fail "$(cat "$work/table.out")"
pass "$(tail -n 1 "$work/rows.out"); no service: $(tail -n 1 "$work/absent.out"); killed: $(tail -n 1 "$work/killed.out")"
