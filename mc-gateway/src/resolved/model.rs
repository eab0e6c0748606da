//! A model of the host and of the agent's settings, for tests and benchmarks.

use std::collections::BTreeMap;
use std::net::IpAddr;

use mc_gateway_common::abi::NextHopGroup;

use super::{HostInputs, Settings, UnderlayRoute};
use crate::attachment::AttachMode;
use crate::capacity::Capacity;
use crate::config::{Dscp, EncapFormat, Exposure, Tunnel};
use crate::desired::DesiredState;
use crate::peer_secret::PeerSecrets;

static NO_MTUS: BTreeMap<u32, u32> = BTreeMap::new();

/// A host with the underlay address `own`, and a route to every next hop and peer.
#[must_use]
pub fn connected_host(desired: &DesiredState, own: IpAddr) -> HostInputs {
    let mut inputs = HostInputs::default();
    let next_hops = desired.next_hops.values().map(|next_hop| next_hop.addr);
    let route = |addr: IpAddr| UnderlayRoute {
        ifindex: 2,
        device: "eth0".to_owned(),
        link_address: None,
        source: own,
        mtu: 1500,
        neighbor: Some(addr),
    };
    let addrs = next_hops.chain(desired.peers.keys().copied());
    inputs.underlay.routes = addrs.map(|addr| (addr, route(addr))).collect();
    inputs.underlay.local_addrs.insert(own, (2, "eth0".to_owned()));
    inputs
}

/// Settings of an agent without tunnel devices that has measured no path MTU. `groups` are the observed ones.
#[must_use]
pub fn settings<'a>(
    node_name: &'a str,
    secrets: &'a PeerSecrets,
    groups: &'a BTreeMap<u32, NextHopGroup>,
) -> Settings<'a> {
    Settings {
        node_name,
        tunnel: Tunnel {
            format: EncapFormat::Geneve,
            port: 6081,
            udp_checksum: false,
            dscp: Dscp::Inherit,
            hop_limit: 64,
        },
        attach_mode: AttachMode::Tcx,
        exposure: Exposure {
            nodes: false,
            all_services: false,
        },
        detect: 3,
        hold_down_ms: 1_000,
        path_mtus: &NO_MTUS,
        capacity: Capacity::default(),
        secrets,
        period: 1,
        cluster_id_key: [0; 16],
        tunnel_mac: [2, 0, 0, 0, 0, 7],
        decap_test_ms: 450,
        has_tunnel_devices: false,
        observed_groups: groups,
    }
}
