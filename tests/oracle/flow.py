"""The flow of a packet to or from a Service, in the form of the flow maps' keys."""

from dataclasses import dataclass
from enum import Enum

import ip
from world import text

SYN, ACK = 0x02, 0x10
# RFC 792 and RFC 4443 section 2.1: the errors about a packet.
ERRORS = {False: (3, 11, 12), True: (1, 2, 3, 4)}


class Kind(Enum):
    PORTS = "TCP or UDP"
    FIRST_FRAGMENT = "a first fragment of TCP or UDP"
    LATER_FRAGMENT = "a later fragment"
    ICMP_ERROR = "an ICMP error with a quoted packet"
    SCTP = "SCTP"
    OTHER = "a protocol without ports"
    TRUNCATED = "truncated before the ports"


@dataclass(frozen=True)
class Flow:
    """Addresses are texts, as in the maps' listing."""

    kind: Kind
    protocol: int
    at: int  # of the transport header
    source: str
    destination: str
    source_port: int = 0
    destination_port: int = 0
    opens: bool = False
    identification: str = ""

    @property
    def has_ports(self):
        return self.kind in (Kind.PORTS, Kind.FIRST_FRAGMENT)

    @property
    def continues(self):
        """Whether this is an unfragmented datagram, or TCP segment without SYN."""
        return self.kind == Kind.PORTS and self.protocol in (ip.TCP, ip.UDP) and not self.opens

    @property
    def fragment_key(self):
        return (self.source, self.destination, self.identification, self.protocol)

    @property
    def key(self):
        """Source, destination, protocol."""
        return (self.source, self.source_port, self.destination, self.destination_port, self.protocol)

    @property
    def reverse_key(self):
        return (self.destination, self.destination_port, self.source, self.source_port, self.protocol)


def classify(packet, v6):
    """The flow of a packet; None if its IP header is truncated."""
    header = ip.parse(packet, v6)
    if header is None:
        return None
    place = ip.transport(packet, v6)
    source, destination = text(header.source), text(header.destination)
    message = packet[place.at :]
    fields = {
        "protocol": place.protocol, "at": place.at, "source": source, "destination": destination,
        # RFC 8200 section 4.5: the last four bytes of the fragment header.
        "identification": packet[place.at - 4 : place.at].hex() if v6 else packet[4:6].hex() + "0000",
    }
    if not place.present:
        return Flow(Kind.LATER_FRAGMENT, **fields)
    if place.protocol not in (ip.TCP, ip.UDP, ip.SCTP):
        kind = Kind.OTHER
        if place.protocol == (ip.ICMPV6 if v6 else ip.ICMP) and not place.fragment:
            if not message:
                kind = Kind.TRUNCATED
            elif message[0] in ERRORS[v6]:
                kind = Kind.ICMP_ERROR
        return Flow(kind, **fields)
    if len(message) < 4:
        return Flow(Kind.TRUNCATED, **fields)
    if place.protocol == ip.SCTP:
        kind = Kind.SCTP
    else:
        kind = Kind.FIRST_FRAGMENT if place.fragment else Kind.PORTS
    fields["source_port"], fields["destination_port"] = ip.number(message[:2]), ip.number(message[2:4])
    fields["opens"] = place.protocol == ip.TCP and len(message) > 13 and message[13] & (SYN | ACK) == SYN
    return Flow(kind, **fields)


def quoted(packet, v6, flow):
    """The packet in an ICMP error, behind eight bytes (RFC 792, RFC 4443 section 2.3), and its flow."""
    data = packet[flow.at + 8 :]
    return data, classify(data, v6)
