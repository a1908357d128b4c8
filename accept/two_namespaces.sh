#!/usr/bin/env bash
# Two hosts: network namespaces joined by a veth pair, each with a service of its own, IPv4 and IPv6.
. "$(dirname "$0")/lib.sh"
unshare -n sleep 300 & far=$!; children+=($far)
within 120 sh -c "[ \"\$(readlink /proc/$far/ns/net)\" != \"\$(readlink /proc/self/ns/net)\" ]" || fail "no second namespace"
far() { nsenter -t "$far" -n -- "$@"; }
ip link add oar0 type veth peer name oar1 netns "$far"
for a in 10.91.0.1/24 fd00:91::1/64; do ip addr add "$a" dev oar0 $( [[ $a == *:* ]] && echo nodad ); done
for a in 10.91.0.2/24 fd00:91::2/64; do far ip addr add "$a" dev oar1 $( [[ $a == *:* ]] && echo nodad ); done
ip link set oar0 up; far ip link set oar1 up; far ip link set lo up
for addr in 10.91.0.2 fd00:91::2; do cmatose_pair "$addr" far; done
pass "cmatose between two namespaces, each with its own service, IPv4 and IPv6"
