"""Network policies on packets on mc0: docs/design/policies.md."""

import flow
import ip
from admission import Drop

# Protocols with rules of their own.
PROTOCOLS = (ip.ICMP, ip.TCP, ip.UDP, ip.ICMPV6, ip.SCTP)
# Extension headers: behind one that is not parsed, the transport header is unknown.
EXTENSIONS = (ip.HOP_BY_HOP, ip.ROUTING, ip.FRAGMENT, ip.AUTHENTICATION, ip.DESTINATION_OPTIONS)
UNKNOWN = 0xFFFFFF
ECHO_REQUEST, ECHO_REPLY = {False: 8, True: 128}, {False: 0, True: 129}


def decide(world, frame, packet, v6):
    """Returns for a packet that passes."""
    policies = world.policies
    known = frame[6:8] == b"\x0a\x6d"
    identity = ip.number(frame[9:12]) if known else UNKNOWN
    if known and not frame[8] & 1 or not policies.enforced:
        return
    if v6 is None:
        raise Drop("inner-protocol")
    found = flow.classify(packet, v6)
    if found is None or found.kind == flow.Kind.TRUNCATED:
        raise Drop("inner-malformed")
    if found.kind in (flow.Kind.LATER_FRAGMENT, flow.Kind.ICMP_ERROR):
        return
    if found.kind == flow.Kind.OTHER and v6 and found.protocol in EXTENSIONS:
        raise Drop("inner-malformed")
    tcp = found.protocol == ip.TCP
    if tcp and found.kind == flow.Kind.PORTS:
        if len(packet) < found.at + 14:
            raise Drop("inner-malformed")
        if not found.opens:
            return
    key = (found.destination, found.source, found.destination_port, found.source_port, found.protocol)
    message = packet[found.at :]
    icmp = found.protocol in (ip.ICMP, ip.ICMPV6)
    if found.kind == flow.Kind.OTHER and icmp:
        if len(message) < 6:
            raise Drop("inner-malformed")
        if message[0] in (ECHO_REQUEST[v6], ECHO_REPLY[v6]):
            key = (found.destination, found.source, ip.number(message[4:6]), int(message[0] == ECHO_REQUEST[v6]), found.protocol)
    pod = policies.pods.get(found.destination)
    if pod is None:
        prefix = world.prefix(found.destination)
        if prefix is not None and prefix.policy:
            raise Drop("policy-pod")
        return
    if not tcp and key in policies.flows:
        return
    evaluate(world, found, pod, identity, port_of(found, message, icmp))
    if not tcp:
        policies.flows.add(key)


def port_of(found, message, icmp):
    if icmp:
        return found.protocol, ip.number(message[:2])
    if found.protocol in PROTOCOLS:
        return found.protocol, found.destination_port
    return 0, 0


def evaluate(world, found, pod, identity, service):
    if pod["closed"]:
        raise Drop("policy")
    policies = world.policies
    prefix = world.prefix(found.source)
    number = class_of(policies, 0 if prefix is None else prefix.cluster, identity)
    rules = [policies.rule("identity", pod, number, *service)]
    block = policies.block(found.source)
    if block is not None:
        rules.append(policies.rule("address", pod, block, *service))
    rules = [rule for rule in rules if rule is not None]
    if rules:
        if min(rules, key=lambda rule: rule["precedence"])["passes"]:
            return
        raise Drop("policy")
    if number == 0 and pod["drops_unknown"]:
        raise Drop("identity-unknown")


def class_of(policies, cluster, identity):
    """Class of the sender: 0 if it is unknown. A number that only other clusters export is forged."""
    if identity == UNKNOWN or cluster == 0:
        return 0
    if (cluster, identity) in policies.identities:
        return policies.identities[cluster, identity]
    if identity != 0 and (0, identity) in policies.identities:
        raise Drop("identity-forged")
    return 0
