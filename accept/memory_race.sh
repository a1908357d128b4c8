#!/usr/bin/env bash
# Lookups while a second thread recycles the addresses as fast as it can: 10^6, OARLOCK_LOOKUPS changes that. Judged by contents: no strict lookup gives
# a registration of memory that is gone, while at least 99 % of the lookups of memory that stays hit; and lookups that are weakened on purpose do,
# so that the test can fail.
OARLOCK_ACCEPT_HERE=1
OARLOCK=none
. "$(dirname "$0")/lib.sh"
lookups=${OARLOCK_LOOKUPS:-1000000}
race=$(memory_test cache_race)
OARLOCK_LOOKUPS=$lookups timeout 2700 "$race" --nocapture --test-threads 1 >"$work/race.out" 2>"$work/race.err" || fail "the race is lost"
if grep '^not run: ' "$work/race.err" >&2; then exit 0; fi
# field NAME LINE
field() { sed -n "s/.*\\b$1=\\([0-9.]*\\).*/\\1/p" <<<"$2"; }
strict=$(grep -o 'race: mode=strict .*' "$work/race.out") || fail "no strict lookups"
weakened=$(grep -o 'race: mode=weakened .*' "$work/race.out") || fail "no weakened lookups"
printf '%s\n' "$strict" "$weakened"
[ "$(field lookups "$strict")" -ge "$lookups" ] || fail "fewer lookups than $lookups: $strict"
[ "$(field stale "$strict")" = 0 ] || fail "stale: $strict"
[ "$(field recycled "$strict")" -gt 0 ] || fail "no address was recycled: $strict"
awk -v percent="$(field unchanged_hit_percent "$strict")" 'BEGIN { exit !(percent >= 99 && percent <= 100) }' || fail "too few hits: $strict"
[ "$(field stale "$weakened")" -gt 0 ] || fail "the judge sees nothing: $weakened"
[ "$(field recycled "$weakened")" -gt 0 ] || fail "no address was recycled: $weakened"
pass "$lookups strict lookups, $(field recycled "$strict") addresses recycled, 0 stale; weakened, $(field stale "$weakened") of $(field lookups "$weakened")"
