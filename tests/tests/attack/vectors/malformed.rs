//! Frames with the outer source of a peer whose headers are truncated, inconsistent or not supported.

use mc_gateway_common::verdict::DropReason::{
    InnerMalformed, InnerProtocol, OuterChecksum, OuterFragment, Truncated, TtlExceeded, TunnelHeader,
    TunnelOptions,
};
use mc_test_kit::datapath::packets::{Ip, Tunnel};
use mc_tests::topology::{Family, Format};

use crate::{
    bed::{STRANGER, between_clusters, header_len},
    vector::{ATTACK, Expected, Generator, POD_PORT, datagram},
};

/// Length of the outer Ethernet header, of the tunnel headers behind the outer IP header, and of the UDP header.
const ETH: usize = 14;
const UDP: usize = 8;
const TUNNEL: usize = UDP + 8 + ETH;

pub(super) fn generate(generator: &mut Generator) {
    truncated(generator);
    fragments(generator);
    outer_headers(generator);
    match generator.bed.format {
        Format::Geneve => geneve(generator),
        Format::Vxlan => vxlan(generator),
    }
    inner_headers(generator);
}

fn truncated(generator: &mut Generator) {
    let udp = ETH + header_len(generator.bed.outer);
    let inner = udp + TUNNEL;
    let inner_end = inner + header_len(generator.inner);
    let full = generator.genuine();
    let mut stranger = full.clone();
    stranger.src = between_clusters(generator.bed.outer, STRANGER).addr();
    let len = full.frame().len();
    for (name, at, expected) in [
        ("behind Ethernet", ETH, Expected::Stack),
        ("in the IP header", udp - 1, Expected::Stack),
        ("behind the IP header", udp, Expected::Stack),
        ("in the UDP port", udp + 3, Expected::Stack),
        ("behind the UDP port", udp + 4, Expected::Drop(Truncated)),
        ("behind the UDP header", udp + UDP, Expected::Drop(Truncated)),
        ("in the tunnel header", udp + UDP + 5, Expected::Drop(Truncated)),
        (
            "behind the tunnel header",
            udp + UDP + 8,
            Expected::Drop(Truncated),
        ),
        (
            "in the inner MAC address",
            udp + UDP + 8 + 3,
            Expected::Drop(Truncated),
        ),
        (
            "behind the inner MAC addresses",
            inner - 2,
            Expected::Drop(Truncated),
        ),
        ("behind inner Ethernet", inner, Expected::Drop(Truncated)),
        ("in the inner IP header", inner + 19, Expected::Drop(Truncated)),
        (
            "behind the inner IP header",
            inner_end,
            Expected::Drop(InnerMalformed),
        ),
        (
            "in the inner UDP header",
            inner_end + 4,
            Expected::Drop(InnerMalformed),
        ),
        ("by one byte", len - 1, Expected::Drop(InnerMalformed)),
    ] {
        let cut = |tunnel: &Tunnel| {
            let mut frame = tunnel.frame();
            frame.truncate(at);
            frame
        };
        generator.frame(format!("truncated {name}"), cut(&full), expected);
        if expected == Expected::Drop(Truncated) {
            // Another user of the port may send a short datagram.
            generator.frame(
                format!("a stranger's, truncated {name}"),
                cut(&stranger),
                Expected::Stack,
            );
        }
    }
}

fn fragments(generator: &mut Generator) {
    let stranger = between_clusters(generator.bed.outer, STRANGER).addr();
    // Offset in units of eight bytes, and whether more fragments follow.
    for (name, offset, more) in [
        ("first", 0, true),
        ("middle", 30, true),
        ("last", 60, false),
        ("overlapping the headers", 1, true),
        ("behind the longest packet", 0x1fff, false),
    ] {
        let mut tunnel = generator.genuine();
        set_fragment(&mut tunnel, offset, more);
        let first = if offset == 0 {
            Expected::Drop(OuterFragment)
        } else {
            Expected::Stack
        };
        generator.frame(format!("outer fragment {name}"), tunnel.frame(), first);
        tunnel.src = stranger;
        generator.frame(
            format!("a stranger's outer fragment {name}"),
            tunnel.frame(),
            Expected::Stack,
        );
    }
    if generator.bed.outer == Family::V6 {
        // RFC 6946.
        let mut tunnel = generator.genuine();
        set_fragment(&mut tunnel, 0, false);
        generator.drop("outer atomic fragment", &tunnel, OuterFragment);
    }
}

fn set_fragment(tunnel: &mut Tunnel, offset: u16, more: bool) {
    if tunnel.src.is_ipv4() {
        tunnel.frags = offset | if more { 0x2000 } else { 0 };
        return;
    }
    let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
    tunnel.outer_options = vec![tunnel.outer_next, 0, high, low, 1, 2, 3, 4];
    tunnel.outer_next = 44;
}

fn outer_headers(generator: &mut Generator) {
    for ttl in [0, 1] {
        let mut tunnel = generator.genuine();
        tunnel.ttl = ttl;
        generator.drop(format!("outer TTL {ttl}"), &tunnel, TtlExceeded);
    }
    if generator.bed.outer == Family::V4 {
        for error in [1, 0x8000] {
            let mut tunnel = generator.genuine();
            tunnel.outer_checksum_error = error;
            generator.drop(
                format!("outer checksum off by {error:#x}"),
                &tunnel,
                OuterChecksum,
            );
        }
    }
    for (name, proto) in [("TCP", 6), ("GRE", 47), ("UDP-Lite", 136), ("none", 59)] {
        let mut tunnel = generator.genuine();
        tunnel.outer_next = proto;
        generator.frame(format!("outer protocol {name}"), tunnel.frame(), Expected::Stack);
    }
    for port in [0, 6080, 8472, 65_535] {
        let mut tunnel = generator.genuine();
        tunnel.dst_port = port;
        generator.frame(format!("outer port {port}"), tunnel.frame(), Expected::Stack);
    }
    let mut tunnel = generator.genuine();
    tunnel.udp_checksum = true;
    if tunnel.src.is_ipv4() {
        tunnel.outer_options = vec![1; 4];
        generator.frame("outer IP options", tunnel.frame(), Expected::Listener);
    } else {
        // Destination options with padding.
        tunnel.outer_options = vec![tunnel.outer_next, 0, 1, 4, 0, 0, 0, 0];
        tunnel.outer_next = 60;
        generator.frame("outer extension header", tunnel.frame(), Expected::Listener);
    }
}

fn geneve(generator: &mut Generator) {
    for (name, header) in [
        ("version 1", [0x40, 0]),
        ("version 2", [0x80, 0]),
        ("version 3", [0xc0, 0]),
        ("control packet", [0, 0x80]),
        ("critical bit", [0, 0x40]),
        ("control packet with critical bit", [0, 0xc0]),
    ] {
        let mut tunnel = generator.genuine();
        tunnel.geneve = header;
        generator.drop(format!("Geneve {name}"), &tunnel, TunnelHeader);
    }
    for words in [1, 2, 62, 63] {
        let mut tunnel = generator.genuine();
        tunnel.geneve = [words, 0];
        tunnel.geneve_options = vec![0; usize::from(words) * 4];
        generator.drop(format!("Geneve options of {words} words"), &tunnel, TunnelOptions);
    }
    let mut tunnel = generator.genuine();
    (tunnel.geneve, tunnel.geneve_options) = ([2, 0x40], vec![1, 2, 0x83, 1, 0, 0, 0, 0]);
    generator.drop("Geneve critical option", &tunnel, TunnelOptions);
    let mut tunnel = generator.genuine();
    (tunnel.geneve, tunnel.udp_checksum) = ([63, 0], true);
    // What follows the header is unknown: it may belong to another user of the port.
    generator.frame(
        "Geneve options longer than the packet",
        tunnel.frame(),
        Expected::Listener,
    );
    for (name, kind) in [("IPv4", 0x0800), ("IPv6", 0x86dd), ("NSH", 0x894f), ("none", 0)] {
        let mut tunnel = generator.genuine();
        (tunnel.geneve_type, tunnel.udp_checksum) = (kind, true);
        generator.frame(
            format!("Geneve protocol type {name}"),
            tunnel.frame(),
            Expected::Listener,
        );
    }
}

fn vxlan(generator: &mut Generator) {
    let flags_at = ETH + header_len(generator.bed.outer) + UDP;
    for (name, flags) in [
        ("none", [0; 4]),
        ("all", [0xff; 4]),
        ("GPE", [0x0c, 0, 0, 3]),
        ("group policy", [0x88, 0, 0, 7]),
        ("OAM", [0x09, 0, 0, 0]),
        ("reserved byte", [8, 0, 0, 1]),
        ("only reserved", [0xf7, 0, 0, 0]),
    ] {
        let mut frame = generator.genuine().frame();
        frame[flags_at..flags_at + 4].copy_from_slice(&flags);
        generator.frame(format!("VXLAN flags {name}"), frame, Expected::Drop(TunnelHeader));
    }
}

fn inner_headers(generator: &mut Generator) {
    for (name, kind) in [
        ("ARP", 0x0806),
        ("a VLAN", 0x8100),
        ("a double tag", 0x88a8),
        ("MPLS", 0x8847),
        ("PPPoE", 0x8864),
        ("LLDP", 0x88cc),
        ("a frame in a frame", 0x6558),
        ("a length", 0x0040),
    ] {
        let mut tunnel = generator.genuine();
        tunnel.inner_type = kind;
        generator.drop(format!("inner frame of {name}"), &tunnel, InnerProtocol);
    }
    let mut tunnel = generator.genuine();
    tunnel.inner_type = if generator.inner == Family::V4 {
        0x86dd
    } else {
        0x0800
    };
    generator.drop("inner packet of the other family", &tunnel, InnerMalformed);
    let mut multicast = generator.genuine();
    (multicast.mac, multicast.udp_checksum) = ([0xff; 6], true);
    generator.frame("inner broadcast frame", multicast.frame(), Expected::Listener);
    let mut foreign = generator.genuine();
    (foreign.mac, foreign.udp_checksum) = ([0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xf1], true);
    generator.frame("inner frame of a CNI", foreign.frame(), Expected::Listener);
    let (src, dst) = generator.ends();
    let packet = || datagram(src, dst, POD_PORT, ATTACK);
    let mut malformed: Vec<(&str, Ip)> = Vec::new();
    let mut change = |name, set: &dyn Fn(&mut Ip)| {
        let mut packet = packet();
        set(&mut packet);
        malformed.push((name, packet));
    };
    let full = packet().bytes().len();
    let field = full - if generator.inner == Family::V6 { 40 } else { 0 };
    let field = u16::try_from(field).expect("a short packet");
    change("length too large by one", &|packet| {
        packet.total = Some(field + 1);
    });
    change("largest length", &|packet| packet.total = Some(0xffff));
    if generator.inner == Family::V4 {
        change("length 0", &|packet| packet.total = Some(0));
        change("length below the header's", &|packet| packet.total = Some(19));
        for (name, vihl) in [
            ("version 0", 0x05),
            ("version 5", 0x55),
            ("version 6", 0x65),
            ("header length 0", 0x40),
            ("header length 16", 0x44),
        ] {
            change(name, &|packet| packet.vihl = Some(vihl));
        }
    }
    for (name, packet) in malformed {
        let tunnel = generator.carrying(&packet);
        generator.drop(format!("inner {name}"), &tunnel, InnerMalformed);
    }
    if generator.inner == Family::V6 {
        for version in [0x00, 0x40, 0x50, 0xf0] {
            let mut tunnel = generator.genuine();
            tunnel.inner[0] = version;
            generator.drop(
                format!("inner version {:x}", version >> 4),
                &tunnel,
                InnerMalformed,
            );
        }
    }
}
