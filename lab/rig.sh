# A Linux guest with soft RoCE beside this host, on one wire; sourced by what runs cells on it. Works in a network namespace of
# its own, without root (accept/lib.sh makes one). Wants $work, a folder, and $OARLOCK_KERNEL_LAB (lab/README.md).
#
# Host: 10.99.0.1, fd99::1 on `host0`. Guest: 10.99.0.2, fd99::2 on rxe0. $share is /host in the guest.
lab=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
share=$work/share
wire_capture=$work/wire.pcap
own_port=20001 guest_port=20002 next_command=1

# rig_up RELEASE: boots, and waits until the guest takes commands.
rig_up() {
  local images=$OARLOCK_KERNEL_LAB
  [ -d "$images/out" ] && images=$images/out
  mkdir -p "$share" "$work/top/lab"
  install -m 755 "$lab/guest" "$work/top/lab/init"
  (cd "$work/top" && find lab | cpio --quiet -o -H newc -R 0:0) >"$work/top.cpio"
  cat "$images/initramfs-$1.cpio" "$work/top.cpio" >"$work/initramfs"
  ip link add host0 type veth peer name wire0
  # No address of its own: nothing of this host but frames of the guest leaves by it.
  echo 1 >/proc/sys/net/ipv6/conf/wire0/disable_ipv6
  ip link set wire0 up; ip link set host0 up
  ip addr add 10.99.0.1/24 dev host0; ip addr add fd99::1/64 dev host0 nodad
  ip route add 224.0.0.0/4 dev host0
  python3 "$lab/wire.py" host0 wire0 $own_port $guest_port "$wire_capture" >"$work/wire.out" 2>&1 & children+=($!)
  within 10 grep -qs '^up$' "$work/wire.out" || fail 'the wire is not up'
  qemu-system-x86_64 -M pc -accel tcg,thread=multi -cpu max -smp 1 -m 600 -nodefaults -no-user-config -display none -no-reboot \
    -serial "file:$work/console.log" -kernel "$images/vmlinuz-$1" -initrd "$work/initramfs" \
    -append 'console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr no_timer_check cryptomgr.notests random.trust_cpu=on apparmor=0 audit=0 net.ifnames=0 rdinit=/lab/init' \
    -fsdev "local,id=fs0,path=$share,security_model=none,multidevs=remap" -device virtio-9p-pci,fsdev=fs0,mount_tag=host \
    -netdev "dgram,id=n0,local.type=inet,local.host=127.0.0.1,local.port=$guest_port,remote.type=inet,remote.host=127.0.0.1,remote.port=$own_port" \
    -device virtio-net-pci,netdev=n0,mac=52:54:00:12:34:02,romfile= </dev/null >"$work/qemu.log" 2>&1 &
  guest=$!; children+=($guest)
  within 120 test -e "$share/up" || fail "the guest of kernel $1 does not come up: $(tail -n 3 "$work/console.log" "$work/qemu.log")"
}

# rig_down: the guest ends by itself.
rig_down() {
  touch "$share/end"
  within 20 gone "$guest" || kill "$guest"
}

# in_guest COMMAND: starts it there; its number is then in $command.
in_guest() {
  command=$next_command; next_command=$((next_command + 1))
  # The guest's programs do not end by themselves when their peer is lost.
  printf '%s\n' "$1" >"$share/$command.sh.text"
  echo "exec timeout -s KILL ${limit:-60} sh /host/$command.sh.text" >"$share/$command.new"
  mv "$share/$command.new" "$share/$command.sh"
}
# guest_gid ADDRESS: the index of that address in the guest's table, in $index; GID text as the kernel writes it.
guest_gid() {
  in_guest "for f in /sys/class/infiniband/rxe0/ports/1/gids/*; do [ \"\$(cat \$f)\" != $1 ] || basename \$f; done"
  guest_done "$command"; index=$(head -n 1 "$share/$command.out")
  [ -n "$index" ] || fail "the guest has no GID $1"
}
# guest_done NUMBER [SECONDS]: waits for its exit status, then in $s; what it said is $share/NUMBER.out.
guest_done() {
  s=none
  if within "${2:-60}" test -e "$share/$1.rc"; then s=$(cat "$share/$1.rc"); fi
}
