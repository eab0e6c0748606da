"""Packets above the MTU of the next hop: docs/design/mtu.md.

IPv4: RFC 792 and RFC 1191, at most 576 bytes (RFC 1812 section 4.3.2.3). IPv6: RFC 4443 section 3.2, at most 1,280
bytes. The source is the destination of the packet.
"""

import checksum
import ip
from admission import Drop

INTERNETWORK_CONTROL = 0xC0  # RFC 1812 section 4.3.2.5
HOP_LIMIT = 64
SMALLEST_MTU = {False: 68, True: 1280}
LARGEST_ERROR = {False: 576, True: 1280}
# RFC 1122 section 3.2.2; in ICMPv6 all types below 128.
V4_ERRORS = (3, 4, 5, 11, 12)
REDIRECT = bytes([137])  # RFC 4861 section 4.5


def is_icmp_error(packet, v6):
    place = ip.transport(packet, v6)
    if place.fragment or place.protocol != (ip.ICMPV6 if v6 else ip.ICMP) or len(packet) <= place.at:
        return False
    kind = packet[place.at]
    return kind < 128 if v6 else kind in V4_ERRORS


def is_single_host(address):
    if len(address) == 4:
        return address[0] not in (0, 127) and address[0] < 224
    return address[0] != 0xFF and int.from_bytes(address, "big") > 1


def may_answer(packet, v6):
    """Whether an error may be about the packet. RFC 4443 section 2.4 (e.2): no error about a redirect."""
    header, place = ip.parse(packet, v6), ip.transport(packet, v6)
    is_redirect = v6 and place.protocol == ip.ICMPV6 and not place.fragment and packet[place.at : place.at + 1] == REDIRECT
    return (
        place.present
        and is_single_host(header.source)
        and is_single_host(header.destination)
        and not is_icmp_error(packet, v6)
        and not is_redirect
    )


def space_for_quote(v6):
    """Bytes of a packet in the largest error."""
    return LARGEST_ERROR[v6] - (40 if v6 else 20) - 8


def icmp_error(packet, v6, start, end, quoted):
    """The error about `packet` with the first and last four bytes of the ICMP header, without its checksum."""
    header = ip.parse(packet, v6)
    message = start + end + quoted
    pseudo = checksum.pseudo_header(header.destination, header.source, ip.ICMPV6, len(message)) if v6 else b""
    value = checksum.field(pseudo + message)
    message = message[:2] + value.to_bytes(2, "big") + message[4:]
    protocol = ip.ICMPV6 if v6 else ip.ICMP
    return ip.new(header.destination, header.source, protocol, message, INTERNETWORK_CONTROL, HOP_LIMIT)


def error_about(packet, v6, mtu):
    """The error about a packet that exceeds `mtu`."""
    if v6 and len(packet) <= SMALLEST_MTU[True]:
        raise Drop("below-ipv6-minimum")
    if not may_answer(packet, v6):
        raise Drop("too-big")
    quoted = packet[: min(space_for_quote(v6), len(packet)) // 4 * 4]
    mtu = max(mtu, SMALLEST_MTU[v6])
    if v6:
        return icmp_error(packet, v6, bytes([2, 0, 0, 0]), mtu.to_bytes(4, "big"), quoted)
    return icmp_error(packet, v6, bytes([3, 4, 0, 0]), min(mtu, 0xFFFF).to_bytes(4, "big"), quoted)
