//! Pairs of connected network devices (NICs), which the environment variable `MC_NIC_PAIRS` names.
//!
//! Its value is a list of pairs `MAC/MAC`, separated by commas; a topology needs three. A cable, a switch with a VLAN
//! for each pair, or a QEMU hub connects the devices of a pair. The devices are in the initial network namespace, and
//! so is the caller, because the kernel returns the devices of a removed namespace there.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::{decode::Mac, netns::Netns, process::run, wait::wait_for};

/// Environment variable with the pairs.
pub const NIC_PAIRS: &str = "MC_NIC_PAIRS";

/// Links of a topology: two between a node and its gateway, one between the gateways.
const LINKS: usize = 3;

/// Timeout for the return of devices from removed namespaces: the kernel removes them in the background.
const RETURN_TIMEOUT: Duration = Duration::from_secs(30);

/// Two connected network devices, by their permanent MAC addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicPair([Mac; 2]);

// === impl NicPair ===

impl NicPair {
    /// The pairs of [`NIC_PAIRS`], enough for a topology.
    pub fn from_env() -> Result<Vec<Self>> {
        let Some(value) = env::var_os(NIC_PAIRS) else {
            bail!("{NIC_PAIRS} is not set: it names {LINKS} pairs of connected network devices as MAC/MAC,…");
        };
        let value = value.to_string_lossy();
        let pairs = Self::parse_list(&value).with_context(|| format!("{NIC_PAIRS}=`{value}`"))?;
        ensure!(
            pairs.len() >= LINKS,
            "{NIC_PAIRS}=`{value}`: {} pairs, of which a topology needs {LINKS}",
            pairs.len()
        );
        Ok(pairs)
    }

    /// Whether [`NIC_PAIRS`] is set.
    #[must_use]
    pub fn are_named() -> bool {
        env::var_os(NIC_PAIRS).is_some()
    }

    fn parse_list(value: &str) -> Result<Vec<Self>> {
        let mut seen = BTreeSet::new();
        let mut pairs = Vec::new();
        for text in value.split(',') {
            let Some((one, other)) = text.split_once('/') else {
                bail!("`{text}` is no pair MAC/MAC");
            };
            let pair = [one.parse()?, other.parse()?];
            for mac in pair {
                ensure!(seen.insert(mac), "{mac} is named twice");
            }
            pairs.push(Self(pair));
        }
        Ok(pairs)
    }

    /// Moves the devices of the first pair that no topology has into two namespaces, with this name and their permanent
    /// MAC addresses.
    pub(super) fn connect(one: &Netns, other: &Netns, device: &str) -> Result<()> {
        let pairs = Self::from_env()?;
        let taken = wait_for("a pair of network devices that is free", RETURN_TIMEOUT, || {
            let devices = Devices::list().map_err(|error| format!("{error:#}"))?;
            let free = pairs.iter().find_map(|pair| {
                let [here, there] = pair.0.map(|mac| devices.name(mac));
                Some([(here?, pair.0[0]), (there?, pair.0[1])])
            });
            free.ok_or_else(|| format!("{NIC_PAIRS} names {pairs:?}; {devices:?}"))
        })?;
        for ((name, mac), netns) in taken.into_iter().zip([one, other]) {
            // A device that is up has no other name.
            run(Command::new("ip").args(["link", "set", "dev", &name, "down"]))?;
            let netns_name = netns.name();
            run(Command::new("ip").args(["link", "set", "dev", &name, "netns", netns_name, "name", device]))?;
            netns.ip(&[format!("link set {device} address {mac}")])?;
        }
        Ok(())
    }
}

/// A device as `ip -json link show` describes it.
#[derive(Debug, Deserialize)]
struct Device {
    ifname: String,
    address: Option<String>,
    /// Missing if it equals the address.
    permaddr: Option<String>,
}

/// Names of the devices in the caller's namespace, by permanent MAC address.
#[derive(Debug)]
struct Devices(BTreeMap<Mac, String>);

impl Devices {
    fn list() -> Result<Self> {
        Self::parse(&run(Command::new("ip").args(["-json", "link", "show"]))?)
    }

    fn parse(shown: &str) -> Result<Self> {
        let devices: Vec<Device> =
            serde_json::from_str(shown).with_context(|| format!("devices in `{shown}`"))?;
        let devices = devices.into_iter().filter_map(|device| {
            // Devices without Ethernet have an address of another form, or none.
            let mac = device.permaddr.or(device.address)?.parse().ok()?;
            Some((mac, device.ifname))
        });
        Ok(Self(devices.collect()))
    }

    fn name(&self, mac: Mac) -> Option<String> {
        self.0.get(&mac).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_pairs_is_parsed() {
        let pairs =
            NicPair::parse_list("02:6d:63:00:00:00/02:6d:63:00:00:01,02:6D:63:00:00:0A/02:6d:63:00:00:0b");
        let mac = |last| Mac([2, 0x6d, 0x63, 0, 0, last]);
        assert_eq!(
            pairs.unwrap(),
            [NicPair([mac(0), mac(1)]), NicPair([mac(10), mac(11)])]
        );
        assert_eq!(mac(0xab).to_string(), "02:6d:63:00:00:ab");
    }

    #[test]
    fn errors_of_a_list_name_the_wrong_part() {
        for (value, expected) in [
            ("", "`` is no pair MAC/MAC"),
            ("eth0", "`eth0` is no pair MAC/MAC"),
            (
                "02:00:00:00:00:01/",
                "`` is no MAC address such as 02:00:00:00:00:01",
            ),
            (
                "02:00:00:00:00:01/02:00:00:00:00:+2",
                "`02:00:00:00:00:+2` is no MAC address such as 02:00:00:00:00:01",
            ),
            (
                "02:00:00:00:00:01/02:00:00:00:00",
                "`02:00:00:00:00` is no MAC address such as 02:00:00:00:00:01",
            ),
            (
                "02:00:00:00:00:01/02:00:00:00:00:01",
                "02:00:00:00:00:01 is named twice",
            ),
        ] {
            let error = NicPair::parse_list(value).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn devices_are_found_by_their_permanent_address() {
        let devices = Devices::parse(
            r#"[{"ifname":"lo","address":"00:00:00:00:00:00"},
                {"ifname":"ens4","address":"02:00:00:00:00:01"},
                {"ifname":"dev7","address":"06:00:00:00:00:01","permaddr":"02:00:00:00:00:02"},
                {"ifname":"gre0","address":"0.0.0.0"}]"#,
        )
        .unwrap();
        let name = |text: &str| devices.name(text.parse().unwrap());
        assert_eq!(name("02:00:00:00:00:01").as_deref(), Some("ens4"));
        assert_eq!(name("02:00:00:00:00:02").as_deref(), Some("dev7"));
        assert_eq!(name("06:00:00:00:00:01"), None);
    }
}
