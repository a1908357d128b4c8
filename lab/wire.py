#!/usr/bin/env python3
"""A wire between a veth pair and a guest, without root: usage: wire.py HOST_END WIRE_END OWN_PORT GUEST_PORT CAPTURE

Raw frames of WIRE_END go to the guest's `-netdev dgram` on 127.0.0.1 and back, in the network namespace that has both ends.
Every frame is written to CAPTURE (pcap). Offloads of both ends are turned off first, so that what a program sends at HOST_END
crosses as on a real wire: a burst in segments, checksums computed.
"""
import ctypes
import fcntl
import select
import socket
import struct
import sys
import time

SIOCETHTOOL = 0x8946
# Linux include/uapi/linux/ethtool.h: checksums of sending, segmentation of TCP and of all else, receive aggregation.
OFFLOADS = {"ETHTOOL_STXCSUM": 0x17, "ETHTOOL_STSO": 0x1F, "ETHTOOL_SGSO": 0x24, "ETHTOOL_SGRO": 0x2C}
ETH_P_ALL = 3
PACKET_OUTGOING = 4


def offloads_off(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for what, command in OFFLOADS.items():
            value = ctypes.create_string_buffer(struct.pack("II", command, 0), 8)
            request = struct.pack("16sP16x", name.encode(), ctypes.addressof(value))
            try:
                fcntl.ioctl(control, SIOCETHTOOL, request)
            except OSError as error:
                sys.exit(f"{name}: {what}: {error}")


class Capture:
    def __init__(self, path):
        self.file = open(path, "wb")
        self.file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1))

    def write(self, frame):
        now = time.time_ns() // 1000
        self.file.write(struct.pack("<IIII", now // 1_000_000, now % 1_000_000, len(frame), len(frame)) + frame)
        self.file.flush()


def main():
    host_end, wire_end, own, guest, path = sys.argv[1:]
    for end in (host_end, wire_end):
        offloads_off(end)
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    raw.bind((wire_end, 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", int(own)))
    for each in (raw, udp):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        each.setblocking(False)
    capture = Capture(path)
    print("up", flush=True)
    while True:
        for ready in select.select([raw, udp], [], [])[0]:
            for _ in range(64):
                try:
                    if ready is raw:
                        frame, address = raw.recvfrom(65536)
                        if address[2] == PACKET_OUTGOING:
                            continue
                        udp.sendto(frame, ("127.0.0.1", int(guest)))
                    else:
                        frame = udp.recv(65536)
                        raw.send(frame)
                    capture.write(frame)
                except (BlockingIOError, ConnectionRefusedError):
                    break


main()
