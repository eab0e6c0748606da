"""The answer to a TCP connection that a policy rejects: docs/design/policies.md, RFC 9293 section 3.10.7.1."""

import checksum
import ip

RESET_ACK = 0x14


def answer(packet, v6):
    """The reset, or nothing if the packet is not a plain first segment without payload."""
    if v6:
        if packet[6] != ip.TCP:
            return None
        at, source, destination, length = 40, packet[8:24], packet[24:40], ip.number(packet[4:6])
    else:
        if packet[0] != 0x45 or packet[9] != ip.TCP or ip.number(packet[6:8]) & 0x3FFF:
            return None
        at, source, destination, length = 20, packet[12:16], packet[16:20], ip.number(packet[2:4]) - 20
    segment = packet[at:]
    if len(segment) < 18 or segment[13] & 0x12 != 0x02 or length < 20 or length != 4 * (segment[12] >> 4):
        return None
    acknowledged = (ip.number(segment[4:8]) + 1) & 0xFFFFFFFF
    changed = segment[2:4] + segment[:2] + bytes(4) + acknowledged.to_bytes(4, "big") + bytes([segment[12], RESET_ACK, 0, 0])
    # The pseudo header keeps its sum, and an invalid checksum stays as invalid as it was.
    check = checksum.field(changed + bytes(2), checksum.residual(segment[:18]))
    answered = changed + check.to_bytes(2, "big") + segment[18:]
    return ip.rebuild(packet[:at] + answered, v6, source=destination, destination=source, ttl=64, residual=0)
