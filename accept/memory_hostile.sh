#!/usr/bin/env bash
# Memory events in hostile surroundings, as an ordinary user: no userfaultfd, another one on the same range, forks, vfork and exec, storms of signals,
# a thread that ends inside a call, an allocator that unmaps inside our own calls, the limit of mappings used up. Nothing hangs: each program has
# a minute and a half, and ends by itself.
OARLOCK_ACCEPT_HERE=1
OARLOCK=none
. "$(dirname "$0")/lib.sh"
total=0
for name in hostile exhausted allocator; do
  program=$(memory_test "$name")
  s=0
  timeout 90 "$program" --nocapture >"$work/$name.out" 2>"$work/$name.err" || s=$?
  [ "$s" != 124 ] || fail "$name hangs"
  [ "$s" = 0 ] || fail "$name exits with $s"
  grep '^not run: ' "$work/$name.err" >&2 || true
  count=$(sed -n 's/^test result: ok\. \([1-9][0-9]*\) passed; 0 failed.*/\1/p' "$work/$name.out")
  [ -n "$count" ] || fail "$name: no test passed"
  total=$((total + count))
done
for test in a_seccomp_filter_is_named another_userfaultfd_is_a_conflict a_storm_of_forks signal_handlers_may_unmap_inside_our_calls \
  limits_are_met_and_said allocators_may_unmap_inside_our_calls_and_threads_may_end_there; do
  cat "$work"/{hostile,exhausted,allocator}.out >"$work/all.out"
  grep -Eq "^test (.*::)?$test \.\.\. " "$work/all.out" || fail "no test $test"
done
pass "$total tests in hostile surroundings"
