"""Addresses and ports replaced in a packet, with every checksum over them.

A checksum keeps its residual. An invalid one stays as invalid as it was.
"""

import checksum
import flow as flows
import ip
from world import packed

CHECKSUM_AT = {ip.TCP: 16, ip.UDP: 6}


def translate(packet, v6, flow, side, address, port):
    """The packet with another source or destination; a later fragment has no port."""
    before = ip.parse(packet, v6)
    after = ip.rebuild(packet, v6, **{side: packed(address)})
    if flow.kind == flows.Kind.LATER_FRAGMENT:
        return after
    header = ip.parse(after, v6)
    message = with_port(packet[flow.at :], side, port)
    old = checksum.pseudo_header(before.source, before.destination, flow.protocol, len(message))
    new = checksum.pseudo_header(header.source, header.destination, flow.protocol, len(message))
    return after[: flow.at] + repaired(packet[flow.at :], message, old, new, flow.protocol)


def with_port(message, side, port):
    at = 0 if side == "source" else 2
    return message[:at] + port.to_bytes(2, "big") + message[at + 2 :]


def repaired(old, new, old_pseudo, new_pseudo, protocol):
    """The message `new` with a checksum of the same residual as that of `old`."""
    at = CHECKSUM_AT[protocol]
    if protocol == ip.UDP and old[at : at + 2] == b"\0\0":
        return new
    wanted = checksum.residual(old_pseudo + old)
    zeroed = new[:at] + b"\0\0" + new[at + 2 :]
    value = checksum.field(new_pseudo + zeroed, wanted)
    if protocol == ip.UDP:
        value = value or 0xFFFF
    return new[:at] + value.to_bytes(2, "big") + new[at + 2 :]


def translate_error(packet, v6, flow, side, address, port):
    """An ICMP error and the opposite side of the packet that it quotes.

    The quoted transport checksum stays that of the packet at its receiver.
    """
    other = "destination" if side == "source" else "source"
    before = ip.parse(packet, v6)
    quote_at = flow.at + 8
    quote = flows.classify(packet[quote_at:], v6)
    quoted = ip.rebuild(packet[quote_at:], v6, **{other: packed(address)})
    quoted = quoted[: quote.at] + with_port(quoted[quote.at :], other, port)
    after = ip.rebuild(packet[:quote_at], v6, **{side: packed(address)}) + quoted
    header = ip.parse(after, v6)
    message, changed = packet[flow.at :], after[flow.at :]
    old_pseudo = new_pseudo = b""
    if v6:
        old_pseudo = checksum.pseudo_header(before.source, before.destination, ip.ICMPV6, len(message))
        new_pseudo = checksum.pseudo_header(header.source, header.destination, ip.ICMPV6, len(message))
    wanted = checksum.residual(old_pseudo + message)
    zeroed = changed[:2] + b"\0\0" + changed[4:]
    value = checksum.field(new_pseudo + zeroed, wanted)
    return after[: flow.at] + changed[:2] + value.to_bytes(2, "big") + changed[4:]
