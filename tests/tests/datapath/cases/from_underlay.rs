//! `from_underlay`: transit at a gateway, and delivery.

use std::net::IpAddr;

use super::{Case, Expect, case_from_underlay, web};
use crate::{
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, MC0_MAC, NODE, NORTH_GATEWAY, OTHER_GATEWAY, POD_HERE,
        POD_NODE, POD_NORTH, POD_WEST, SERVICE_HERE, SERVICE_WEST, WEST_GATEWAY,
    },
    packets::{Ip, Tunnel, ethernet, udp},
};

/// The expected frame of a gateway for an encapsulated packet.
pub(super) fn forwarded(tunnel: &Tunnel, src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Vec<u8> {
    let dst = dst.into();
    forwarded_with_mac(tunnel, src, dst, fixture::sent_mac_to(dst).bytes())
}

/// [`forwarded`] with this inner source MAC address.
pub(super) fn forwarded_with_mac(
    tunnel: &Tunnel,
    src: impl Into<IpAddr>,
    dst: impl Into<IpAddr>,
    mac: [u8; 6],
) -> Vec<u8> {
    let mut next = tunnel.clone();
    next.src = src.into();
    next.dst = dst.into();
    next.ttl -= 1;
    next.inner_src = mac;
    next.frame()
}

pub(crate) fn transit(cases: &mut Vec<Case>) {
    let mut push = |name, tunnel: &Tunnel, src, dst| {
        let expect = Expect::Transit(forwarded(tunnel, src, dst));
        cases.push(case_from_underlay(
            name,
            fixture::gateway(),
            tunnel.frame(),
            expect,
        ));
    };
    let out = Tunnel::new(NODE, GATEWAY_INSIDE, &web(POD_NODE, POD_WEST));
    push(
        "gateway: node to the other cluster",
        &out,
        GATEWAY_OUTSIDE,
        WEST_GATEWAY,
    );
    let back = Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, &web(POD_WEST, POD_NODE));
    push("gateway: other cluster to a node", &back, GATEWAY_INSIDE, NODE);
    let service = Tunnel::new(NODE, GATEWAY_INSIDE, &web(POD_NODE, SERVICE_WEST));
    push(
        "gateway: node to a remote Service",
        &service,
        GATEWAY_OUTSIDE,
        WEST_GATEWAY,
    );
    let reply = Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, &web(SERVICE_WEST, POD_NODE));
    push("gateway: reply of a remote Service", &reply, GATEWAY_INSIDE, NODE);
    let mut identity = out.clone();
    identity.vni = 0x00ab_cdef;
    push("gateway: the VNI stays", &identity, GATEWAY_OUTSIDE, WEST_GATEWAY);
    let mut last_hop = out.clone();
    last_hop.ttl = 2;
    push(
        "gateway: TTL 2 becomes 1",
        &last_hop,
        GATEWAY_OUTSIDE,
        WEST_GATEWAY,
    );
    let mut summed = out.clone();
    summed.udp_checksum = true;
    push(
        "gateway: the UDP checksum follows the addresses",
        &summed,
        GATEWAY_OUTSIDE,
        WEST_GATEWAY,
    );
    let mut odd = Tunnel::new(
        NODE,
        GATEWAY_INSIDE,
        &Ip::new(POD_NODE, POD_WEST, 17, udp(1, 2, b"odd")),
    );
    odd.udp_checksum = true;
    push(
        "gateway: UDP checksum over an odd length",
        &odd,
        GATEWAY_OUTSIDE,
        WEST_GATEWAY,
    );
    let full = Tunnel::new(
        NODE,
        GATEWAY_INSIDE,
        &Ip::new(POD_NODE, POD_WEST, 17, vec![0xa5; 1430]),
    );
    push("gateway: full-size packet", &full, GATEWAY_OUTSIDE, WEST_GATEWAY);
    let mut fragment = web(POD_NODE, POD_WEST);
    fragment.frags = 0x2000;
    push(
        "gateway: inner fragment",
        &Tunnel::new(NODE, GATEWAY_INSIDE, &fragment),
        GATEWAY_OUTSIDE,
        WEST_GATEWAY,
    );
}

/// Source MAC address of a frame on `mc0`.
pub(crate) fn delivered_mac(identity: u32, evaluated: bool) -> [u8; 6] {
    let [_, i0, i1, i2] = identity.to_be_bytes();
    [0x0a, 0x6d, evaluated.into(), i0, i1, i2]
}

/// The expected frame on `mc0`.
pub(super) fn decapsulated(tunnel: &Tunnel) -> Vec<u8> {
    ethernet(
        MC0_MAC,
        delivered_mac(tunnel.vni, false),
        tunnel.inner_type,
        &tunnel.inner,
    )
}

pub(crate) fn deliver(cases: &mut Vec<Case>) {
    let mut push = |name, tables, tunnel: &Tunnel| {
        cases.push(case_from_underlay(
            name,
            tables,
            tunnel.frame(),
            Expect::Deliver(decapsulated(tunnel)),
        ));
    };
    let to_node = Tunnel::new(GATEWAY_INSIDE, NODE, &web(POD_WEST, POD_NODE));
    push("node: from the gateway to a Pod", fixture::node(), &to_node);
    let reply = Tunnel::new(GATEWAY_INSIDE, NODE, &web(SERVICE_WEST, POD_NODE));
    push("node: reply of a remote Service", fixture::node(), &reply);
    let to_gateway = Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, &web(POD_WEST, POD_HERE));
    push("gateway: to its own Pod", fixture::gateway(), &to_gateway);
    let service = Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, &web(POD_WEST, SERVICE_HERE));
    push(
        "gateway: to a Service of its cluster",
        fixture::gateway(),
        &service,
    );
    let north = Tunnel::new(NORTH_GATEWAY, GATEWAY_OUTSIDE, &web(POD_NORTH, POD_HERE));
    push("gateway: from a third cluster", fixture::gateway(), &north);
    let other = Tunnel::new(OTHER_GATEWAY, GATEWAY_INSIDE, &web(POD_WEST, POD_HERE));
    push("gateway: from a second local gateway", fixture::gateway(), &other);
    let small = Tunnel::new(GATEWAY_INSIDE, NODE, &Ip::new(POD_WEST, POD_NODE, 59, []));
    push(
        "node: delivers a header and nothing else",
        fixture::node(),
        &small,
    );
    let mut options = web(POD_WEST, POD_NODE);
    options.options = vec![1; 8];
    push(
        "node: inner IP options",
        fixture::node(),
        &Tunnel::new(GATEWAY_INSIDE, NODE, &options),
    );
    let mut summed = to_node.clone();
    summed.udp_checksum = true;
    push("node: outer UDP checksum present", fixture::node(), &summed);
    let mut ttl = to_node;
    ttl.ttl = 1;
    push("node: outer TTL 1 is delivered", fixture::node(), &ttl);
}
