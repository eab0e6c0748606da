"""The tables of a Node: prefixes, groups, next hops, peers, Services and flows."""

import ipaddress
from types import SimpleNamespace

from policy_tables import Policies


class Flows:
    """The flow maps. Changes of one packet are kept apart until its result is known."""

    TABLES = ("flows", "replies", "fragments")

    def __init__(self, data):
        self.tables = {
            # The backend of a flow, with the number of a table if it is unconfirmed; backend and age of a client's entry.
            "flows": {
                tuple(row[:5]): tuple(row[5]) if isinstance(row[5], list) else row[5] for row in data["flows"]
            },
            "replies": {tuple(row[:5]): tuple(row[5:]) for row in data["replies"]},
            "fragments": {tuple(row[:4]): tuple(row[4:]) for row in data["fragments"]},
        }
        self.changes = []

    def get(self, table, key):
        for changed, changed_key, value in reversed(self.changes):
            if (changed, changed_key) == (table, key):
                return value
        return self.tables[table].get(key)

    def has(self, table, key):
        for changed, changed_key, value in reversed(self.changes):
            if (changed, changed_key) == (table, key):
                return value is not REMOVED
        return key in self.tables[table]

    def set(self, table, key, value):
        self.changes.append((table, key, value))

    def remove(self, table, key):
        self.changes.append((table, key, REMOVED))

    def discard(self):
        self.changes = []

    def keep(self):
        for table, key, value in self.changes:
            if value is REMOVED:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = value
        self.changes = []


REMOVED = object()


class World:
    """The tables in a form for look-ups; addresses are bytes in network order."""

    def __init__(self, data):
        self.configured = data["configured"]
        self.vxlan = data["vxlan"]
        self.udp_checksum = data["udp_checksum"]
        self.all_services = data["all_services"]
        self.identity_lost = data["identity_lost"]
        self.fixed_dscp = data["fixed_dscp"]
        self.backends_here = data["backends_here"]
        self.port = data["port"]
        self.mac = bytes.fromhex(data["mac"])
        self.tunnel_mac = bytes.fromhex(data["tunnel_mac"])
        self.has_tunnel_device = any(self.tunnel_mac)
        self.hop_limit = data["hop_limit"] or 64
        self.local = {packed(address) for address in data["local"]}
        self.prefixes = [
            (ipaddress.ip_network(prefix["network"]), SimpleNamespace(**prefix)) for prefix in data["prefixes"]
        ]
        self.prefixes.sort(key=lambda entry: -entry[0].prefixlen)
        self.next_hops = {row["slot"]: next_hop(row) for row in data["next_hops"]}
        self.groups = {row["slot"]: row["next_hops"] for row in data["groups"]}
        self.peers = {packed(row["address"]): peer(row) for row in data["peers"]}
        self.policies = Policies(data["policies"])
        self.services = {
            (row["address"], row["port"], row["proto"]): SimpleNamespace(**row) for row in data["services"]
        }
        self.backends = {row["id"]: SimpleNamespace(**row) for row in data["backends"]}

    def prefix(self, address):
        """The longest prefix that contains the address."""
        address = ipaddress.ip_address(address)
        return next((prefix for network, prefix in self.prefixes if address in network), None)

    def members(self, group):
        return [self.next_hops[slot] for slot in self.groups.get(group, []) if slot in self.next_hops]

    def usable_next_hops(self, group):
        """Those that a flow may use: a drained next hop only if no other exists."""
        return [member for member in self.members(group) if member.weight] or self.members(group)

    def smallest_mtu(self, group):
        """Of all next hops, since each may be used; 0 if none is known."""
        return min((member.mtu for member in self.members(group) if member.mtu), default=0)


def next_hop(row):
    row = dict(row, address=packed(row["address"]), local=packed(row["local"]))
    row["source_mac"] = bytes.fromhex(row["source_mac"])
    row["link"] = bytes.fromhex(row["link"] or "")
    return SimpleNamespace(**row)


def peer(row):
    row = dict(row, reply_mac=bytes.fromhex(row["reply_mac"]))
    row["source_macs"] = [bytes.fromhex(mac) if mac else None for mac in row["source_macs"]]
    return SimpleNamespace(**row)


def packed(address):
    return ipaddress.ip_address(address).packed


def text(address):
    return str(ipaddress.ip_address(bytes(address)))
