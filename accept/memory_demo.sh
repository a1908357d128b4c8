#!/usr/bin/env bash
# What a stale registration does, and what memory events make of it: a block is freed, its address holds something else, and a peer uses the key
# that it was given. In C (dist/examples/stale_cache.c, as its first lines say: the system's headers, ours, the system's libraries to link with,
# `oarlock run`), and in Rust (the example stale_cache of crates/verbs). Each has a cache that listens to events and one that does not, which must
# fail: or the program would show nothing.
. "$(dirname "$0")/lib.sh"
need programs cc
if [ ! -e /usr/include/infiniband/verbs.h ]; then
  echo "not run: libibverbs-dev is not installed" >&2
  case ",${OARLOCK_REQUIRE:-}," in *,programs,*) exit 1 ;; *) exit 0 ;; esac
fi

# A build elsewhere than in target/ has no way to the source, and says where it looked.
if ! flags=$("$OARLOCK" env --cflags 2>"$work/cflags.err"); then
  grep -q "memory_events.h is in none of" "$work/cflags.err" || fail "env --cflags: $(cat "$work/cflags.err")"
  flags=-I$here/dist/include
fi
cc -O2 -Wall -Wextra -Werror $flags "$here/dist/examples/stale_cache.c" -o "$work/stale_cache" -libverbs 2>"$work/cc.err" || fail "it does not compile"
chmod 755 "$work" "$work/stale_cache"
# Where a linker would take the extension for absent, the compiler says so.
! cc -O2 -fno-pie -no-pie $flags "$here/dist/examples/stale_cache.c" -o "$work/fixed" -libverbs 2>"$work/fixed.err" || fail "it compiles without -fPIE"
grep -q 'compile with -fPIE or -fPIC' "$work/fixed.err" || fail "without -fPIE: $(cat "$work/fixed.err")"

"$OARLOCK" run -- "$work/stale_cache" >"$work/c.out" 2>"$work/c.err" || fail "the program in C exited with $?"
expect "$work/c.out" '^naive +write: the peer is told "success"; of the program.s 4096 bytes 4096 are overwritten$'
expect "$work/c.out" '^naive +read:  the peer is told "success"; it has read 4096 bytes that were never meant for it$'
expect "$work/c.out" '^naive +send:  with the old registration: '
expect "$work/c.out" '^naive +cache: hits=2 stale=1 misses=1 dropped=0$'
expect "$work/c.out" '^notified write: the peer is told "remote access error"; of the program.s 4096 bytes 0 are overwritten$'
expect "$work/c.out" '^notified read:  the peer is told "remote access error"; it has read 0 bytes that were never meant for it$'
expect "$work/c.out" '^notified send:  with a new registration: "success"; of 4096 bytes that arrive 0 are wrong$'
expect "$work/c.out" '^notified cache: hits=1 stale=0 misses=2 dropped=1$'
[ "$(tail -n 1 "$work/c.out")" = 'stale_cache: naive=corrupt notified=right' ] || fail "its last line: $(tail -n 1 "$work/c.out")"

# Another library: the program starts all the same, and says what is missing; without devices it does not come so far.
s=0; "$work/stale_cache" >"$work/other.out" 2>"$work/other.err" || s=$?
[ "$s" = 1 ] || fail "without oarlock it exited with $s"
grep -Eq 'no device with an active port|has no memory events' "$work/other.out" "$work/other.err" || fail "without oarlock it says nothing"

example=${OARLOCK_EXAMPLES:-${CARGO_TARGET_DIR:-$here/target}/release/examples}/stale_cache
[ -x "$example" ] || (cd "$here" && cargo build --release --locked -q -p oarlock-verbs --examples)
"$example" >"$work/rust.out" 2>"$work/rust.err" || fail "the program in Rust exited with $?"
[ "$(tail -n 1 "$work/rust.out")" = 'stale_cache: naive=corrupt notified=right' ] || fail "its last line: $(tail -n 1 "$work/rust.out")"
pass "C and Rust: $(tail -n 1 "$work/c.out")"
