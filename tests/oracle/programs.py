"""The programs of the data path: docs/design/data-path.md."""

from dataclasses import dataclass, field

import checksum
import ecn
import ip
import mss
import policy
import rejection
import reset
import secrets_of_peers as secrets
import services
import tunnel
from admission import Drop, admit, is_own_source, route_to_remote
from too_big import error_about, is_icmp_error
from tunnel import ETHERNET, MULTICLUSTER_MAC, TUNNEL_HEADER, UDP_HEADER, Encapsulation

FAMILIES = {ip.IPV4: False, ip.IPV6: True}


@dataclass
class Result:
    """What a packet becomes. `body` is the IP packet, or an `Encapsulation` of this Node."""

    verdict: str  # pass, drop, redirect
    reason: str = ""
    outcome: str = ""
    addresses: bytes = b""  # of the Ethernet header
    body: object = None
    v6: bool = False  # of the IP packet on the device
    ethertype: int = 0  # of a packet of any protocol
    sent: object = None  # the next hop

    def is_plain(self):
        """Whether this packet has no outer headers: one for the stack of this Node, or an answer to a sender."""
        if self.outcome == "too-big":
            return not isinstance(self.body, Encapsulation)
        return self.outcome in ("deliver", "reset", "rejected")

    def frame(self, observed):
        """The expected frame, with the hashes of the observed one; None if these are out of range."""
        body = self.body
        if isinstance(body, Encapsulation):
            body = body.like(observed[ETHERNET:])
        if body is None:
            return None
        ethertype = self.ethertype or (ip.IPV6 if self.v6 else ip.IPV4)
        return self.addresses + ethertype.to_bytes(2, "big") + body


@dataclass
class Run:
    """One packet through one program. Choices are positions in the lists of options."""

    world: object
    state: object
    choices: list
    options: list = field(default_factory=list)
    events: set = field(default_factory=set)
    received: object = None

    def choose(self, options):
        """Any option: which one depends on a hash."""
        if not options:
            return None
        place = len(self.options)
        self.options.append(len(options))
        return options[self.choices[place] if place < len(self.choices) else 0]

    def run(self, program, frame):
        try:
            return getattr(self, program)(frame)
        except Drop as drop:
            return Result("drop", reason=drop.reason)

    def next_hop(self, group):
        chosen = self.choose(self.world.usable_next_hops(group))
        if chosen is None:
            raise Drop("no-next-hop")
        return chosen

    def lower_mss(self, packet, v6, mtu):
        packet, changed = mss.lower(packet, v6, mtu)
        if changed:
            self.events.add("mss-lowered")
        return packet

    def encapsulation(self, source, destination, inner_source, inner, v6, tos, has_label=True, vni=0):
        return Encapsulation(
            source=source, destination=destination, tos=ecn.encapsulated(tos, self.world.fixed_dscp),
            ttl=self.world.hop_limit, port=self.world.port, vxlan=self.world.vxlan, inner_source=inner_source,
            inner=inner, inner_v6=v6, has_label=has_label, vni=vni,
            with_checksum=self.world.udp_checksum and tunnel.knows_sum(inner, v6),
        )

    # Egress of mc0.

    def to_remote(self, frame):
        if not self.world.configured:
            raise Drop("not-configured")
        v6 = FAMILIES.get(ip.number(frame[12:14]))
        if v6 is None:
            raise Drop("not-ip")
        packet = frame[ETHERNET:]
        header = ip.parse(packet, v6)
        if header is None or not ip.is_consistent(header, len(packet)):
            raise Drop("inner-malformed")
        route = route_to_remote(self.world, header.destination)
        prefix = self.world.prefix(header.source)
        own = is_own_source(prefix)
        behind_service = prefix is not None and prefix.backends
        translatable = self.world.backends_here and (behind_service or is_icmp_error(packet, v6))
        if not own and not translatable:
            raise Drop("inner-source")
        next_hop = self.next_hop(route.group)
        if next_hop.mtu and len(packet) > next_hop.mtu:
            body = error_about(packet, v6, next_hop.mtu)
            return Result("redirect", outcome="too-big", addresses=self.world.mac + bytes([0x0A, 0x6D, 0, 0, 0, 0]), body=body, v6=v6)
        if mss.opens_connection(header) and next_hop.mtu:
            packet = self.lower_mss(packet, v6, next_hop.mtu)
        if self.world.backends_here:
            packet = services.Node(self).from_pod(packet, v6, own, behind_service)
        body = self.encapsulation(
            next_hop.local, next_hop.address, next_hop.source_mac, packet, v6, header.tos,
            vni=0 if prefix is None else prefix.identity,
        )
        return Result(
            "redirect", outcome="encap", addresses=next_hop.link or frame[:12], body=body, v6=len(next_hop.address) == 16, sent=next_hop
        )

    # Ingress of mc0.

    def from_remote(self, frame):
        return self.policed(policy.from_remote, frame)

    # Egress and ingress of a Pod's device.

    def to_pod(self, frame):
        return self.policed(policy.to_pod, frame)

    def from_pod(self, frame):
        return self.policed(policy.from_pod, frame)

    def policed(self, decide, frame):
        v6, packet = FAMILIES.get(ip.number(frame[12:14])), frame[ETHERNET:]
        try:
            decide(self.world, frame, packet, v6)
        except policy.Reject:
            back = frame[6:12] + frame[:6]
            body = reset.answer(packet, v6)
            if body is not None:
                return Result("redirect", outcome="reset", addresses=back, body=body, v6=v6)
            body = rejection.answer(frame, packet, v6)
            return Result("redirect", outcome="rejected", addresses=back, body=body, v6=v6)
        return Result("pass", body=frame)

    # Ingress of the agent's tunnel device.

    def from_tunnel(self, frame):
        if not self.world.configured:
            raise Drop("not-configured")
        if not self.world.has_tunnel_device or frame[6:12] != self.world.tunnel_mac:
            raise Drop("not-admitted")
        if ip.number(frame[12:14]) == tunnel.PROBE:
            return Result("drop", outcome="decap-test")
        return Result(
            "redirect", outcome="deliver", addresses=self.world.mac + frame[:6], body=frame[ETHERNET:], ethertype=ip.number(frame[12:14])
        )

    # Ingress of an underlay device.

    def from_underlay(self, frame):
        outer_v6 = FAMILIES.get(ip.number(frame[12:14]))
        if outer_v6 is None or not self.world.configured:
            return Result("pass", body=frame)
        received = Received(self.world, frame, outer_v6)
        if not received.is_ours():
            return Result("pass", body=frame)
        packet, v6 = received.inner()
        header = ip.parse(packet, v6)
        peer, from_prefix, to_prefix = admit(
            self.world, received.outer.source, received.inner_source, header.source, header.destination
        )
        self.received = peer
        received.has_policy = to_prefix.policy
        if to_prefix.action == "forward":
            if received.outer.ttl <= 1:
                raise Drop("ttl-exceeded")
            return self.forward(received, packet, v6, to_prefix.group)
        if to_prefix.action == "service":
            backend_id = secrets.backend_id(peer, received.inner_source)
            marked = secrets.is_marked(received.inner_source) and backend_id != 0
            backend = self.world.backends.get(backend_id)
            gateway = services.Gateway(self)
            to_stack = False
            if peer.remote_gateway or self.is_returned(peer, backend, marked):
                if peer.remote_gateway:
                    backend_id, marked = gateway.select(packet, v6)
                else:
                    backend_id, marked = gateway.again(packet, v6, backend_id, peer)
                backend = self.world.backends.get(backend_id)
                if backend is None:
                    to_stack = True
                    received.has_policy = 0
                    self.events.add("service-to-stack")
                elif backend.group != 0:
                    if received.outer.ttl <= 1:
                        raise Drop("ttl-exceeded")
                    return self.forward(received, packet, v6, backend.group, backend_id, marked)
                marked = False
            if not to_stack:
                translated = services.Node(self).to_pod(packet, v6, backend_id, marked)
                if translated is None:
                    return self.give_back(received, peer, packet, v6, backend_id)
                packet = translated
        elif to_prefix.backends:
            services.Node(self).direct_packet(packet, v6)
        return self.deliver(received, packet, v6, header, from_prefix)

    def is_returned(self, peer, backend, marked):
        """Whether a peer of this cluster returns a packet: a gateway sends only those for backends of this Node."""
        if not marked or not peer.local_node:
            return False
        return not peer.local_gateway or backend is not None and backend.group != 0

    def give_back(self, received, peer, packet, v6, backend_id):
        """A packet of an unknown connection, to the gateway that sent it."""
        outer = received.outer
        if outer.ttl <= 1:
            raise Drop("ttl-exceeded")
        self.events.add("service-returned")
        mac = secrets.combined(peer.reply_mac, backend_id)
        received.inner_source = bytes([mac[0] | secrets.MAY_RETURN]) + mac[1:]
        body = received.forwarded(packet, outer.destination, outer.source)
        return Result(
            "redirect", outcome="transit", addresses=received.frame[:12], body=body, v6=outer.v6, sent=peer
        )

    def forward(self, received, packet, v6, group, backend_id=None, may_return=False):
        next_hop = self.next_hop(group)
        if len(next_hop.address) != len(received.outer.source):
            raise Drop("outer-family")
        if next_hop.mtu and len(packet) > next_hop.mtu:
            error = error_about(packet, v6, next_hop.mtu)
            outer = received.outer
            body = self.encapsulation(
                outer.destination, outer.source, self.received.reply_mac, error, v6, ip.parse(error, v6).tos, has_label=False
            )
            return Result(
                "redirect", outcome="too-big", addresses=received.frame[:12], body=body, v6=outer.v6
            )
        if mss.opens_connection(ip.parse(packet, v6)) and next_hop.mtu:
            packet = self.lower_mss(packet, v6, next_hop.mtu)
        received.inner_source = secrets.combined(next_hop.source_mac, backend_id, may_return)
        body = received.forwarded(packet, next_hop.local, next_hop.address)
        return Result(
            "redirect", outcome="transit", addresses=next_hop.link or received.frame[:12], body=body,
            v6=received.outer.v6, sent=next_hop,
        )

    def deliver(self, received, packet, v6, header, from_prefix):
        tos = ecn.decapsulated(received.outer.tos, header.tos)
        if tos != header.tos:
            packet = ip.rebuild(packet, v6, tos=tos)
            self.events.add("ecn-marked")
        back = self.world.smallest_mtu(from_prefix.group) if from_prefix.action == "forward" else 0
        if back and mss.opens_connection(header):
            packet = self.lower_mss(packet, v6, back)
        return Result(
            "redirect", outcome="deliver", addresses=self.world.mac + received.sender(), body=packet, v6=v6
        )


class Received:
    """A frame from the underlay."""

    def __init__(self, world, frame, v6):
        self.world, self.frame = world, frame
        self.packet = frame[ETHERNET:]
        self.outer = ip.parse(self.packet, v6)
        self.udp_at = 40 if v6 else 20
        self.tunnel_at = self.udp_at + UDP_HEADER
        self.ethernet_at = self.tunnel_at + TUNNEL_HEADER
        self.inner_at = self.ethernet_at + ETHERNET
        self.inner_source = self.packet[self.ethernet_at + 6 : self.ethernet_at + 12]

    def is_ours(self):
        """Whether this is a multi-cluster packet. One that is damaged is dropped."""
        outer = self.outer
        # The shortest multi-cluster packet has an inner IPv4 header.
        truncated = len(self.packet) < self.inner_at + 20
        if outer is None or outer.destination not in self.world.local:
            return False
        known = outer.source in self.world.peers
        if outer.is_fragment and not truncated:
            if known and self.is_first_fragment():
                raise Drop("outer-fragment")
            return False
        plain = outer.version == 6 if outer.v6 else outer.version == 4 and outer.header_words == 5
        if outer.is_fragment or outer.protocol != ip.UDP or not plain or not self.has_port(self.udp_at):
            return False
        mac = self.packet[self.ethernet_at : self.ethernet_at + 6]
        if truncated:
            if known and (len(mac) < 6 or mac == MULTICLUSTER_MAC):
                raise Drop("truncated")
            return False
        header = self.packet[self.tunnel_at : self.ethernet_at]
        if not self.world.vxlan:
            if ip.number(header[2:4]) != tunnel.TRANSPARENT_ETHERNET:
                return False
            options = 4 * (header[0] & 0x3F)
            if options:
                at = self.ethernet_at + options
                if self.packet[at : at + 6] == MULTICLUSTER_MAC:
                    raise Drop("tunnel-options")
                return False
        if mac != MULTICLUSTER_MAC and self.world.has_tunnel_device and header[4:7] == tunnel.TUNNEL_DEVICE_VNI:
            raise Drop("not-admitted")
        return mac == MULTICLUSTER_MAC

    def sender(self):
        """Source address on mc0: the label identity, and whether policies decide on the packet."""
        return bytes([0x0A, 0x6D, self.has_policy]) + self.packet[self.tunnel_at + 4 : self.tunnel_at + 7]

    def has_port(self, at):
        return ip.number(self.packet[at + 2 : at + 4]) == self.world.port and len(self.packet) >= at + 4

    def is_first_fragment(self):
        """A first fragment with our port; later ones have no port."""
        if not self.outer.v6:
            first = self.outer.protocol == ip.UDP and self.outer.fragment & 0x1FFF == 0
            plain = self.outer.version == 4 and self.outer.header_words == 5
            return first and plain and self.has_port(self.udp_at)
        extension = self.packet[40:48]
        first = extension[0] == ip.UDP and ip.number(extension[2:4]) >> 3 == 0
        return first and self.outer.version == 6 and self.has_port(48)

    def inner(self):
        """The inner packet. A damaged one of a stranger is a stranger's."""
        try:
            return self.checked_inner()
        except Drop:
            if self.outer.source not in self.world.peers:
                raise Drop("unknown-peer") from None
            raise

    def checked_inner(self):
        if self.outer.residual != 0:
            raise Drop("outer-checksum")
        header = self.packet[self.tunnel_at : self.ethernet_at]
        # RFC 8926 section 3.4: version, and the bits for control packets and critical options. RFC 7348 section 5:
        # the I flag alone.
        plain = header[:4] == bytes([8, 0, 0, 0]) if self.world.vxlan else not (header[0] & 0xC0 or header[1] & 0xC0)
        if not plain:
            raise Drop("tunnel-header")
        v6 = FAMILIES.get(ip.number(self.packet[self.inner_at - 2 : self.inner_at]))
        if v6 is None:
            raise Drop("inner-protocol")
        packet = self.packet[self.inner_at :]
        header = ip.parse(packet, v6)
        if header is None or not ip.is_consistent(header, len(packet)):
            raise Drop("inner-malformed")
        return packet, v6

    def forwarded(self, packet, source, destination):
        """The outer packet for the next hop: only addresses, hop limit, inner source and checksums differ."""
        frame = self.packet[self.ethernet_at : self.ethernet_at + 6] + self.inner_source
        frame += self.packet[self.ethernet_at + 12 : self.inner_at]
        before = self.packet[self.udp_at :]
        after = self.packet[self.udp_at : self.ethernet_at] + frame + packet
        if before[6:8] != b"\0\0":
            old = checksum.pseudo_header(self.outer.source, self.outer.destination, ip.UDP, len(before))
            new = checksum.pseudo_header(source, destination, ip.UDP, len(after))
            wanted = checksum.residual(old + before)
            value = checksum.field(new + after[:6] + b"\0\0" + after[8:], wanted) or 0xFFFF
            after = after[:6] + value.to_bytes(2, "big") + after[8:]
        head = ip.rebuild(
            self.packet[: self.udp_at], self.outer.v6, source=source, destination=destination, ttl=self.outer.ttl - 1
        )
        return head + after
