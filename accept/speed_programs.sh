#!/usr/bin/env bash
# `oarlock run` adds less than 20 ms to a program's start; ib_write_bw and ib_write_lat reach 0.9 of the bandwidth and 1.1 of the latency that
# `oarlock bench` measures for the same shape (accept/programs/speed.py has how, and what is allowed for noise).
. "$(dirname "$0")/lib.sh"
for program in ibv_devices ib_write_bw; do need programs $program; done
export PYTHONDONTWRITEBYTECODE=1
python3 "$here/accept/programs/speed.py" >"$work/speed.out" 2>&1 || fail "$(cat "$work/speed.out")"
pass "$(tail -n 1 "$work/speed.out")"
