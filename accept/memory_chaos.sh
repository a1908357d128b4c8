#!/usr/bin/env bash
# Random mmap, munmap, mremap, madvise, brk, MAP_FIXED, threads that end, forks and allocator traffic on four threads, 50 seeds, OARLOCK_SEEDS changes
# that: what a strict lookup gives shows, byte by byte, what the program sees, by a device that holds physical pages; and regions are invalid exactly
# when a model says so. A cache that is told nothing is caught by the same judge.
OARLOCK_ACCEPT_HERE=1
OARLOCK=none
. "$(dirname "$0")/lib.sh"
seeds=${OARLOCK_SEEDS:-50}
chaos=$(memory_test chaos) contract=$(memory_test contract)
OARLOCK_SEEDS=$seeds timeout 2700 "$chaos" --nocapture --test-threads 1 >"$work/chaos.out" 2>"$work/chaos.err" || fail "the cache and the memory disagree, or the judge sees nothing"
OARLOCK_SEEDS=$seeds timeout 2700 "$contract" random_operations_agree_with_a_model --nocapture >"$work/contract.out" 2>"$work/contract.err" ||
  fail "the model disagrees"
if grep '^not run: ' "$work"/*.err >&2; then exit 0; fi
for kind in 'map over' unmap discard 'free lazily' move protect brk thread fork spawn blocks hold; do
  expect "$work/chaos.out" "chaos: MrCache: .*\\b$kind [1-9][0-9]*(,.*)?\$"
done
expect "$work/chaos.out" 'chaos: MrCache: allocator=.* lookups=[1-9][0-9]* .* stale=0 .*$'
expect "$work/chaos.out" '.*chaos: untold: allocator=.* stale=[1-9][0-9]* .*$'
expect "$work/contract.out" '^test result: ok\. 1 passed; 0 failed.*'
pass "$seeds seeds as user $(id -u); $(grep -ho 'MrCache: allocator.*' "$work/chaos.out"); $(grep -ho 'untold: allocator.*' "$work/chaos.out")"
