//! Changes of devices, addresses, routes, rules, settings and nftables.

use mc_tests::topology::Place;

use super::Change;

const NODE: Place = Place::NodeEast;
const GATEWAY: Place = Place::GatewayEast;

pub(super) const ALL: &[Change] = &[
    Change::new("nftables rules deleted", GATEWAY, |bed, place| {
        bed.run(place, "nft flush table inet mc_gateway")
    }),
    Change::new("nftables table deleted", NODE, |bed, place| {
        bed.run(place, "nft delete table inet mc_gateway")
    }),
    Change::new(
        "nftables rules of all programs deleted",
        Place::NodeWest,
        |bed, place| bed.run(place, "nft delete table inet mc_gateway"),
    ),
    Change::new("rules deleted", GATEWAY, |bed, place| {
        bed.ip(
            place,
            &[
                "rule del iif mc0 priority 10900",
                "rule del iif mc0 priority 10901",
            ],
        )
    }),
    Change::new("foreign rule for packets of mc0 added", GATEWAY, |bed, place| {
        bed.ip(
            place,
            &["rule add iif mc0 priority 10901 from 10.1.0.0/16 lookup 7168871 proto 109"],
        )
    }),
    Change::new("routing table deleted", GATEWAY, |bed, place| {
        bed.ip(place, &["route flush table 7168871"])
    }),
    Change::new("rp_filter of mc0 changed", GATEWAY, |bed, place| {
        let strict = [("net.ipv4.conf.mc0.rp_filter", "1")];
        bed.topology.netns(place).sysctl(&strict)
    }),
    Change::new("IPv6 addresses generated on mc0", NODE, |bed, place| {
        bed.ip(place, &["link set mc0 addrgenmode eui64"])
    }),
    Change::new("multicast enabled on mc0", NODE, |bed, place| {
        bed.ip(place, &["link set mc0 multicast on"])
    }),
    Change::new("ARP enabled on mc0", NODE, |bed, place| {
        bed.ip(place, &["link set mc0 arp on"])
    }),
    Change::new("MTU of mc0 changed", NODE, |bed, place| {
        bed.ip(place, &["link set mc0 mtu 600"])
    }),
    Change::new("MAC address of mc0 changed", Place::NodeWest, |bed, place| {
        bed.ip(place, &["link set mc0 address 02:00:00:00:00:77"])
    }),
    Change::new("foreign address on mc0", GATEWAY, |bed, place| {
        bed.ip(place, &["address add 203.0.113.9/32 dev mc0"])
    }),
    Change::new("source of a route changed", NODE, |bed, place| {
        bed.ip(
            place,
            &["route replace 10.12.0.0/16 dev mc0 scope link proto 109 src 192.168.11.2"],
        )
    }),
    Change::new("routes deleted", NODE, |bed, place| {
        bed.ip(place, &["route flush proto 109"])
    }),
    Change::new("other end of mc0 down", Place::NodeWest, |bed, place| {
        bed.ip(place, &["link set mc0p down"])
    }),
    Change::new("mc0 down", NODE, |bed, place| {
        bed.ip(place, &["link set mc0 down"])
    }),
    Change::new("mc0 renamed", Place::NodeWest, |bed, place| {
        bed.ip(
            place,
            &[
                "link set mc0 down",
                "link set mc0 name other",
                "link set other up",
            ],
        )
    }),
    Change::new("mc0 deleted at a node", NODE, |bed, place| {
        bed.ip(place, &["link del mc0"])
    }),
    Change::new("mc0 deleted at a gateway", GATEWAY, |bed, place| {
        bed.ip(place, &["link del mc0"])
    }),
];
