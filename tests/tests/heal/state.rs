//! The state of a node's data path as a set of lines, without slots and indexes that may differ after a repair, and
//! without the secrets of a period, which may end during a test.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use aya::{
    maps::MapError,
    programs::{ProgramInfo, SchedClassifier, TcAttachType},
};
use mc_gateway_common::abi::{
    self, Addr, SECRET_SLOTS, SourceMac,
    liveness::{PROBE_REPLY, PROBE_SENT, ProbeReply, ProbeSent},
    prefix::{PREFIX_GENERATION, PREFIX_LENS, PrefixLengths, lengths_slot},
    service::{self, Backend, Maglev, Service, ServiceKey},
};
use mc_tests::topology::{Place, Topology};
use serde_json::Value;

use crate::pinned;

/// Prints the parts of the host: devices, addresses, routes, rules, filters and the nftables table without counters.
const SCRIPT: &str = "
echo route; ip -4 route show table all proto 109; ip -6 route show table all proto 109
ip -4 route show exact 10.12.0.0/16
echo rule; ip rule show | grep 'iif mc0'
echo address; ip -o address show dev mc0 scope global | cut -d' ' -f2-
echo rp_filter; cat /proc/sys/net/ipv4/conf/mc0/rp_filter
for device in mc0 eth0 eth1; do
    echo filter of $device; { tc filter show dev $device ingress; tc filter show dev $device egress; } | sed 's/ id [0-9]*//'
done 2>/dev/null
echo nft; nft -s list table inet mc_gateway
true
";

/// The state of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State(BTreeSet<String>);

impl State {
    /// Reads the state.
    pub(crate) fn read(bed: &Topology, place: Place) -> Self {
        let mut lines = BTreeSet::new();
        host(bed, place, &mut lines);
        pins(&bed.bpf_dir(place), &bed.bpf_dir(place), &mut lines);
        programs(bed, place, &mut lines);
        if let Err(error) = maps(bed, place, &mut lines) {
            lines.insert(format!("maps: {error}"));
        }
        Self(lines)
    }

    /// The lines in which this state differs from an expected one.
    pub(crate) fn difference(&self, expected: &Self) -> String {
        let missing = expected.0.difference(&self.0).map(|line| format!("- {line}"));
        let added = self.0.difference(&expected.0).map(|line| format!("+ {line}"));
        missing.chain(added).take(12).collect::<Vec<_>>().join("\n")
    }
}

fn host(bed: &Topology, place: Place, lines: &mut BTreeSet<String>) {
    let text = bed.netns(place).run("sh", ["-c", SCRIPT]).unwrap_or_default();
    let mut section = "";
    for line in text.lines() {
        let heading = ["route", "rule", "address", "rp_filter", "nft"].contains(&line)
            || line.starts_with("filter of ");
        if heading {
            section = line;
        } else {
            // The priority of a rule is followed by a tab.
            let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
            lines.insert(format!("{section}: {line}"));
        }
    }
    let shown = bed.netns(place).run("ip", ["-j", "-d", "link", "show", "mc0"]);
    let shown: Value = serde_json::from_str(&shown.unwrap_or_default()).unwrap_or_default();
    let shown = &shown[0];
    for field in ["mtu", "group", "inet6_addr_gen_mode"] {
        lines.insert(format!("mc0: {field} {}", shown[field]));
    }
    for flag in shown["flags"].as_array().into_iter().flatten() {
        lines.insert(format!("mc0: flag {flag}"));
    }
    if let Ok(config) = pinned::array::<abi::Config>(bed, place, abi::CONFIG).and_then(|map| map.get(&0, 0)) {
        let mac = config.mc0_mac.map(|byte| format!("{byte:02x}")).join(":");
        let same = shown["address"] == mac && shown["ifindex"] == config.mc0_ifindex;
        lines.insert(format!("config: index and MAC address of mc0: {same}"));
    }
}

/// The pins, without the index in the marker of a qdisc.
fn pins(root: &Path, directory: &Path, lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if name.starts_with("qdiscs/") {
            continue;
        }
        lines.insert(format!("pin: {name}"));
        if path.is_dir() {
            pins(root, &path, lines);
        }
    }
}

/// The programs attached by TCX, and those of the pinned links. Kernel IDs differ after a restart.
fn programs(bed: &Topology, place: Place, lines: &mut BTreeSet<String>) {
    let pins = ["to_remote", "from_underlay"].map(|name| bed.bpf_dir(place).join("programs").join(name));
    let pinned = pins
        .iter()
        .filter_map(|pin| Some(ProgramInfo::from_pin(pin).ok()?.id()));
    let pinned: BTreeSet<u32> = pinned.collect();
    for (pin, program) in pinned::links(bed, place) {
        let name = pin.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let own = program.is_some_and(|id| pinned.contains(&id));
        lines.insert(format!("link: {name} has the pinned program: {own}"));
    }
    let devices = ["mc0", "eth0", "eth1"];
    for (device, direction) in devices
        .into_iter()
        .flat_map(|device| [TcAttachType::Ingress, TcAttachType::Egress].map(|direction| (device, direction)))
    {
        let query = || Ok(SchedClassifier::query_tcx(device, direction)?);
        let attached = bed.netns(place).enter(query).map(|(_, attached)| attached);
        for info in attached.unwrap_or_default() {
            let own = pinned.contains(&info.id());
            lines.insert(format!(
                "tcx: {device} {direction:?} {:?}: {own}",
                info.name_as_str()
            ));
        }
    }
}

/// Number of inner source MAC addresses of a peer in the slot of their period. Their values change with each period
/// of secrets; the traffic shows that they are right.
fn accepted_periods(peer: &abi::Peer) -> usize {
    let macs = peer.source_macs.iter().enumerate();
    macs.filter(|(slot, mac)| **mac != 0 && SourceMac::from_bits(**mac).slot() == *slot)
        .count()
}

fn maps(bed: &Topology, place: Place, lines: &mut BTreeSet<String>) -> Result<(), MapError> {
    let mut config = pinned::array::<abi::Config>(bed, place, abi::CONFIG)?.get(&0, 0)?;
    (config.mc0_ifindex, config.mc0_mac) = (0, [0; 6]);
    lines.insert(format!("config: {config:?}"));
    let epoch = pinned::array::<abi::Epoch>(bed, place, abi::EPOCH)?.get(&0, 0)?;
    lines.insert(format!("epoch: caches {}", epoch.number != 0));
    let next_hops = pinned::used_slots::<abi::NextHop>(bed, place, abi::NEXT_HOPS)?;
    let peers = pinned::entries::<Addr, abi::Peer>(bed, place, abi::PEERS)?;
    let by_slot: BTreeMap<u32, u32> = next_hops.iter().map(|(slot, hop)| (*slot, hop.id)).collect();
    let sent = pinned::array::<ProbeSent>(bed, place, PROBE_SENT)?;
    let replies = pinned::array::<ProbeReply>(bed, place, PROBE_REPLY)?;
    for (slot, next_hop) in &next_hops {
        let peer = peers.iter().find(|(addr, _)| *addr == next_hop.addr);
        let same = peer.is_some_and(|(_, peer)| peer.reply_mac == next_hop.source_mac);
        let next_hop = abi::NextHop {
            stats: 0,
            source_mac: u64::from(same),
            ..next_hop.without_link()
        };
        let alive = sent.get(slot, 0)?.id == replies.get(slot, 0)?.id;
        lines.insert(format!("next hop: {next_hop:?}, replies recorded: {alive}"));
    }
    let mut group_ids = BTreeMap::from([(0, 0)]);
    for (slot, group) in pinned::used_slots::<abi::NextHopGroup>(bed, place, abi::NEXT_HOP_GROUPS)? {
        let ids: BTreeSet<_> = group
            .next_hops
            .iter()
            .filter_map(|slot| by_slot.get(slot))
            .collect();
        lines.insert(format!("group: {} of {} {ids:?}", group.id, group.len));
        group_ids.insert(slot, group.id);
    }
    let id = |slot: u32| group_ids.get(&slot).copied().unwrap_or(slot);
    let generation = pinned::array::<u32>(bed, place, PREFIX_GENERATION)?.get(&0, 0)?;
    let lists = pinned::array::<PrefixLengths>(bed, place, PREFIX_LENS)?;
    for v4 in [false, true] {
        let lengths = lists.get(&lengths_slot(generation, v4), 0)?;
        lines.insert(format!("prefix lengths in use, IPv4 {v4}: {lengths:?}"));
    }
    for (key, prefix) in pinned::entries::<abi::PrefixKey, abi::Prefix>(bed, place, abi::PREFIXES)? {
        let group = id(prefix.group);
        let prefix = abi::Prefix { group, ..prefix };
        lines.insert(format!("prefix: {:?}/{} {prefix:?}", key.addr, key.len));
    }
    for (addr, peer) in peers {
        let group = if peer.flags & abi::PEER_ANTREA == 0 {
            id(peer.group)
        } else {
            peer.group
        };
        let accepted = accepted_periods(&peer);
        let peer = abi::Peer {
            group,
            stats: 0,
            source_macs: [0; SECRET_SLOTS],
            reply_mac: u64::from(peer.reply_mac != 0),
            ..peer
        };
        lines.insert(format!("peer: {addr:?} {peer:?}, accepted periods: {accepted}"));
    }
    for (key, value) in pinned::entries::<ServiceKey, Service>(bed, place, service::SERVICES)? {
        lines.insert(format!("service: {key:?} {value:?}"));
    }
    for (key, table) in pinned::entries::<ServiceKey, Maglev>(bed, place, service::MAGLEV)? {
        let distinct: BTreeMap<u64, usize> = table.backends.iter().fold(BTreeMap::new(), |mut counts, id| {
            *counts.entry(*id).or_default() += 1;
            counts
        });
        lines.insert(format!("lookup table: {key:?} {distinct:?}"));
    }
    for (key, backend) in pinned::entries::<u64, Backend>(bed, place, service::BACKENDS)? {
        let group = id(backend.group);
        lines.insert(format!("backend: {key} {:?}", Backend { group, ..backend }));
    }
    Ok(())
}
