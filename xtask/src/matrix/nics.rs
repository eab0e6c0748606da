//! Network devices of the guest: pairs of virtio-net devices, each pair connected by a QEMU hub.
//!
//! A hub passes frames without metadata about them, so QEMU offers the guest no offload: senders segment and complete
//! checksums, and receivers verify them and aggregate (GRO).

/// Pairs: a topology has three links.
const PAIRS: u8 = 3;

/// Shell command that lets the devices collect packets between two interrupts, as network cards do. A hub passes frames
/// one by one, and with an interrupt for each of them GRO has few frames to join.
pub(super) const COALESCE: &str = "for device in /sys/class/net/*; do\n\
    if [ -e $device/device ]; then\n\
    echo 200000 > $device/gro_flush_timeout; echo 1 > $device/napi_defer_hard_irqs\n\
    fi\ndone\n";

/// Both ends of every pair.
fn ends() -> impl Iterator<Item = (u8, u8)> {
    (0..PAIRS).flat_map(|pair| [(pair, 0), (pair, 1)])
}

/// MAC address of an end, locally administered.
fn mac((pair, end): (u8, u8)) -> String {
    format!("02:6d:63:00:{pair:02x}:{end:02x}")
}

/// Arguments of QEMU. It warns that the hubs have no connection to the host's network, which is intended. The devices
/// have no boot ROM, which QEMU would look for.
pub(super) fn qemu_args() -> Vec<String> {
    let args = ends().flat_map(|(pair, end)| {
        let (id, mac) = (format!("nic{pair}-{end}"), mac((pair, end)));
        [
            "-netdev".to_owned(),
            format!("hubport,id={id},hubid={pair}"),
            "-device".to_owned(),
            format!("virtio-net-pci,netdev={id},mac={mac},romfile="),
        ]
    });
    args.collect()
}

/// The environment variable that names the pairs for the topologies of the test crate.
pub(super) fn variable() -> String {
    let pairs: Vec<String> = (0..PAIRS)
        .map(|pair| format!("{}/{}", mac((pair, 0)), mac((pair, 1))))
        .collect();
    format!("MC_NIC_PAIRS={}", pairs.join(","))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn devices_of_a_pair_share_a_hub_and_have_their_own_address() {
        let args = qemu_args();
        let with = |text: &str| args.iter().filter(|arg| arg.contains(text)).count();
        assert_eq!(with("hubid=2"), 2);
        let variable = variable();
        let (_, pairs) = variable.split_once('=').unwrap();
        let addresses: BTreeSet<&str> = pairs.split([',', '/']).collect();
        assert_eq!(addresses.len(), 6);
        assert!(
            addresses
                .iter()
                .all(|address| with(&format!("mac={address},")) == 1)
        );
    }
}
