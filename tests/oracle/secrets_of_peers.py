"""Secrets in the inner source MAC address: docs/design/reachability.md, "Secrets".

Byte 0 has the bits "locally administered", "backend ID", "secret" and the period modulo 4; the others are the secret,
combined with the backend ID.
"""

BACKEND = 0x04
SECRET = 0x08
WITHOUT_SECRET = bytes([0x02, 0, 0, 0, 0, 0])


def combined(mac, backend_id):
    """The address with a backend ID, if one was selected."""
    if backend_id is None:
        return mac
    number = int.from_bytes(mac[1:], "big") ^ backend_id
    return bytes([mac[0] ^ BACKEND]) + number.to_bytes(5, "big")


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
    with_backend = peer.local_gateway and mac[0] == wanted[0] ^ BACKEND
    return with_backend, with_backend


def backend_id(peer, mac):
    """The backend ID in the address; 0 without one."""
    wanted = expected(peer, mac) if mac[0] & SECRET else None
    if wanted is None and peer.unkeyed:
        wanted = WITHOUT_SECRET
    if wanted is None or mac[0] != wanted[0] ^ BACKEND:
        return 0
    return int.from_bytes(mac[1:], "big") ^ int.from_bytes(wanted[1:], "big")
