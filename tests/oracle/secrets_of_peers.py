"""Secrets in the inner source MAC address: docs/design/reachability.md, "Secrets".

Byte 0 has the bits "locally administered", "backend ID", "secret", the period modulo 4 and "may return"; the others are
the secret, combined with the backend ID.
"""

BACKEND = 0x04
SECRET = 0x08
MAY_RETURN = 0x40
WITHOUT_SECRET = bytes([0x02, 0, 0, 0, 0, 0])


def combined(mac, backend_id, may_return=False):
    """The address with a backend ID, if one was selected. Without a secret there is no mark."""
    if backend_id is None:
        return mac
    number = int.from_bytes(mac[1:], "big") ^ backend_id
    mark = MAY_RETURN if may_return and mac[0] & SECRET else 0
    return bytes([mac[0] ^ BACKEND | mark]) + number.to_bytes(5, "big")


def is_marked(mac):
    """Whether the address has the form of a packet that may return, or is returned."""
    return bool(mac[0] & BACKEND and mac[0] & MAY_RETURN)


def has_backend(mac, wanted):
    """Whether byte 0 differs from that of `wanted` by a backend ID, marked or not."""
    return mac[0] ^ wanted[0] in (BACKEND, BACKEND | MAY_RETURN)


def expected(peer, mac):
    """The address of the peer's packets in the period of `mac`; None if packets of that period are not accepted."""
    return peer.source_macs[mac[0] >> 4 & 3]


def is_authentic(peer, mac):
    """Whether a packet is from the peer, and whether that depends on its backend ID."""
    if peer.unkeyed:
        return True, False
    wanted = expected(peer, mac)
    if wanted is None:
        return False, False
    if mac == wanted:
        return True, False
    sends_backends = peer.local_gateway or peer.local_node and is_marked(mac)
    with_backend = sends_backends and has_backend(mac, wanted)
    return with_backend, with_backend


def backend_id(peer, mac):
    """The backend ID in the address; 0 without one."""
    wanted = expected(peer, mac) if mac[0] & SECRET else None
    if wanted is None and peer.unkeyed:
        wanted = WITHOUT_SECRET
    if wanted is None or not has_backend(mac, wanted):
        return 0
    return int.from_bytes(mac[1:], "big") ^ int.from_bytes(wanted[1:], "big")
