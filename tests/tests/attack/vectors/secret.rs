//! The secret of a pair of nodes: genuine packets but for the inner source MAC address.

use mc_gateway_common::{abi::SourceMac, packet::probe::ETHERTYPE};
use mc_test_kit::datapath::packets::Tunnel;
use mc_tests::topology::source_mac_between;

use crate::{
    bed::{SERVICE_UDP, Services, peers},
    vector::{ATTACK, Entry, Generator, datagram},
};

pub(super) fn generate(generator: &mut Generator) {
    let genuine = generator.genuine();
    let (src, dst) = (genuine.src, genuine.dst);
    let secret = generator.bed.secret(src, dst);
    let all = peers(generator.bed.outer);
    let [first, ..] = secret.bytes();
    let mut push = |name: String, mac: [u8; 6]| {
        let tunnel = Tunnel {
            inner_src: mac,
            ..genuine.clone()
        };
        generator.without_secret(name, &tunnel);
    };
    for (name, mac) in [
        ("no secret", SourceMac::UNKEYED.bytes()),
        (
            "no secret, and a backend ID",
            SourceMac::UNKEYED.with_backend(1).bytes(),
        ),
        ("zeros", [0; 6]),
        ("ones", [0xff; 6]),
        ("a secret of zeros", [first, 0, 0, 0, 0, 0]),
    ] {
        push(format!("secret: {name}"), mac);
    }
    for byte in 0..6 {
        for bit in [0x01, 0x80] {
            let mut mac = secret.bytes();
            mac[byte] ^= bit;
            push(format!("secret: byte {byte} changed by {bit:#04x}"), mac);
        }
    }
    let name_of = |addr| {
        all.iter()
            .find(|(known, _)| *known == addr)
            .map(|(_, name)| *name)
    };
    let (Some(sender), Some(receiver)) = (name_of(src), name_of(dst)) else {
        return;
    };
    for periods in [-1_000, -4, -3, -2, 2, 3, 4, 1_000] {
        let mac = source_mac_between(sender, receiver, periods);
        push(format!("secret: {periods} periods away"), mac.bytes());
    }
    for (index, (_, other)) in all.iter().enumerate() {
        for (name, from, to) in [
            ("of another sender", *other, receiver),
            ("to another receiver", sender, *other),
            ("of a reflected packet", receiver, sender),
        ] {
            if (from, to) != (sender, receiver) {
                let mac = source_mac_between(from, to, 0);
                push(format!("secret: {name} {other} {index}"), mac.bytes());
            }
        }
    }
    services_and_probes(generator, &genuine);
}

/// A Service's backend, and probes.
fn services_and_probes(generator: &mut Generator, genuine: &Tunnel) {
    if generator.entry == Entry::LanToNode {
        let (source, _) = generator.ends();
        let web = datagram(
            source,
            Services::new(generator.inner).exported,
            SERVICE_UDP,
            ATTACK,
        );
        let mut tunnel = generator.carrying(&web);
        tunnel.inner_src = SourceMac::UNKEYED.with_backend(1).bytes();
        generator.without_secret("secret: none, to a backend", &tunnel);
        tunnel.inner_src = generator.bed.backend_mac(generator.inner);
        // The next period but one in the bits of the first byte.
        tunnel.inner_src[0] ^= 0x20;
        generator.without_secret("secret: a backend in a period that is not accepted", &tunnel);
        return;
    }
    if generator.entry == Entry::LanToGateway {
        let probe = generator.bed.probe().bytes();
        let tunnel = Tunnel {
            inner_type: ETHERTYPE,
            inner: probe.to_vec(),
            inner_src: SourceMac::UNKEYED.bytes(),
            ..genuine.clone()
        };
        generator.without_secret("secret: a probe without it", &tunnel);
    }
}
