#!/usr/bin/env bash
# Programs with the allocators of glibc, jemalloc and mimalloc: chaos on four threads, with an allocator under load and every block that it hands out
# looked up and compared with what the device holds. A cache that is told nothing sends what was in blocks before, with each of them.
OARLOCK_ACCEPT_HERE=1
OARLOCK=none
. "$(dirname "$0")/lib.sh"
seeds=${OARLOCK_SEEDS:-10}
chaos=$(memory_test chaos)
# library NAME FILE: where the dynamic linker finds it.
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
  # As it is, and with a setting to give memory back to the system at once.
  for setting in as_it_is at_once; do
    out=$work/$allocator.$setting.out
    environment=(OARLOCK_SEEDS="$seeds" ${preload:+LD_PRELOAD="$preload"})
    [ "$setting" = as_it_is ] || environment+=("${at_once[@]}")
    timeout 300 env "${environment[@]}" "$chaos" --nocapture --test-threads 1 >"$out" 2>"${out%out}err" || fail "$allocator, $setting: chaos"
    if grep '^not run: ' "${out%out}err" >&2; then exit 0; fi
    expect "$out" "chaos: MrCache: allocator=$allocator lookups=[1-9][0-9]* .* stale=0 .*"
    expect "$out" ".*chaos: untold: allocator=$allocator .* stale=[1-9][0-9]* .*"
  done
  expect "$out" '.*chaos: untold: .* block_stale=[1-9][0-9]* .*'
  ran+=("$allocator $(sed -n 's/.*MrCache: allocator=.* \(lookups=[0-9]*\).*/\1/p' "$out")")
done
pass "$seeds seeds each: ${ran[*]}"
