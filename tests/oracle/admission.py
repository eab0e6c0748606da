"""Who may send where: the tables "Admission" and "Host-network Pods" of docs/design/data-path.md."""

from secrets_of_peers import is_authentic, is_marked

LOCAL_CLUSTER = 0


class Drop(Exception):
    """The packet is dropped, with the name of the reason."""

    def __init__(self, reason):
        super().__init__(reason)
        self.reason = reason


def admit(world, outer_source, mac, source, destination):
    """The peer and the prefixes of an admissible packet."""
    peer = world.peers.get(outer_source)
    if peer is None:
        raise Drop("unknown-peer")
    authentic, by_backend = is_authentic(peer, mac)
    if not authentic:
        raise Drop("peer-secret")
    from_prefix = world.prefix(source)
    if from_prefix is None:
        raise Drop("inner-source")
    to_prefix = world.prefix(destination)
    if to_prefix is None:
        raise Drop("no-route")
    if by_backend and to_prefix.action != "service":
        raise Drop("peer-secret")
    to_here = to_prefix.cluster == LOCAL_CLUSTER
    if peer.remote_gateway:
        sender_is_owner = peer.cluster != LOCAL_CLUSTER and from_prefix.cluster == peer.cluster
        reachable = to_here and to_prefix.action in ("deliver", "forward", "service")
    elif from_prefix.cluster == LOCAL_CLUSTER:
        own_pod = peer.group != 0 and from_prefix.group == peer.group and from_prefix.action != "reply"
        sender_is_owner = peer.local_node and (own_pod or from_prefix.action == "service")
        reachable = not to_here and to_prefix.action == "forward"
    else:
        returned = peer.local_node and is_marked(mac) and to_prefix.action == "service"
        sender_is_owner = peer.local_gateway or returned
        reachable = to_here and to_prefix.action in ("deliver", "service")
    if not sender_is_owner:
        raise Drop("inner-source")
    if not reachable:
        raise Drop("no-route")
    return peer, from_prefix, to_prefix


def route_to_remote(world, destination):
    """The prefix of a packet on `mc0`: every route there leads to another cluster."""
    prefix = world.prefix(destination)
    if prefix is None or prefix.action != "forward" or prefix.cluster == LOCAL_CLUSTER:
        raise Drop("no-route")
    return prefix


def is_own_source(prefix):
    """Whether this Node may send from the prefix: its own Pods and addresses, and Service addresses."""
    return prefix is not None and prefix.cluster == LOCAL_CLUSTER and prefix.action in ("deliver", "service")
