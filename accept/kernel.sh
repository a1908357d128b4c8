#!/usr/bin/env bash
# A Linux kernel with soft RoCE is the peer (lab/): ping against rping, cmatose against ucmatose -m, pingpong against
# ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong, one-sided operations, atomics and a window against a C program on
# libibverbs; both directions, IPv4 and IPv6. Both sides check what they receive, and every packet on the wire has the right ICRC.
#
# OARLOCK_KERNEL_LAB is a folder made by lab/build; OARLOCK_KERNELS the kernels (default: all that are in it).
. "$(dirname "$0")/lib.sh"
need qemu qemu-system-x86_64
need qemu cpio
need qemu gcc
images=${OARLOCK_KERNEL_LAB:-}; [ ! -d "$images/out" ] || images=$images/out
if ! ls "$images"/vmlinuz-* >/dev/null 2>&1; then
  echo 'not run: OARLOCK_KERNEL_LAB is no folder with kernels (lab/README.md)' >&2
  case ",${OARLOCK_REQUIRE:-}," in *,qemu,*) exit 1 ;; *) exit 0 ;; esac
fi
examples=${OARLOCK_EXAMPLES:-${CARGO_TARGET_DIR:-$here/target}/release/examples}
[ -x "$examples/one_sided" ] || (cd "$here" && cargo build --release --locked -q -p oarlock-verbs --examples)
. "$here/lab/rig.sh"

h4=10.99.0.1 h6=fd99::1 g4=10.99.0.2 g6=fd99::2 cells=0

# cell NAME FIRST GUEST_COMMAND OUR_COMMAND...: FIRST (host or guest) starts; when it is ready the other does. Both must end with 0.
# What they say is then $work/guest.out and $work/host.out.
cell() {
  local name=$1 first=$2 there=$3; shift 3
  cell_name=$name; rm -f "$work/host.out" "$work/guest.out"
  if [ "$first" = host ]; then
    timeout 120 "$@" >"$work/host.out" 2>&1 & host=$!
    sleep 1.5; in_guest "$there"
  else
    in_guest "$there"; sleep 2.5
    timeout 120 "$@" >"$work/host.out" 2>&1 & host=$!
  fi
  ended "$host"; local ours=$s
  guest_done "$command"; cp "$share/$command.out" "$work/guest.out" 2>/dev/null || true
  [ "$ours $s" = '0 0' ] || fail "$name: ours ended with $ours, the kernel's side with $s"
  cells=$((cells + 1))
}
# says SIDE REGEX: that side has a line like this.
says() { grep -Eq -- "$2" "$work/$1.out" || fail "$cell_name: no line of the $1 matches: $2"; }

run_cells() {
  local v h g index host_index
  rig_up "$1"
  gcc -O1 -o "$share/peer" "$here/lab/peer.c" -libverbs 2>"$work/gcc.err" || fail 'lab/peer.c does not compile (libibverbs-dev is needed)'
  "$OARLOCK" host --grace 300 >"$work/host-service.log" 2>&1 & children+=($!)
  within 120 "$OARLOCK" ps >/dev/null 2>&1 || fail 'no service'
  for v in 4 6; do
    if [ $v = 4 ]; then h=$h4 g=$g4; guest_gid 0000:0000:0000:0000:0000:ffff:0a63:0002
    else h=$h6 g=$g6; guest_gid fd99:0000:0000:0000:0000:0000:0000:0002; fi

    cell "ping v$v" guest "rping -s -a $g -C 10 -S 1000 -V" "$OARLOCK" ping -c -a "$g" -C 10 -S 1000 -V
    says host '^10 messages of 1000 bytes sent, 10 received, 0 lost, 0 wrong'
    cell "rping v$v" host "rping -c -a $h -C 10 -S 1000 -V -v" "$OARLOCK" ping -s -a "$h" -V
    says guest '^ping data: rdma-ping-9: '
    cell "cmatose v$v" guest "ucmatose -b $g -c 20 -C 10 -S 1000 -m" "$OARLOCK" cmatose -s "$g" -c 20 -C 10 -S 1000 -m
    for side in guest host; do says $side '^migrating to new event channel$'; says $side '^return status 0$'; done
    says host '^messages received: 200 of 200'
    cell "ucmatose v$v" host "ucmatose -s $h -c 20 -C 10 -S 1000 -m" "$OARLOCK" cmatose -b "$h" -c 20 -C 10 -S 1000 -m
    for side in guest host; do says $side '^migrating to new event channel$'; says $side '^return status 0$'; done
    says host '^messages received: 200 of 200'

    # The C programs speak TCP over IPv4 only; which GID they use is another matter. host0 has its IPv4 address first.
    for t in rc uc ud; do
      local size=4096; [ $t != ud ] || size=1000
      cell "pingpong $t client v$v" guest "ibv_${t}_pingpong -g $index -n 200 -s $size -c" \
        "$examples/pingpong" --transport $t -n 200 -s $size -g $((v / 6)) -c "$g4"
      says guest '^200 iters in '; says host '^200 iters in '
      cell "pingpong $t server v$v" host "ibv_${t}_pingpong -g $index -n 200 -s $size -c $h4" \
        "$examples/pingpong" --transport $t -n 200 -s $size -g $((v / 6)) -c
      says guest '^200 iters in '; says host '^200 iters in '
    done

    for w in '' -w; do
      cell "one-sided client v$v $w" guest "/host/peer -g $index $w" "$examples/one_sided" "$g"
      says guest '^one-sided: .* mismatches=0$'; says host "^one-sided: writes=[23] reads=1 atomics=4 window=$([ -n "$w" ] && echo yes || echo no) mismatches=0$"
      cell "one-sided server v$v $w" host "/host/peer -g $index $h" "$examples/one_sided" -s $w
      says guest '^one-sided: .* mismatches=0$'; says host "^one-sided: writes=[23] reads=1 atomics=4 window=$([ -n "$w" ] && echo yes || echo no) mismatches=0$"
    done
  done
  rig_down
  python3 "$here/interop/check_icrc.py" "$wire_capture" >"$work/icrc.out" || fail "a wrong ICRC on the wire: $(cat "$work/icrc.out")"
  echo "kernel $(head -n 1 "$share/up"): cells=$cells $(cat "$work/icrc.out")"
}

if [ -n "${OARLOCK_KERNEL:-}" ]; then
  run_cells "$OARLOCK_KERNEL"
  pass "kernel $OARLOCK_KERNEL: $cells cells"
else
  # Each kernel in namespaces of its own.
  n=0
  for image in "$images"/vmlinuz-*; do
    release=${image##*/vmlinuz-}
    case " ${OARLOCK_KERNELS:-$release} " in *" $release "*) ;; *) continue ;; esac
    OARLOCK_KERNEL=$release OARLOCK_EXAMPLES=$examples env -u OARLOCK_ACCEPT_INSIDE bash "$0" || fail "kernel $release"
    n=$((n + 1))
  done
  pass "$n kernels, each cell of both"
fi
