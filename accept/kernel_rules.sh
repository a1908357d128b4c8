#!/usr/bin/env bash
# The rules of the C libraries (crates/capi/tests/c), shown by the same programs where they come from: Debian's libraries on a Linux kernel's
# soft RoCE (lab/). A rule that does not hold there is wrong, unless its sentence says that it is about what is here only,
# or kernel.txt beside them has the reason.
#
# OARLOCK_KERNEL_LAB is a folder made by lab/build; OARLOCK_KERNELS the kernels (default: all that are in it),
# OARLOCK_SAID-RELEASE a new folder for what the programs said.
. "$(dirname "$0")/lib.sh"
need qemu qemu-system-x86_64
need qemu cpio
need qemu cc
images=${OARLOCK_KERNEL_LAB:-}; [ ! -d "$images/out" ] || images=$images/out
if ! ls "$images"/vmlinuz-* >/dev/null 2>&1; then
  echo 'not run: OARLOCK_KERNEL_LAB is no folder with kernels (lab/README.md)' >&2
  case ",${OARLOCK_REQUIRE:-}," in *,qemu,*) exit 1 ;; *) exit 0 ;; esac
fi
. "$here/lab/rig.sh"
sources=$here/crates/capi/tests/c

run_rules() {
  local source name
  rig_up "$1"
  mkdir -p "$share/bin" "$share/said"
  # Emulated code takes its time.
  for source in "$sources"/*.c; do
    name=$(basename "$source" .c)
    cc -O1 -g -I"$here/dist/include" -DRULE_LIMIT=${OARLOCK_RULE_LIMIT:-90} -o "$share/bin/$name" "$source" -lrdmacm -libverbs -lpthread 2>"$work/cc.err" || fail "$name does not compile"
  done
  for source in "$sources"/*.c; do
    name=$(basename "$source" .c)
    ! grep -q own_network "$source" || continue # no device is in a network of its own there
    grep -P "\t$name\t(?!\(here\))" "$sources/rules.txt" >/dev/null || continue
    skip=$(sed -n "s/^$name:\([a-z_]*\)\t.*/\1/p" "$sources/kernel.txt" | tr '\n' ' ')
    limit=$((${OARLOCK_RULE_LIMIT:-90} + 20)) in_guest "RULE_SKIP='$skip' RULE_GO_ON=1 /host/bin/$name 10.99.0.2 >/tmp/$name.out 2>&1; echo \"ended: \$?\" >>/tmp/$name.out; cp /tmp/$name.out /host/said/"
    guest_done "$command" 300
  done
  rig_down
  [ -z "${OARLOCK_SAID:-}" ] || cp -r "$share/said" "$OARLOCK_SAID-$1"
  python3 "$here/accept/programs/rules.py" "$sources" --said "$share/said" >"$work/rules.$1.out" || fail "kernel $1: $(cat "$work/rules.$1.out")"
  echo "kernel $(head -n 1 "$share/up"): $(tail -n 1 "$work/rules.$1.out")"
}

if [ -n "${OARLOCK_KERNEL:-}" ]; then
  run_rules "$OARLOCK_KERNEL"
else
  # Each kernel in namespaces of its own.
  n=0
  for image in "$images"/vmlinuz-*; do
    release=${image##*/vmlinuz-}
    case " ${OARLOCK_KERNELS:-$release} " in *" $release "*) ;; *) continue ;; esac
    OARLOCK_KERNEL=$release env -u OARLOCK_ACCEPT_INSIDE bash "$0" || fail "kernel $release"
    n=$((n + 1))
  done
  pass "$n kernels"
fi
