"""The Internet checksum (RFC 1071), from scratch.

Nothing here is incremental. Whether a checksum is valid is a property of the covered bytes, their *residual*: 0 for a
valid checksum. A translation neither repairs nor breaks a checksum, so that it keeps the residual. The checksum field
follows from the other bytes and the residual.
"""

MODULUS = 0xFFFF


def residual(covered):
    """One's complement sum of the bytes with their checksum, modulo 65,535: 0 for a valid checksum."""
    if len(covered) % 2:
        covered += b"\0"
    # 65,536 is 1 modulo 65,535, so that the number has the same residue as the sum of its 16-bit digits.
    return int.from_bytes(covered, "big") % MODULUS


def field(covered, wanted=0):
    """The checksum field, zero in `covered`, that gives the residual `wanted`."""
    return (wanted - residual(covered)) % MODULUS


def pseudo_header(source, destination, protocol, length):
    """RFC 9293 section 3.1 and RFC 768; RFC 8200 section 8.1. The wider fields of IPv6 give the same sum for IPv4."""
    return source + destination + length.to_bytes(4, "big") + protocol.to_bytes(4, "big")
