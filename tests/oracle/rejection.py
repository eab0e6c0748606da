"""The answer to a rejected packet that no reset can answer: docs/design/policies.md.

IPv4: RFC 1812 section 5.2.7.1, code 10. IPv6: RFC 4443 section 3.1, code 1.
"""

from admission import Drop
from too_big import icmp_error, may_answer, space_for_quote

PROHIBITED = {False: bytes([3, 10, 0, 0]), True: bytes([1, 1, 0, 0])}


def answer(frame, packet, v6):
    """The error, which quotes as much of the packet as fits. None is about a multicast of the link (RFC 1122 section
    3.2.2)."""
    if frame[0] & 1 or not may_answer(packet, v6):
        raise Drop("policy")
    return icmp_error(packet, v6, PROHIBITED[v6], bytes(4), packet[: space_for_quote(v6)])
