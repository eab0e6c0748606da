"""The tables of network policies in use."""

import ipaddress


class Policies:
    """The tables in use."""

    def __init__(self, data):
        self.enforced = data["enforced"]
        self.pods = {(row["direction"], row["address"]): row for row in data["pods"]}
        # The class and the exporting clusters by number.
        self.identities = {row["identity"]: (row["class"], set(row["clusters"])) for row in data["identities"]}
        self.blocks = [(ipaddress.ip_network(row["network"]), row["class"]) for row in data["blocks"]]
        self.rules = data["rules"]
        self.flows = {tuple(row) for row in data["flows"]}

    def block(self, address):
        """Class of the smallest block that contains the address."""
        inside = [entry for entry in self.blocks if ipaddress.ip_address(address) in entry[0]]
        return max(inside, key=lambda entry: entry[0].prefixlen)[1] if inside else None

    def rule(self, dimension, of_set, number, protocol, port):
        """The rule with the longest range around the port."""
        found = [
            rule for rule in self.rules
            if (rule["dimension"], rule["set"], rule["class"], rule["protocol"]) == (dimension, of_set, number, protocol)
            and port >> 16 - rule["bits"] == rule["port"] >> 16 - rule["bits"]
        ]
        return max(found, key=lambda rule: rule["bits"], default=None)
