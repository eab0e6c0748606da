//! The CNI of a Node, recognised by its devices. Pure.

/// Whether a device belongs to a CNI whose eBPF programs may deliver packets into Pods past the host's side of their
/// devices (`bpf_redirect_peer`, Linux 5.10): Cilium, or Calico with eBPF. Programs there miss such packets.
#[must_use]
pub fn bypasses_pod_devices(name: &str) -> bool {
    name.starts_with("cilium_") || name.starts_with("bpfin.cali")
}

/// Whether a device belongs to a CNI that opens a tunnel socket which no other device can share: Open vSwitch (Antrea,
/// OVN-Kubernetes), Cilium, or Calico with eBPF. Such a CNI creates this device first; the socket, if any, may follow.
#[must_use]
pub fn has_exclusive_socket(name: &str, kind: &str) -> bool {
    kind == "openvswitch" || bypasses_pod_devices(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cni_is_known_by_its_devices() {
        for (name, kind, bypasses, exclusive) in [
            ("antrea-gw0", "openvswitch", false, true),
            ("cilium_host", "veth", true, true),
            ("bpfin.cali", "veth", true, true),
            ("vxlan.calico", "vxlan", false, false),
            ("cali1234", "veth", false, false),
            ("flannel.1", "vxlan", false, false),
            ("eth0", "", false, false),
        ] {
            assert_eq!(bypasses_pod_devices(name), bypasses, "{name}");
            assert_eq!(has_exclusive_socket(name, kind), exclusive, "{name}");
        }
    }
}
