"""Tunnel packets: Geneve (RFC 8926) or VXLAN (RFC 7348) over UDP, with an inner Ethernet frame."""

from dataclasses import dataclass

import checksum
import ip

MULTICLUSTER_MAC = bytes.fromhex("aabbccddeef0")
# Of the agent's tunnel device: "mcg".
TUNNEL_DEVICE_VNI = b"mcg"
# Ethertype of probes and test packets.
PROBE = 0x88B5
ETHERNET = 14
UDP_HEADER = 8
TUNNEL_HEADER = 8
TRANSPARENT_ETHERNET = 0x6558
# RFC 6335: dynamic ports.
SOURCE_PORTS = range(0xC000, 0x10000)


def header(vxlan, vni):
    """The tunnel header."""
    virtual_network = vni.to_bytes(3, "big") + bytes(1)
    if vxlan:
        return bytes([0x08, 0, 0, 0]) + virtual_network
    return bytes([0, 0]) + TRANSPARENT_ETHERNET.to_bytes(2, "big") + virtual_network


@dataclass
class Encapsulation:
    """A tunnel packet of this Node. UDP source port and flow label are hashes of the flow: any value is accepted."""

    source: bytes
    destination: bytes
    tos: int
    ttl: int
    port: int
    vxlan: bool
    inner_source: bytes
    inner: bytes
    inner_v6: bool
    with_checksum: bool
    has_label: bool
    # The label identity of the sender; 0 of a Node.
    vni: int

    def to_bytes(self, source_port, label):
        v6 = len(self.source) == 16
        frame = MULTICLUSTER_MAC + self.inner_source + (ip.IPV6 if self.inner_v6 else ip.IPV4).to_bytes(2, "big")
        payload = header(self.vxlan, self.vni) + frame + self.inner
        length = UDP_HEADER + len(payload)
        datagram = source_port.to_bytes(2, "big") + self.port.to_bytes(2, "big") + length.to_bytes(2, "big")
        datagram += b"\0\0" + payload
        if self.with_checksum:
            pseudo = checksum.pseudo_header(self.source, self.destination, ip.UDP, length)
            # The sum of the inner packet is derived from its headers: an invalid inner checksum stays detectable.
            wanted = inner_residual(self.inner, self.inner_v6)
            value = checksum.field(pseudo + datagram, wanted) or 0xFFFF
            datagram = datagram[:6] + value.to_bytes(2, "big") + datagram[8:]
        outer = ip.new(self.source, self.destination, ip.UDP, datagram, self.tos, self.ttl)
        return ip.rebuild(outer, True, label=label) if v6 else outer

    def like(self, observed):
        """The packet with the hashes of the observed one; None if they are out of range."""
        v6 = len(self.source) == 16
        at = 40 if v6 else 20
        if len(observed) < at + 2:
            return None
        label = ip.number(observed[1:4]) & 0xFFFFF if v6 and self.has_label else 0
        source_port = ip.number(observed[at : at + 2])
        return self.to_bytes(source_port, label) if source_port in SOURCE_PORTS else None


def knows_sum(inner, v6):
    """Whether the sum of an inner packet follows from its headers: a whole packet of a protocol with a checksum."""
    parsed = ip.parse(inner, v6)
    if parsed.is_fragment or not v6 and parsed.header_words != 5:
        return False
    if parsed.length + (40 if v6 else 0) != len(inner):
        return False
    if parsed.protocol == ip.UDP:
        return inner[parsed.length_of_header + 6 : parsed.length_of_header + 8] not in (b"", b"\0", b"\0\0")
    return parsed.protocol in (ip.TCP, ip.ICMPV6 if v6 else ip.ICMP)


def inner_residual(inner, v6):
    """Residual of a whole packet: of the IPv4 header and of the message behind it."""
    parsed = ip.parse(inner, v6)
    message = inner[parsed.length_of_header :]
    if parsed.protocol == ip.ICMP:
        return parsed.residual + checksum.residual(message)
    pseudo = checksum.pseudo_header(parsed.source, parsed.destination, parsed.protocol, len(message))
    return parsed.residual + checksum.residual(pseudo + message)
