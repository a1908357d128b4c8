#!/usr/bin/env python3
"""Judge the ICRC of every RoCEv2 packet in a classic pcap or a pcapng file.

usage: check_icrc.py FILE...

Prints one line per file, `icrc ok=N bad=N other=N`, and on standard error each bad packet. `other` counts frames that are not
RoCEv2 or cannot be judged: fragments, frames that the capture cut short, IPv6 with extension headers. Exit status: 0 when at
least one ICRC was right in every file and none was wrong, 1 otherwise, 2 when a file cannot be read as a
pcap or pcapng.

This program is a judge from outside: it shares nothing with the Rust sources and knows the rule from IBA Vol. 1 ch. 7 and
Annex A17 alone. The ICRC is the CRC-32 of Ethernet, least significant byte first, over 64 bits of ones and the packet from the
IP header to the padding, where the fields that may change on the way count as ones: TOS, TTL and header checksum of IPv4;
traffic class, flow label and hop limit of IPv6; the UDP checksum; the fifth byte of the BTH.
"""

import struct
import sys
import zlib

ROCE_PORT = 4791
UDP = 17
BTH_LENGTH = 12
ICRC_LENGTH = 4

# Magic numbers of classic pcap, as the first four bytes of a file: byte order, whatever the resolution of the times.
BYTE_ORDERS = {
    bytes.fromhex("a1b2c3d4"): ">",
    bytes.fromhex("d4c3b2a1"): "<",
    bytes.fromhex("a1b23c4d"): ">",
    bytes.fromhex("4d3cb2a1"): "<",
}

ETHERTYPE_IP = (0x0800, 0x86DD)
ETHERTYPE_VLAN = (0x8100, 0x88A8)


class Unreadable(Exception):
    """The file is not a pcap or pcapng that this program understands."""


def past_bare_ip(frame):
    return frame


def past_loopback(frame):
    return frame[4:]


def past_ethernet(frame):
    at = 12
    while True:
        (kind,) = struct.unpack_from(">H", frame, at)
        if kind not in ETHERTYPE_VLAN:
            return frame[at + 2:] if kind in ETHERTYPE_IP else None
        at += 4


def past_cooked(frame):
    (kind,) = struct.unpack_from(">H", frame, 14)
    return frame[16:] if kind in ETHERTYPE_IP else None


def past_cooked_2(frame):
    (kind,) = struct.unpack_from(">H", frame, 0)
    return frame[20:] if kind in ETHERTYPE_IP else None


# Link type: what to skip to reach the IP header (None: not IP).
LINK_TYPES = {
    0: past_loopback,  # NULL
    1: past_ethernet,  # EN10MB
    12: past_bare_ip,  # RAW, as some systems number it
    101: past_bare_ip,  # RAW
    108: past_loopback,  # LOOP
    113: past_cooked,  # LINUX_SLL
    228: past_bare_ip,  # IPV4
    229: past_bare_ip,  # IPV6
    276: past_cooked_2,  # LINUX_SLL2
}


def file_header(data):
    """Returns the byte order of the file and the function that skips a link header."""
    order = BYTE_ORDERS.get(data[:4])
    if order is None or len(data) < 24:
        raise Unreadable("not a classic pcap")
    (link_field,) = struct.unpack_from(order + "I", data, 20)
    link_type = link_field & 0x0FFFFFFF
    if link_type not in LINK_TYPES:
        raise Unreadable("link type %d is not known here" % link_type)
    return order, LINK_TYPES[link_type]


def records(data, order):
    """Yields (number, frame, whether the capture kept all of it) for each record."""
    at, number = 24, 0
    while at < len(data):
        number += 1
        if at + 16 > len(data):
            raise Unreadable("record %d: header cut short" % number)
        _, _, captured, original = struct.unpack_from(order + "4I", data, at)
        at += 16
        if at + captured > len(data):
            raise Unreadable("record %d: frame cut short" % number)
        yield number, data[at:at + captured], captured == original
        at += captured


INTERFACE = 1
ENHANCED_PACKET = 6
BYTE_ORDER_MAGIC = 0x1A2B3C4D


def packets_of_pcapng(data):
    """Yields (number, frame, whether the capture kept all of it, the function that skips its link header)."""
    at, number, order, interfaces = 0, 0, "<", []
    while at < len(data):
        if at + 12 > len(data):
            raise Unreadable("block at byte %d: cut short" % at)
        if data[at:at + 4] == b"\x0a\x0d\x0d\x0a":
            order = next((o for o in "<>" if struct.unpack_from(o + "I", data, at + 8)[0] == BYTE_ORDER_MAGIC), None)
            if order is None:
                raise Unreadable("section at byte %d: no byte order" % at)
            interfaces = []
        kind, length = struct.unpack_from(order + "2I", data, at)
        if length % 4 or length < 12 or at + length > len(data):
            raise Unreadable("block at byte %d: cut short" % at)
        if struct.unpack_from(order + "I", data, at + length - 4)[0] != length:
            raise Unreadable("block at byte %d: its lengths differ" % at)
        if kind == INTERFACE:
            (link_type,) = struct.unpack_from(order + "H", data, at + 8)
            if link_type not in LINK_TYPES:
                raise Unreadable("link type %d is not known here" % link_type)
            interfaces.append(LINK_TYPES[link_type])
        elif kind == ENHANCED_PACKET:
            number += 1
            interface, _, _, captured, original = struct.unpack_from(order + "5I", data, at + 8)
            if interface >= len(interfaces) or captured > length - 32:
                raise Unreadable("packet %d: no such interface, or cut short" % number)
            yield number, data[at + 28:at + 28 + captured], captured == original, interfaces[interface]
        at += length


def packets(data):
    """As packets_of_pcapng, of either format."""
    if data[:4] == b"\x0a\x0d\x0d\x0a":
        yield from packets_of_pcapng(data)
        return
    order, past_link_header = file_header(data)
    for number, frame, whole in records(data, order):
        yield number, frame, whole, past_link_header


def masked_ipv4(packet):
    """Returns (masked IP header, UDP datagram), or None if this is no unfragmented UDP over IPv4."""
    length = (packet[0] & 0x0F) * 4
    (total,) = struct.unpack_from(">H", packet, 2)
    (fragment,) = struct.unpack_from(">H", packet, 6)
    if packet[9] != UDP or fragment & 0x3FFF:
        return None
    header = bytearray(packet[:length])
    header[1] = 0xFF
    header[8] = 0xFF
    header[10:12] = b"\xff\xff"
    return bytes(header), packet[length:total]


def masked_ipv6(packet):
    """Returns (masked IP header, UDP datagram), or None if no UDP header follows directly."""
    (payload,) = struct.unpack_from(">H", packet, 4)
    if packet[6] != UDP:
        return None
    header = bytearray(packet[:40])
    header[0] |= 0x0F
    header[1:4] = b"\xff\xff\xff"
    header[7] = 0xFF
    return bytes(header), packet[40:40 + payload]


def judge(packet):
    """Returns None for what is not RoCEv2, else a pair: the ICRC is right, and a sentence."""
    version = packet[0] >> 4
    masked = masked_ipv4(packet) if version == 4 else masked_ipv6(packet) if version == 6 else None
    if masked is None:
        return None
    header, datagram = masked
    if len(datagram) < 8:
        return None
    _, destination, udp_length, _ = struct.unpack_from(">4H", datagram)
    if destination != ROCE_PORT:
        return None
    if udp_length != len(datagram):
        return False, "UDP length %d, but %d bytes are there" % (udp_length, len(datagram))
    if len(datagram) < 8 + BTH_LENGTH + ICRC_LENGTH:
        return False, "%d bytes are too few for BTH and ICRC" % len(datagram)
    covered = bytearray(datagram[:-ICRC_LENGTH])
    covered[6:8] = b"\xff\xff"
    covered[8 + 4] = 0xFF
    crc = zlib.crc32(covered, zlib.crc32(b"\xff" * 8 + header))
    (found,) = struct.unpack("<I", datagram[-ICRC_LENGTH:])
    return found == crc, "ICRC %08x, computed %08x" % (found, crc)


def check(path):
    with open(path, "rb") as file:
        data = file.read()
    counts = {"ok": 0, "bad": 0, "other": 0}
    for number, frame, whole, past_link_header in packets(data):
        verdict = None
        if whole:
            try:
                packet = past_link_header(frame)
                verdict = judge(packet) if packet else None
            except (struct.error, IndexError):
                verdict = None
        if verdict is None:
            counts["other"] += 1
            continue
        right, sentence = verdict
        counts["ok" if right else "bad"] += 1
        if not right:
            print("%s: packet %d: %s" % (path, number, sentence), file=sys.stderr)
    print("icrc ok=%(ok)d bad=%(bad)d other=%(other)d" % counts)
    return counts["bad"] == 0 and counts["ok"] > 0


def main(paths):
    if not paths:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    status = 0
    for path in paths:
        try:
            if not check(path):
                status = max(status, 1)
        except (OSError, Unreadable) as error:
            print("error: %s: %s" % (path, error), file=sys.stderr)
            status = 2
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
