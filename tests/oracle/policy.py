"""Network policies on packets on mc0 and at the devices of Pods: docs/design/policies.md."""

import flow
import ip
from admission import Drop

# Protocols with rules of their own.
PROTOCOLS = (ip.ICMP, ip.TCP, ip.UDP, ip.ICMPV6, ip.SCTP)
# Extension headers: behind one that is not parsed, the transport header is unknown.
EXTENSIONS = (ip.HOP_BY_HOP, ip.ROUTING, ip.FRAGMENT, ip.AUTHENTICATION, ip.DESTINATION_OPTIONS)
UNKNOWN = 0xFFFFFF
# The class of peers without a label identity of another cluster.
UNMATCHED = 1
ECHO_REQUEST, ECHO_REPLY = {False: 8, True: 128}, {False: 0, True: 129}
NEIGHBOR_DISCOVERY = range(133, 138)


class Reject(Exception):
    """A rule has the sender notified."""


class Opening:
    """A packet that may open a connection or a flow."""

    def __init__(self, packet, v6, found, from_pod):
        self.tcp = found.protocol == ip.TCP
        here = (found.destination, found.destination_port)
        there = (found.source, found.source_port)
        if from_pod:
            here, there = there, here
        self.pod, self.peer = here[0], there[0]
        ports = (here[1], there[1])
        message = packet[found.at :]
        icmp = found.protocol in (ip.ICMP, ip.ICMPV6)
        if found.kind == flow.Kind.OTHER and icmp:
            if len(message) < 6:
                raise Drop("inner-malformed")
            if message[0] in (ECHO_REQUEST[v6], ECHO_REPLY[v6]):
                of_peer = (message[0] == ECHO_REQUEST[v6]) != from_pod
                ports = (ip.number(message[4:6]), int(of_peer))
        self.key = (self.pod, self.peer, *ports, found.protocol)
        self.service = service_of(found, message, icmp)
        self.is_neighbor_discovery = found.protocol == ip.ICMPV6 and message[:1] and message[0] in NEIGHBOR_DISCOVERY


def opening(packet, v6, from_pod):
    """The packet, or nothing if it passes because it opens nothing."""
    found = flow.classify(packet, v6)
    if found is None or found.kind == flow.Kind.TRUNCATED:
        raise Drop("inner-malformed")
    if found.kind in (flow.Kind.LATER_FRAGMENT, flow.Kind.ICMP_ERROR):
        return None
    if found.kind == flow.Kind.OTHER and v6 and found.protocol in EXTENSIONS:
        raise Drop("inner-malformed")
    if found.protocol == ip.TCP and found.kind == flow.Kind.PORTS:
        if len(packet) < found.at + 14:
            raise Drop("inner-malformed")
        if not found.opens:
            return None
    return Opening(packet, v6, found, from_pod)


def from_remote(world, frame, packet, v6):
    """Returns for a packet that passes, as the functions below."""
    policies = world.policies
    known = frame[6:8] == b"\x0a\x6d"
    identity = ip.number(frame[9:12]) if known else UNKNOWN
    if known and not frame[8] & 1 or not policies.enforced["ingress"]:
        return
    if v6 is None:
        raise Drop("inner-protocol")
    new = opening(packet, v6, False)
    if new is None or not new.tcp and new.key in policies.flows:
        return
    pod = selected_pod(world, new)
    if pod is None:
        return
    if pod["closed"]:
        raise Drop("policy")
    prefix = world.prefix(new.peer)
    number = class_of(policies, 0 if prefix is None else prefix.cluster, identity)
    evaluate(policies, new, pod, number)
    record(policies, new)


def to_pod(world, frame, packet, v6):
    """A packet that the node has received on another device than mc0."""
    policies = world.policies
    if not policies.enforced["ingress"] or not is_ip(frame, v6):
        return
    new = opening(packet, v6, False)
    pod = None if new is None else selected_pod(world, new)
    if pod is not None:
        check_peer(policies, new, pod)


def from_pod(world, frame, packet, v6):
    policies = world.policies
    if not any(policies.enforced.values()) or not is_ip(frame, v6):
        return
    new = opening(packet, v6, True)
    if new is None:
        return
    pod = policies.pods.get(("egress", new.pod))
    if pod is not None:
        check_peer(policies, new, pod)
    elif ("ingress", new.pod) in policies.pods:
        if not new.is_neighbor_discovery and not policies.pods["ingress", new.pod]["unselected"]:
            record(policies, new)
    elif policies.enforced["egress"] and not new.is_neighbor_discovery and (new.tcp or new.key not in policies.flows):
        check_known(world, new.pod)


def selected_pod(world, new):
    """The rules for the Pod to which a packet opens something; nothing if it passes."""
    pod = world.policies.pods.get(("ingress", new.pod))
    if pod is None:
        check_known(world, new.pod)
        return None
    return None if pod["unselected"] else pod


def is_ip(frame, v6):
    """Behind a second VLAN tag the receiver may find an IP packet."""
    if frame[12:14] in (b"\x81\x00", b"\x88\xa8"):
        raise Drop("inner-protocol")
    return v6 is not None


def check_peer(policies, new, pod):
    if new.is_neighbor_discovery or not new.tcp and new.key in policies.flows:
        return
    if pod["closed"]:
        raise Drop("policy")
    evaluate(policies, new, pod, UNMATCHED)
    record(policies, new)


def check_known(world, address):
    """An address where a Pod may be that a policy selects."""
    prefix = world.prefix(address)
    if prefix is not None and prefix.policy:
        raise Drop("policy-pod")


def record(policies, new):
    if not new.tcp:
        policies.flows.add(new.key)


def service_of(found, message, icmp):
    if icmp and found.kind != flow.Kind.LATER_FRAGMENT:
        return found.protocol, ip.number(message[:2])
    if found.protocol in PROTOCOLS:
        return found.protocol, found.destination_port
    return 0, 0


def first_rule(policies, new, of_set, number):
    rules = [policies.rule("identity", of_set, number, *new.service)]
    block = policies.block(new.peer)
    if block is not None:
        rules.append(policies.rule("address", of_set, block, *new.service))
    rules = [rule for rule in rules if rule is not None]
    return min(rules, key=lambda rule: rule["precedence"], default=None)


def evaluate(policies, new, pod, number):
    rule = first_rule(policies, new, pod["set"], number)
    if rule is not None and rule["audited"]:
        rule = first_rule(policies, new, pod["enforced"], number)
    if rule is not None:
        if rule["passes"]:
            return
        raise Reject() if rule["rejects"] else Drop("policy")
    if number == 0 and pod["drops_unknown"]:
        raise Drop("identity-unknown")


def class_of(policies, cluster, identity):
    """Class of the sender: 0 if it is unknown. A number that only other clusters export is forged."""
    if identity == UNKNOWN or cluster == 0:
        return 0
    number, exporters = policies.identities.get(identity, (0, set()))
    if cluster in exporters:
        return number
    if identity != 0 and number != 0:
        raise Drop("identity-forged")
    return 0
