//! `from_underlay`: dropped packets, spoofed or malformed.

use mc_gateway_common::{
    abi::PEER_LOCAL_NODE,
    verdict::DropReason::{
        self, InnerMalformed, InnerProtocol, InnerSource, NoRoute, OuterChecksum, OuterFragment, Truncated,
        TunnelHeader, TunnelOptions, UnknownPeer,
    },
};

use super::{Case, Expect, case_from_underlay, web};
use crate::{
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, OTHER_GATEWAY, POD_HERE, POD_NODE, POD_NORTH, POD_WEST,
        SERVICE_HERE, SERVICE_WEST, STRANGER, WEST_GATEWAY,
    },
    packets::{Ip, Tunnel},
};

pub(crate) fn spoofed(cases: &mut Vec<Case>) {
    let mut drop = |name: &str, tables, tunnel: &Tunnel, reason| {
        cases.push(case_from_underlay(
            name,
            tables,
            tunnel.frame(),
            Expect::Drop(reason),
        ));
    };
    let g = fixture::gateway;
    let t = |src, dst, from, to| Tunnel::new(src, dst, &web(from, to));
    drop(
        "spoof: unknown outer source",
        g(),
        &t(STRANGER, GATEWAY_OUTSIDE, POD_WEST, POD_HERE),
        UnknownPeer,
    );
    drop(
        "spoof: own address as outer source",
        g(),
        &t(GATEWAY_OUTSIDE, GATEWAY_OUTSIDE, POD_WEST, POD_HERE),
        UnknownPeer,
    );
    drop(
        "spoof: inner source in no prefix",
        g(),
        &t(WEST_GATEWAY, GATEWAY_OUTSIDE, [192, 0, 2, 9], POD_HERE),
        InnerSource,
    );
    drop(
        "spoof: west claims north's Pod",
        g(),
        &t(WEST_GATEWAY, GATEWAY_OUTSIDE, POD_NORTH, POD_HERE),
        InnerSource,
    );
    drop(
        "spoof: west claims a local Pod",
        g(),
        &t(WEST_GATEWAY, GATEWAY_OUTSIDE, POD_NODE, POD_HERE),
        InnerSource,
    );
    drop(
        "spoof: west claims loopback",
        g(),
        &t(WEST_GATEWAY, GATEWAY_OUTSIDE, [127, 0, 0, 1], POD_HERE),
        InnerSource,
    );
    drop(
        "spoof: node claims another node's Pod",
        g(),
        &t(NODE, GATEWAY_INSIDE, POD_HERE, POD_WEST),
        InnerSource,
    );
    drop(
        "spoof: node claims a remote Pod",
        g(),
        &t(NODE, GATEWAY_INSIDE, POD_WEST, POD_HERE),
        InnerSource,
    );
    drop(
        "spoof: node claims a Service address",
        g(),
        &t(NODE, GATEWAY_INSIDE, SERVICE_HERE, POD_WEST),
        InnerSource,
    );
    for (name, from) in [
        ("its own Pod", POD_NODE),
        ("the gateway's Pod, whose prefix has no group either", POD_HERE),
        ("a Service address without a Service", SERVICE_HERE),
    ] {
        let mut tables = g();
        for peer in tables
            .peers
            .values_mut()
            .filter(|peer| peer.flags & PEER_LOCAL_NODE != 0)
        {
            peer.group = 0;
        }
        drop(
            &format!("spoof: a node without a group sends as {name}"),
            tables,
            &t(NODE, GATEWAY_INSIDE, from, POD_WEST),
            InnerSource,
        );
    }
    drop(
        "spoof: second gateway sends local sources",
        g(),
        &t(OTHER_GATEWAY, GATEWAY_INSIDE, POD_NODE, POD_WEST),
        InnerSource,
    );
    drop(
        "relay: west to north through east",
        g(),
        &t(WEST_GATEWAY, GATEWAY_OUTSIDE, POD_WEST, POD_NORTH),
        NoRoute,
    );
    drop(
        "relay: west back to west",
        g(),
        &t(WEST_GATEWAY, GATEWAY_OUTSIDE, POD_WEST, [10, 2, 9, 9]),
        NoRoute,
    );
    drop(
        "relay: in-cluster traffic through the gateway",
        g(),
        &t(NODE, GATEWAY_INSIDE, POD_NODE, POD_HERE),
        NoRoute,
    );
    drop(
        "relay: second gateway to a third node",
        g(),
        &t(OTHER_GATEWAY, GATEWAY_INSIDE, POD_WEST, POD_NODE),
        NoRoute,
    );
    drop(
        "node: transit through a regular node",
        fixture::node(),
        &t(GATEWAY_INSIDE, NODE, POD_WEST, SERVICE_WEST),
        NoRoute,
    );
    drop(
        "node: local source from the gateway",
        fixture::node(),
        &t(GATEWAY_INSIDE, NODE, POD_NODE, POD_WEST),
        InnerSource,
    );
    drop(
        "gateway: destination in no prefix",
        g(),
        &t(NODE, GATEWAY_INSIDE, POD_NODE, [198, 51, 100, 1]),
        NoRoute,
    );
    drop(
        "gateway: empty group",
        g(),
        &t(NODE, GATEWAY_INSIDE, POD_NODE, [10, 4, 0, 1]),
        DropReason::NoNextHop,
    );
    let mut looping = t(NODE, GATEWAY_INSIDE, POD_NODE, POD_WEST);
    looping.ttl = 1;
    drop("gateway: TTL 1 ends", g(), &looping, DropReason::TtlExceeded);
    looping.ttl = 0;
    drop("gateway: TTL 0 ends", g(), &looping, DropReason::TtlExceeded);
}

pub(crate) fn malformed(cases: &mut Vec<Case>) {
    let base = || Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, &web(POD_WEST, POD_HERE));
    let mut drop = |name, frame, reason| {
        cases.push(case_from_underlay(
            name,
            fixture::gateway(),
            frame,
            Expect::Drop(reason),
        ));
    };
    let with = |change: fn(&mut Tunnel)| {
        let mut tunnel = base();
        change(&mut tunnel);
        tunnel.frame()
    };
    drop("tunnel: version 1", with(|t| t.geneve[0] = 0x40), TunnelHeader);
    drop(
        "tunnel: control packet",
        with(|t| t.geneve[1] = 0x80),
        TunnelHeader,
    );
    drop("tunnel: critical bit", with(|t| t.geneve[1] = 0x40), TunnelHeader);
    let optioned = |t: &mut Tunnel| {
        t.geneve[0] = 1;
        t.geneve_options = vec![1, 2, 3, 0];
    };
    drop("tunnel: options", with(optioned), TunnelOptions);
    drop(
        "tunnel: longest options",
        with(|t| {
            t.geneve[0] = 63;
            t.geneve_options = vec![0; 252];
        }),
        TunnelOptions,
    );
    drop(
        "tunnel: IPv4 packet with the IPv6 ethertype",
        with(|t| t.inner_type = 0x86dd),
        InnerMalformed,
    );
    drop(
        "tunnel: inner ARP",
        with(|t| t.inner_type = 0x0806),
        InnerProtocol,
    );
    drop(
        "tunnel: inner VLAN tag",
        with(|t| t.inner_type = 0x8100),
        InnerProtocol,
    );
    drop(
        "tunnel: outer checksum wrong",
        with(|t| t.outer_checksum_error = 1),
        OuterChecksum,
    );
    drop(
        "tunnel: first outer fragment",
        with(|t| t.frags = 0x2000),
        OuterFragment,
    );
    drop(
        "tunnel: inner packet truncated",
        {
            let mut f = base().frame();
            f.pop();
            f
        },
        InnerMalformed,
    );
    drop(
        "tunnel: inner header truncated",
        {
            let mut f = base().frame();
            f.truncate(14 + 50 + 19);
            f
        },
        Truncated,
    );
    drop(
        "tunnel: truncated behind the inner MAC",
        {
            let mut f = base().frame();
            f.truncate(14 + 42);
            f
        },
        Truncated,
    );
    drop(
        "tunnel: truncated behind the UDP header",
        {
            let mut f = base().frame();
            f.truncate(14 + 28);
            f
        },
        Truncated,
    );
    let inner = |change: fn(&mut Ip)| {
        let mut ip = web(POD_WEST, POD_HERE);
        change(&mut ip);
        Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, &ip).frame()
    };
    drop(
        "tunnel: inner version 5",
        inner(|ip| ip.vihl = Some(0x55)),
        InnerMalformed,
    );
    drop(
        "tunnel: inner header length 4",
        inner(|ip| ip.vihl = Some(0x44)),
        InnerMalformed,
    );
    drop(
        "tunnel: inner total length too large",
        inner(|ip| ip.total = Some(1500)),
        InnerMalformed,
    );
    drop(
        "tunnel: inner total length 0",
        inner(|ip| ip.total = Some(0)),
        InnerMalformed,
    );
}
