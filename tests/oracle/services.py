"""Services: docs/design/services.md. A gateway selects a backend, the Pod's Node translates in both directions."""

import flow as flows
import ip
from admission import Drop
from flow import Kind
from translation import translate, translate_error

STACK = None
# Ages of a client's entry.
NOW, NO_TIME = 0, None


class Gateway:
    """The first gateway of the exporting cluster."""

    def __init__(self, run):
        self.run, self.world, self.state = run, run.world, run.state

    def select(self, packet, v6):
        """ID of the backend of a packet to a Service; None for the stack."""
        flow = flows.classify(packet, v6)
        if flow.kind == Kind.TRUNCATED:
            raise Drop("inner-malformed")
        if flow.kind == Kind.LATER_FRAGMENT:
            known = self.state.get("fragments", flow.fragment_key)
            return known[0] or STACK if known else STACK
        if flow.kind == Kind.OTHER:
            return self.not_exported()
        if flow.kind == Kind.ICMP_ERROR:
            return self.select_for_error(packet, v6, flow)
        backend = self.select_for_flow(flow.key, flow.opens)
        if flow.kind == Kind.FIRST_FRAGMENT:
            self.state.set("fragments", flow.fragment_key, (backend or 0, flow.destination))
        return backend

    def not_exported(self):
        if self.world.all_services:
            return STACK
        raise Drop("not-exported")

    def select_for_error(self, packet, v6, flow):
        """The error is for the backend of the quoted packet, which is from the Service."""
        _, quote = flows.quoted(packet, v6, flow)
        if quote is None:
            raise Drop("inner-malformed")
        if quote.source != flow.destination or not quote.has_ports:
            return self.not_exported()
        return self.select_for_flow(quote.reverse_key, False)

    def select_for_flow(self, key, opens):
        client, client_port, address, port, protocol = key
        service = self.world.services.get((address, port, protocol))
        if service is None:
            return self.not_exported()
        has_entry = self.state.has("flows", key)
        known = self.state.get("flows", key) if has_entry else 0
        if has_entry and known is STACK and not opens:
            return STACK
        backend = self.world.backends.get(known)
        if backend and not opens:
            # A connection stays on a terminating Pod, datagrams only while no Pod is ready.
            if protocol == ip.TCP or backend.ready or not service.table:
                return known
        chosen = STACK if service.stack else self.choose(service, key)
        if chosen is STACK:
            if opens and not (has_entry and known is STACK):
                self.state.set("flows", key, STACK)
            return STACK
        if not has_entry or known != chosen:
            self.state.set("flows", key, chosen)
            self.run.events.add("service-flow-moved" if has_entry else "service-flow")
        return chosen

    def choose(self, service, key):
        """Any backend of the lookup table; one that is missing is the stack's."""
        client, _, address, port, protocol = key
        client_key = (client, 0, address, port, protocol)
        chosen = self.chosen_before(service, client_key) if service.affinity else STACK
        if chosen is STACK and service.table:
            chosen = self.run.choose([id if id in self.world.backends else STACK for id in service.table])
        if service.affinity and chosen is not STACK:
            self.state.set("flows", client_key, (chosen, NOW if service.timeout else NO_TIME))
        return chosen

    def chosen_before(self, service, client_key):
        """The backend of the client's last new flow, if that is no longer ago than the time-out."""
        known, age = self.state.get("flows", client_key) or (0, NO_TIME)
        expired = service.timeout and age is not NO_TIME and age > service.timeout
        backend = self.world.backends.get(known)
        return known if backend and backend.ready and not expired else STACK


class Node:
    """The Node of a Pod behind a Service."""

    def __init__(self, run):
        self.run, self.world, self.state = run, run.world, run.state

    def to_pod(self, packet, v6, backend_id):
        """A packet to a Service, translated to one to the backend."""
        backend = self.world.backends.get(backend_id)
        if backend is None or backend.group != 0:
            raise Drop("unknown-backend")
        flow = flows.classify(packet, v6)
        if flow.destination != backend.service:
            raise Drop("foreign-backend")
        if flow.kind == Kind.TRUNCATED:
            raise Drop("inner-malformed")
        if flow.kind == Kind.ICMP_ERROR:
            _, quote = flows.quoted(packet, v6, flow)
            of_backend = (
                quote is not None and quote.has_ports and quote.source_port == backend.service_port
                and quote.protocol == backend.proto and quote.source == backend.service
            )
            change = translate_error
        else:
            of_backend = flow.protocol == backend.proto and (
                flow.kind == Kind.LATER_FRAGMENT or flow.has_ports and flow.destination_port == backend.service_port
            )
            change = translate
        if not of_backend:
            raise Drop("foreign-backend")
        if flow.has_ports:
            self.remember(flow, backend)
        self.run.events.add("service-translated")
        return change(packet, v6, flow, "destination", backend.pod, backend.pod_port)

    def remember(self, flow, backend):
        key = (backend.pod, backend.pod_port, flow.source, flow.source_port, flow.protocol)
        service = (backend.service, backend.service_port)
        if self.state.has("replies", key):
            if self.state.get("replies", key) == service:
                return
            self.run.events.add("reply-replaced")
        self.state.set("replies", key, service)

    def direct_packet(self, packet, v6):
        """A client uses the Pod's address: the flow from the same port is no longer translated."""
        flow = flows.classify(packet, v6)
        if flow.has_ports and self.state.has("replies", flow.reverse_key):
            self.state.remove("replies", flow.reverse_key)

    def from_pod(self, packet, v6, own, behind_service):
        """A packet of a Pod; a reply gets the Service address as source."""
        icmp = ip.parse(packet, v6).protocol == (ip.ICMPV6 if v6 else ip.ICMP)
        if own and not behind_service and not icmp:
            return packet
        translated = self.reply(packet, v6)
        if translated is not None:
            self.run.events.add("reply-translated")
            return translated
        if own:
            return packet
        raise Drop("inner-source")

    def reply(self, packet, v6):
        flow = flows.classify(packet, v6)
        if flow.has_ports:
            service = self.state.get("replies", flow.key)
            if service is None:
                return None
            if flow.kind == Kind.FIRST_FRAGMENT:
                self.state.set("fragments", flow.fragment_key, (0, service[0]))
            return translate(packet, v6, flow, "source", *service)
        if flow.kind == Kind.LATER_FRAGMENT:
            known = self.state.get("fragments", flow.fragment_key)
            return translate(packet, v6, flow, "source", known[1], 0) if known else None
        if flow.kind == Kind.ICMP_ERROR:
            _, quote = flows.quoted(packet, v6, flow)
            if quote is None or not quote.has_ports:
                return None
            service = self.state.get("replies", quote.reverse_key)
            return translate_error(packet, v6, flow, "source", *service) if service else None
        return None
