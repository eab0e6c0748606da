"""The MSS option of a SYN (RFC 9293 section 3.7.1), lowered to a path."""

import checksum
import ip

SYN = 0x02
END_OF_OPTIONS, NO_OPERATION, MAXIMUM_SEGMENT_SIZE = 0, 1, 2
# docs/known-gaps.md: the option is found behind at most this number of others.
MOST_OPTIONS = 10


def opens_connection(header):
    """Whether the packet may be a SYN without data, by its lengths: TCP with options and at most 60 bytes."""
    if header.protocol != ip.TCP or header.is_fragment:
        return False
    segment = header.length if header.v6 else header.length - header.length_of_header
    return 20 < segment <= 60


def lower(packet, v6, mtu):
    """The packet with an MSS of at most the payload of `mtu` bytes, and whether it changed."""
    header = ip.parse(packet, v6)
    largest = mtu - (60 if v6 else 40)
    at = header.length_of_header
    segment = packet[at:]
    if largest <= 0 or len(segment) < 24 or not segment[13] & SYN:
        return packet, False
    largest = min(largest, 0xFFFF)
    stated = header.length if v6 else header.length - at
    length = 4 * (segment[12] >> 4)
    if length < 24 or length > stated:
        return packet, False
    place = find(segment, length)
    if place is None or ip.number(segment[place : place + 2]) <= largest:
        return packet, False
    pseudo = checksum.pseudo_header(header.source, header.destination, ip.TCP, len(segment))
    wanted = checksum.residual(pseudo + segment)
    segment = segment[:16] + b"\0\0" + segment[18:]
    segment = segment[:place] + largest.to_bytes(2, "big") + segment[place + 2 :]
    value = checksum.field(pseudo + segment, wanted)
    segment = segment[:16] + value.to_bytes(2, "big") + segment[18:]
    return packet[:at] + segment, True


def find(segment, length):
    """Offset of the value of the option; None without a valid one."""
    at = 20
    for _ in range(MOST_OPTIONS):
        if at >= length or at >= len(segment):
            return None
        kind = segment[at]
        if kind == END_OF_OPTIONS:
            return None
        if kind == NO_OPERATION:
            at += 1
            continue
        size = segment[at + 1] if at + 1 < len(segment) else 0
        if size < 2 or at + size > length:
            return None
        if kind == MAXIMUM_SEGMENT_SIZE:
            return at + 2 if size == 4 and at + 4 <= len(segment) else None
        at += size
    return None
