"""Proof that the oracle can fail: it must reject the kernel's results after each field was changed."""

import collections
import copy

import compare
from programs import Encapsulation
from world import Flows, World

# Changes of each field of each kind of result.
MOST_OF_A_KIND = 40

IPV4_FIELDS = {
    "version and header length": (0, 1), "type of service": (1, 2), "length": (2, 4), "identification": (4, 6),
    "flags and fragment offset": (6, 8), "TTL": (8, 9), "protocol": (9, 10), "header checksum": (10, 12),
    "source": (12, 16), "destination": (16, 20),
}
IPV6_FIELDS = {
    "version": (0, 1), "flow label": (2, 4), "length": (4, 6), "next header": (6, 7), "hop limit": (7, 8),
    "source": (8, 24), "destination": (24, 40),
}
TUNNEL_FIELDS = {
    "UDP source port": (0, 2), "UDP destination port": (2, 4), "UDP length": (4, 6), "UDP checksum": (6, 8),
    "tunnel flags": (8, 12), "VNI": (12, 15), "reserved": (15, 16), "inner destination MAC": (16, 22),
    "inner source MAC": (22, 28), "inner ethertype": (28, 30),
}
OTHER_CHANGES = (
    "action", "outcome or drop reason", "event", "next hop", "sent bytes", "peer", "received bytes", "truncated",
    "extended",
)
FLOW_CHANGES = ("removed", "changed", "added")


def frame_fields(result, frame):
    """Names of the fields of a redirected frame and their places."""
    fields = {"Ethernet destination": (0, 6), "Ethernet source": (6, 12), "ethertype": (12, 14)}
    at = 14
    layers = ["inner" if result.is_plain() else "outer"]
    if layers == ["outer"]:
        layers.append("inner")
    v6 = frame[12:14] == b"\x86\xdd"
    for layer in layers:
        for name, (start, end) in (IPV6_FIELDS if v6 else IPV4_FIELDS).items():
            fields[f"{layer} {'IPv6' if v6 else 'IPv4'} {name}"] = (at + start, at + end)
        at += 40 if v6 else 20
        if layer == "outer":
            for name, (start, end) in TUNNEL_FIELDS.items():
                fields[name] = (at + start, at + end)
            at += 30
            v6 = frame[at - 2 : at] == b"\x86\xdd"
    if at < len(frame):
        fields["transport header and data"] = (at, len(frame))
    return fields


def changed_frames(result, frame, number):
    """Each field with one changed bit."""
    free_label = isinstance(result.body, Encapsulation) and result.body.has_label
    free_port = isinstance(result.body, Encapsulation)
    for name, (start, end) in frame_fields(result, frame).items():
        if name == "outer IPv6 flow label" and free_label:
            continue
        place, bit = start + number % (end - start), number % 8
        if name == "UDP source port" and free_port:
            # Out of the dynamic range: any other port is a hash.
            place, bit = start, 7
        if place >= len(frame):
            continue
        data = bytearray(frame)
        data[place] ^= 1 << bit
        yield name, bytes(data)
    yield "truncated", frame[:-1]
    yield "extended", frame + b"\0"


def changed_cases(result, case, number):
    """The case with one wrong field."""
    counters = case["counters"]

    def with_counters(**changes):
        return dict(case, counters=dict(counters, **changes))

    yield "action", dict(case, action="drop" if case["action"] == "pass" else "pass", bytes=case["bytes"] or "")
    if counters["drops"]:
        other = "no-route" if counters["drops"] != ["no-route"] else "ecn"
        yield "outcome or drop reason", with_counters(drops=[other])
    if counters["outcomes"]:
        other = "transit" if counters["outcomes"] != ["transit"] else "deliver"
        yield "outcome or drop reason", with_counters(outcomes=[other])
    yield "event", with_counters(events=sorted(set(counters["events"]) ^ {"mss-lowered"}))
    for name, slot, size in (("sent", "next hop", "sent bytes"), ("received", "peer", "received bytes")):
        for counter, packets, length in counters[name]:
            yield slot, with_counters(**{name: [[counter + 1, packets, length]]})
            yield size, with_counters(**{name: [[counter, packets, length + 1]]})
    if case["action"] == "redirect":
        for name, frame in changed_frames(result, bytes.fromhex(case["bytes"]), number):
            yield name, dict(case, bytes=frame.hex())
    elif case["action"] == "pass":
        frame = bytearray.fromhex(case["bytes"])
        frame[number % len(frame)] ^= 1
        yield "passed frame", dict(case, bytes=frame.hex())


def wrong_flows(state):
    """Listings of the flow tables with one wrong entry."""
    for table in state.TABLES:
        for key in list(state.tables[table])[:1]:
            for change in FLOW_CHANGES:
                tables = copy.deepcopy(state.tables)
                value = tables[table].pop(key)
                if change == "changed":
                    tables[table][key] = (1, 2) if value is None else None
                if change == "added":
                    tables[table][key] = value
                    tables[table][("192.0.2.1", *key[1:])] = value
                listing = Flows({name: [] for name in state.TABLES})
                listing.tables = tables
                yield f"{table} {change}", listing


def run(lines):
    tried, accepted = collections.Counter(), []
    kinds = collections.Counter()
    world = state = None
    for number, line in enumerate(lines, 1):
        if "world" in line:
            world, state = World(line["world"]), Flows(line["flows"])
        elif "program" not in line:
            for name, listing in wrong_flows(state):
                tried[name] += 1
                if not compare.flow_differences(world, state, listing):
                    accepted.append(f"line {number}: {name}")
        else:
            accepted += rejected_changes(world, state, line, number, tried, kinds)
    names = set(OTHER_CHANGES) | {f"{table} {change}" for table in Flows.TABLES for change in FLOW_CHANGES}
    names |= {f"{layer} IPv4 {name}" for layer in ("outer", "inner") for name in IPV4_FIELDS}
    names |= {f"{layer} IPv6 {name}" for layer in ("outer", "inner") for name in IPV6_FIELDS}
    names |= set(TUNNEL_FIELDS) | {"Ethernet destination", "Ethernet source", "ethertype", "passed frame"}
    names |= {"transport header and data"}
    missing = sorted(names - tried.keys())
    for text in accepted[:20]:
        print("accepted:", text)
    if missing:
        print("not tried:", ", ".join(missing))
    print(f"oracle: {tried.total()} wrong results of {len(tried)} kinds, {len(accepted)} accepted")
    return 1 if accepted or missing else 0


def rejected_changes(world, state, case, number, tried, kinds):
    """The wrong results of a case that the oracle accepts."""
    frame = bytes.fromhex(case["frame"])
    allowed = list(compare.expectations(world, state, case["program"], frame))
    result = next(
        (result for run, result in allowed if compare.difference(run, result, frame, case) is None), None
    )
    accepted = []
    kind = (result.verdict, result.outcome, result.reason, case["program"]) if result else None
    if result and kinds[kind] < MOST_OF_A_KIND:
        kinds[kind] += 1
        for name, changed in changed_cases(result, case, number):
            tried[name] += 1
            if any(compare.difference(run, other, frame, changed) is None for run, other in allowed):
                accepted.append(f"line {number}: {name} of {kind}")
    compare.check(world, state, case)
    return accepted
