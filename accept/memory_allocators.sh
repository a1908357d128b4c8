#!/usr/bin/env bash
# Programs with the allocators of glibc, jemalloc and mimalloc, as they are and set to give memory back at once. Without a device: chaos on four threads,
# with an allocator under load and every block that it hands out looked up and compared with the pages that were registered; a cache that is told
# nothing sends what was in blocks before, with each of them. With the software device: a program in C, linked with the allocator, whose peer
# reads its blocks by keys that end with them; and the demonstration in Rust.
. "$(dirname "$0")/lib.sh"
seeds=${OARLOCK_SEEDS:-10}
chaos=$(memory_test chaos)
example=${OARLOCK_EXAMPLES:-${CARGO_TARGET_DIR:-$here/target}/release/examples}/stale_cache
[ -x "$example" ] || (cd "$here" && cargo build --release --locked -q -p oarlock-verbs --examples)
chmod 755 "$work"
blocks=$work/blocks
if ! command -v cc >/dev/null || [ ! -e /usr/include/rdma/rdma_cma.h ]; then
  blocks=
  echo 'not run: the program in C, cc, librdmacm-dev or libibverbs-dev is not installed' >&2
  case ",${OARLOCK_REQUIRE:-}," in *,programs,*) exit 1 ;; esac
fi
# library FILE: where the dynamic linker finds it.
library() { { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | sed -n "s/^[[:space:]]*$1 .*=> //p" | head -n 1; }
ran=()
for allocator in glibc jemalloc mimalloc; do
  preload=
  case $allocator in
    glibc) at_once=(GLIBC_TUNABLES=glibc.malloc.mmap_threshold=131072) ;;
    jemalloc) preload=$(library libjemalloc.so.2) package=libjemalloc2 at_once=(MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0) ;;
    mimalloc) preload=$(library libmimalloc.so.2) package=libmimalloc2.0 at_once=(MIMALLOC_RESET_DELAY=0 MIMALLOC_PURGE_DELAY=0 MIMALLOC_PAGE_RESET=1) ;;
  esac
  if [ "$allocator" != glibc ] && [ -z "$preload" ]; then
    echo "not run: $allocator, package $package is not installed" >&2
    case ",${OARLOCK_REQUIRE:-}," in *,allocators,*) exit 1 ;; *) continue ;; esac
  fi
  if [ -n "$blocks" ]; then
    # Linked, before the C library.
    cc -O1 -Wall -Wextra -Werror -I"$here/crates/capi/tests/c" -I"$here/dist/include" -o "$blocks.$allocator" "$here/accept/programs/blocks.c" \
      ${preload:+-Wl,--no-as-needed "$preload" -Wl,--as-needed} -lrdmacm -libverbs -lpthread 2>"$work/cc.err" || fail "blocks.c does not compile: $(cat "$work/cc.err")"
    chmod 755 "$blocks.$allocator"
  fi
  # As it is, and with a setting to give memory back to the system at once.
  for setting in as_it_is at_once; do
    out=$work/$allocator.$setting.out
    environment=()
    [ "$setting" = as_it_is ] || environment+=("${at_once[@]}")
    timeout 300 env "${environment[@]}" OARLOCK_SEEDS="$seeds" ${preload:+LD_PRELOAD="$preload"} "$chaos" --nocapture --test-threads 1 \
      >"$out" 2>"${out%out}err" || fail "$allocator, $setting: chaos"
    if grep '^not run: ' "${out%out}err" >&2; then exit 0; fi
    expect "$out" "chaos: MrCache: allocator=$allocator lookups=[1-9][0-9]* .* stale=0 .*"
    expect "$out" ".*chaos: untold: allocator=$allocator .* stale=[1-9][0-9]* .*"
    timeout 60 env "${environment[@]}" ${preload:+LD_PRELOAD="$preload"} "$example" >"$work/example.out" 2>"$work/example.err" ||
      fail "$allocator, $setting: the demonstration exits with $?"
    [ "$(tail -n 1 "$work/example.out")" = 'stale_cache: naive=corrupt notified=right' ] || fail "$allocator, $setting: $(tail -n 1 "$work/example.out")"
    [ -n "$blocks" ] || continue
    timeout 120 env "${environment[@]}" "$OARLOCK" run -- "$blocks.$allocator" 127.0.0.1 >"$work/blocks.out" 2>"$work/blocks.err" ||
      fail "$allocator, $setting: blocks exits with $?"
    expect "$work/blocks.out" '^blocks: reads=[1-9][0-9]* found=[1-9][0-9]* registered=[1-9][0-9]* .*$'
    echo "$allocator, $setting: $(tail -n 1 "$work/blocks.out")"
  done
  [ -z "$blocks" ] || expect "$work/blocks.out" '^blocks: .* events=[1-9][0-9]* refused=[1-9][0-9]* .*$'
  expect "$out" '.*chaos: untold: .* block_stale=[1-9][0-9]* .*'
  ran+=("$allocator $(sed -n 's/.*MrCache: allocator=.* \(lookups=[0-9]*\).*/\1/p' "$out")")
done
pass "$seeds seeds each: ${ran[*]}"
