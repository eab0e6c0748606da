"""IPv4 (RFC 791) and IPv6 (RFC 8200) packets, read field by field and built anew."""

from dataclasses import dataclass, replace

import checksum

IPV4, IPV6 = 0x0800, 0x86DD
ICMP, TCP, UDP, FRAGMENT, ICMPV6, SCTP = 1, 6, 17, 44, 58, 132
HOP_BY_HOP, ROUTING, AUTHENTICATION, DESTINATION_OPTIONS = 0, 43, 51, 60
# RFC 8200 section 4.1: every extension header at most once, destination options twice.
MOST_EXTENSIONS = 6


@dataclass(frozen=True)
class Header:
    """The fixed header; options and extension headers are part of `rest`."""

    v6: bool
    version: int
    header_words: int  # IHL
    tos: int
    length: int
    identification: int
    fragment: int  # flags and offset
    ttl: int
    protocol: int
    residual: int  # of the IPv4 header with its options
    label: int
    source: bytes
    destination: bytes

    @property
    def length_of_header(self):
        return 40 if self.v6 else 4 * self.header_words

    @property
    def is_fragment(self):
        return self.protocol == FRAGMENT if self.v6 else bool(self.fragment & 0x3FFF)

    @property
    def ethertype(self):
        return IPV6 if self.v6 else IPV4


def parse(data, v6):
    """The fixed header at the start of `data`; None if it is truncated."""
    if v6:
        if len(data) < 40:
            return None
        first = int.from_bytes(data[:4], "big")
        return Header(
            v6=True, version=first >> 28, header_words=10, tos=first >> 20 & 0xFF, length=number(data[4:6]),
            identification=0, fragment=0, ttl=data[7], protocol=data[6], residual=0, label=first & 0xFFFFF,
            source=bytes(data[8:24]), destination=bytes(data[24:40]),
        )
    if len(data) < 20:
        return None
    words = data[0] & 15
    return Header(
        v6=False, version=data[0] >> 4, header_words=words, tos=data[1], length=number(data[2:4]),
        identification=number(data[4:6]), fragment=number(data[6:8]), ttl=data[8], protocol=data[9],
        residual=checksum.residual(data[: 4 * words]), label=0,
        source=bytes(data[12:16]), destination=bytes(data[16:20]),
    )


def number(data):
    return int.from_bytes(data, "big")


def serialize(header, options=b""):
    """The header with its IPv4 options. The residual of its checksum is kept."""
    if header.v6:
        first = header.version << 28 | header.tos << 20 | header.label
        return (
            first.to_bytes(4, "big") + header.length.to_bytes(2, "big") + bytes([header.protocol, header.ttl])
            + header.source + header.destination
        )
    fields = [
        bytes([header.version << 4 | header.header_words, header.tos]), header.length.to_bytes(2, "big"),
        header.identification.to_bytes(2, "big"), header.fragment.to_bytes(2, "big"),
        bytes([header.ttl, header.protocol]), b"\0\0", header.source, header.destination, options,
    ]
    zeroed = b"".join(fields)
    value = checksum.field(zeroed, header.residual)
    return zeroed[:10] + value.to_bytes(2, "big") + zeroed[12:]


def rebuild(data, v6, **changes):
    """The packet `data` with other header fields."""
    header = replace(parse(data, v6), **changes)
    if v6:
        return serialize(header) + data[40:]
    end = max(20, 4 * header.header_words)
    return serialize(header, data[20:end]) + data[end:]


def new(source, destination, protocol, payload, tos, ttl):
    """A packet of this host. IPv4: no options, not fragmented, "don't fragment"."""
    v6 = len(source) == 16
    length = len(payload) if v6 else 20 + len(payload)
    header = Header(
        v6=v6, version=6 if v6 else 4, header_words=10 if v6 else 5, tos=tos, length=length, identification=0,
        fragment=0x4000, ttl=ttl, protocol=protocol, residual=0, label=0, source=source, destination=destination,
    )
    return serialize(header) + payload


IPV4_MAPPED = bytes(10) + b"\xff\xff"


def is_consistent(header, available):
    """Whether version and lengths agree with the available bytes, and whether a router may forward the addresses.

    RFC 4291 section 2.5.5.2: an IPv4-mapped address is the form of an IPv4 address, and that of no IPv6 node.
    """
    if header.v6:
        if any(address[:12] == IPV4_MAPPED for address in (header.source, header.destination)):
            return False
        return header.version == 6 and header.length <= available - 40
    header_bytes = 4 * header.header_words
    return header.version == 4 and 20 <= header_bytes <= header.length <= available


@dataclass(frozen=True)
class Transport:
    """The place of the transport header."""

    protocol: int
    at: int
    fragment: bool
    present: bool  # in the first fragment, and in a packet that is no fragment


def transport(data, v6):
    """Walks over IPv4 options or IPv6 extension headers (RFC 8200 section 4)."""
    if not v6:
        fragment = number(data[6:8])
        return Transport(data[9], 4 * (data[0] & 15), bool(fragment & 0x3FFF), fragment & 0x1FFF == 0)
    protocol, at, fragment = data[6], 40, False
    for _ in range(MOST_EXTENSIONS):
        if protocol not in (HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS, AUTHENTICATION, FRAGMENT) or len(data) < at + 4:
            break
        following, length = data[at], data[at + 1]
        if protocol == FRAGMENT:
            fragment, first = True, number(data[at + 2 : at + 4]) >> 3 == 0
            protocol, at = following, at + 8
            if not first:
                return Transport(protocol, at, True, False)
            continue
        # RFC 4302 section 2.2: in words of four bytes, less two.
        at += 4 * (length + 2) if protocol == AUTHENTICATION else 8 * (length + 1)
        protocol = following
    return Transport(protocol, at, fragment, True)
