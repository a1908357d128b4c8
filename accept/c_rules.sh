#!/usr/bin/env bash
# What the C library does and no program of the packages shows: C programs, one or more rules each (crates/capi/tests/c/rules.txt), compiled
# against the system's headers and libraries, each through `oarlock run` on a host of its own. A rule that no program shows is red, and so is
# one that a manual page cites and the list has not.
. "$(dirname "$0")/lib.sh"
need programs cc
if [ ! -e /usr/include/rdma/rdma_cma.h ] || [ ! -e /usr/include/infiniband/verbs.h ]; then
  echo "not run: librdmacm-dev and libibverbs-dev are not installed" >&2
  case ",${OARLOCK_REQUIRE:-}," in *,programs,*) exit 1 ;; *) exit 0 ;; esac
fi
sources=$here/crates/capi/tests/c
mkdir "$work/bin"; chmod 755 "$work" "$work/bin"
compile() { cc -O1 -g -Wall -Werror -I"$here/dist/include" -o "$work/bin/$(basename "$1" .c)" "$1" -lrdmacm -libverbs -lpthread 2>"$work/cc.$(basename "$1" .c).err"; }
for source in "$sources"/*.c; do compile "$source" || fail "$(basename "$source") does not compile"; done
export PYTHONDONTWRITEBYTECODE=1
python3 "$here/accept/programs/rules.py" "$sources" "$work/bin" "$here/crates/tools/man3" >"$work/rules.out" 2>&1 || fail "$(cat "$work/rules.out")"
pass "$(tail -n 1 "$work/rules.out")"
