"""Services: docs/design/services.md. A gateway selects a backend, the Pod's Node translates in both directions."""

import flow as flows
import ip
from admission import Drop
from flow import Kind
from translation import translate, translate_error

STACK = None
# Ages of a client's entry.
NOW, NO_TIME = 0, None


def id_of(entry):
    """The backend of the entry of a flow; an unconfirmed one has the number of a table as well."""
    return entry[0] if isinstance(entry, tuple) else entry


class Gateway:
    """The first gateway of the exporting cluster."""

    def __init__(self, run):
        self.run, self.world, self.state = run, run.world, run.state
        # The backends of a flow in the tables, by their number.
        self.chosen = {}

    def select(self, packet, v6):
        """ID of the backend of a packet to a Service, None for the stack, and whether its Node may return it."""
        flow = flows.classify(packet, v6)
        entry = self.select_for_packet(packet, v6, flow)
        if flow.kind != Kind.PORTS:
            return id_of(entry), False
        if isinstance(entry, tuple):
            backend = self.world.backends.get(entry[0])
            if backend is None or backend.group == 0:
                entry = self.check_here(flow.key, entry)
        return id_of(entry), isinstance(entry, tuple)

    def select_for_packet(self, packet, v6, flow):
        """The entry of the packet's flow."""
        if flow.kind == Kind.OTHER:
            return self.not_exported()
        if flow.kind == Kind.ICMP_ERROR:
            return self.select_for_error(packet, v6, flow)
        if flow.kind == Kind.TRUNCATED:
            raise Drop("inner-malformed")
        if flow.kind == Kind.LATER_FRAGMENT:
            known = self.state.get("fragments", flow.fragment_key)
            return known[0] or STACK if known else STACK
        entry = self.select_for_flow(flow.key, flow.opens, flow.continues)
        if flow.kind == Kind.FIRST_FRAGMENT:
            self.state.set("fragments", flow.fragment_key, (id_of(entry) or 0, flow.destination))
        return entry

    def check_here(self, key, entry):
        """The entry of an unconfirmed flow whose backend is on this gateway, or does not exist."""
        _, _, address, port, protocol = key
        service = self.world.services[address, port, protocol]
        has_entry = self.state.has("flows", key)
        known = self.state.get("flows", key) if has_entry else STACK
        table = known[1] if isinstance(known, tuple) else 0
        return self.move(service, key, entry[0], table, "service-flow-moved" if has_entry else "service-flow")

    def move(self, service, key, backend_id, table, event):
        """Stores and returns the entry of the next choice; without another backend the flow stays."""
        own = self.world.backends.get(backend_id)
        if own and own.group == 0 and Node(self.run).has_connection(key, own):
            entry = backend_id
        else:
            entry = self.next_choice(service, key, table)
        if entry is STACK:
            entry = backend_id
        # Nothing is stored for a connection that no backend can have.
        if entry is not STACK:
            self.state.set("flows", key, entry)
        if id_of(entry) != backend_id:
            self.run.events.add(event)
        return entry

    def again(self, packet, v6, backend_id, peer):
        """Backend and mark of a packet that a Node returns."""
        backend = self.world.backends.get(backend_id)
        if backend is None:
            raise Drop("unknown-backend")
        if peer.group == 0 or backend.group != peer.group:
            raise Drop("foreign-backend")
        flow = flows.classify(packet, v6)
        if flow.kind == Kind.TRUNCATED:
            raise Drop("inner-malformed")
        if not flow.continues:
            raise Drop("unexpected-return")
        if (flow.destination, flow.destination_port, flow.protocol) != (
            backend.service, backend.service_port, backend.proto
        ):
            raise Drop("foreign-backend")
        service = self.world.services.get((flow.destination, flow.destination_port, flow.protocol))
        if service is None:
            raise Drop("not-exported")
        entry = self.state.get("flows", flow.key) if self.state.has("flows", flow.key) else None
        if not isinstance(entry, tuple):
            raise Drop("unexpected-return")
        known, table = entry
        if known == backend_id:
            entry = self.move(service, flow.key, backend_id, table + 1, "service-flow-moved")
        elif backend_id not in self.earlier_choices(service, flow.key, table):
            raise Drop("unexpected-return")
        if self.world.backends.get(id_of(entry)) is None:
            raise Drop("unknown-backend")
        return id_of(entry), isinstance(entry, tuple)

    def next_choice(self, service, key, table):
        """The entry with the next backend that may have the connection, from the table with this number on."""
        first = self.in_table(service, key, 0)
        if key[-1] == ip.UDP:
            table = max(table, 1)
        for number in range(table, 1 + len(service.past)):
            chosen = self.in_table(service, key, number)
            backend = self.world.backends.get(chosen)
            if backend is None or number and chosen == first:
                continue
            if backend.group != 0:
                return (chosen, number)
            if Node(self.run).has_connection(key, backend):
                return chosen
        return first if first in self.world.backends else STACK

    def earlier_choices(self, service, key, table):
        """Backends to which the flow was offered before it had the entry of this table."""
        first = 1 if key[-1] == ip.UDP else 0
        numbers = range(first, min(table, 1 + len(service.past)))
        present = self.in_table(service, key, 0)
        chosen = [(number, self.in_table(service, key, number)) for number in numbers]
        return [backend for number, backend in chosen if number == 0 or backend != present]

    def in_table(self, service, key, number):
        """Any backend of a look-up table, always the same one for a flow."""
        table = service.past[number - 1] if number else service.table
        if not table:
            return STACK
        if (key, number) not in self.chosen:
            self.chosen[key, number] = self.run.choose(table)
        return self.chosen[key, number]

    def first_choice(self, service, key):
        """The backend of the client, or of the present table; one that is missing is the stack's."""
        client, _, address, port, protocol = key
        chosen = self.chosen_before(service, (client, 0, address, port, protocol)) if service.affinity else STACK
        if chosen is STACK:
            chosen = self.in_table(service, key, 0)
        return chosen if chosen in self.world.backends else STACK

    def not_exported(self, starts=False):
        if not self.world.all_services:
            raise Drop("not-exported")
        if starts and self.world.identity_lost:
            raise Drop("identity-lost")
        return STACK

    def select_for_error(self, packet, v6, flow):
        """The error is for the backend of the quoted packet, which is from the Service."""
        _, quote = flows.quoted(packet, v6, flow)
        if quote is None:
            raise Drop("inner-malformed")
        if quote.source != flow.destination or not quote.has_ports:
            return self.not_exported()
        return self.select_for_flow(quote.reverse_key, False, quote.continues and quote.protocol == ip.TCP, True)

    def select_for_flow(self, key, opens, continues, is_answer=False):
        """The entry of a flow, None for the stack. The packet opens a connection, or continues one without a fragment."""
        _, _, address, port, protocol = key
        starts = opens or protocol != ip.TCP and not is_answer
        service = self.world.services.get((address, port, protocol))
        if service is None:
            return self.not_exported(starts)
        entry = self.entry_of_flow(service, key, opens, continues)
        # The service proxy would hide the sender of a new flow from policies that select a Pod of the Service.
        if entry is STACK and starts and service.identity_lost:
            raise Drop("identity-lost")
        return entry

    def entry_of_flow(self, service, key, opens, continues):
        _, _, _, _, protocol = key
        has_entry = self.state.has("flows", key)
        entry = self.state.get("flows", key) if has_entry else 0
        known = id_of(entry)
        if has_entry and known is STACK and not opens:
            return STACK
        backend = self.world.backends.get(known)
        if backend and not opens:
            # A connection stays on a terminating Pod, datagrams only while no Pod is ready.
            if protocol == ip.TCP or backend.ready or not service.table:
                return entry
        unconfirmed = continues and service.has_past
        if protocol == ip.UDP:
            # Any Pod accepts a datagram: past tables come first, but not for a client or a flow that has a Pod.
            unconfirmed = unconfirmed and not (service.affinity or service.identity_lost or has_entry)
            if unconfirmed:
                return (STACK, 0)
        chosen = STACK if service.stack else self.choose(service, key)
        if chosen is STACK:
            if unconfirmed:
                return (STACK, 0)
            if opens and not service.identity_lost and not (has_entry and known is STACK):
                self.state.set("flows", key, STACK)
            return STACK
        new = (chosen, 0) if unconfirmed else chosen
        if not has_entry or entry != new:
            self.state.set("flows", key, new)
            if not has_entry:
                self.run.events.add("service-flow")
            elif known != chosen:
                self.run.events.add("service-flow-moved")
        return new

    def choose(self, service, key):
        """Any backend of the lookup table; one that is missing is the stack's."""
        client, _, address, port, protocol = key
        chosen = self.first_choice(service, key)
        if service.affinity and chosen is not STACK:
            client_key = (client, 0, address, port, protocol)
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

    def to_pod(self, packet, v6, backend_id, may_return=False):
        """A packet to a Service, translated to one to the backend. None if it is to be returned."""
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
        if may_return and flow.continues and not self.has_connection(flow.key, backend):
            return None
        if flow.has_ports:
            self.remember(flow, backend)
        self.run.events.add("service-translated")
        return change(packet, v6, flow, "destination", backend.pod, backend.pod_port)

    def has_connection(self, key, backend):
        """Whether a Pod of this Node has the connection of a client through the backend's Service."""
        client, client_port, _, _, protocol = key
        reply_key = (backend.pod, backend.pod_port, client, client_port, protocol)
        service = (backend.service, backend.service_port)
        return self.state.has("replies", reply_key) and self.state.get("replies", reply_key) == service

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
