//! Forged probes, with the outer source of a peer.

use mc_gateway_common::{
    packet::probe::{ETHERTYPE, Kind, Probe},
    verdict::DropReason::{ProbeMalformed, ProbeNextHop, ProbeStale, ProbeUnsent, UnknownPeer},
};
use mc_test_kit::datapath::packets::Tunnel;

use crate::{
    bed::{NORTH_HOST, STRANGER, between_clusters},
    vector::{ATTACK, Generator},
};

#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn generate(generator: &mut Generator) {
    let sent = generator.bed.probe();
    let reply = Probe {
        kind: Kind::Reply,
        ..sent
    };
    let request = Probe {
        kind: Kind::Request,
        ..sent
    };
    let padded = |bytes: &[u8]| [bytes, ATTACK].concat();
    let tunnel = |generator: &Generator, bytes: &[u8]| Tunnel {
        inner_type: ETHERTYPE,
        inner: bytes.to_vec(),
        ..generator.genuine()
    };
    let bytes = request.bytes();
    for (name, at, value) in [
        ("version 0", 0, 0),
        ("version 2", 0, 2),
        ("kind 0", 1, 0),
        ("kind 5", 1, 5),
        ("kind 255", 1, 255),
    ] {
        let mut changed = bytes;
        changed[at] = value;
        let probe = tunnel(generator, &padded(&changed));
        generator.drop(format!("probe of {name}"), &probe, ProbeMalformed);
    }
    for len in [20, 24, 39] {
        let probe = tunnel(generator, &bytes[..len]);
        generator.drop(format!("probe of {len} bytes"), &probe, ProbeMalformed);
    }
    for (name, probe, reason) in [
        (
            "never sent",
            Probe {
                sequence: sent.sequence.wrapping_add(1 << 20),
                ..reply
            },
            ProbeUnsent,
        ),
        ("answered already", reply, ProbeStale),
        (
            "of long ago",
            Probe {
                sequence: sent.sequence.wrapping_sub(1),
                ..reply
            },
            ProbeStale,
        ),
        (
            "of another next hop",
            Probe {
                id: sent.id ^ 1,
                ..reply
            },
            ProbeNextHop,
        ),
        (
            "of no slot",
            Probe {
                slot: u32::MAX,
                ..reply
            },
            ProbeNextHop,
        ),
        (
            "of an unused slot",
            Probe {
                slot: 16_000,
                ..reply
            },
            ProbeNextHop,
        ),
        (
            "of the future",
            Probe {
                sent_at: u64::MAX,
                ..reply
            },
            ProbeMalformed,
        ),
        (
            "of another size",
            Probe {
                kind: Kind::SizeReply,
                size: 9_000,
                ..reply
            },
            ProbeMalformed,
        ),
    ] {
        let reply = tunnel(generator, &padded(&probe.bytes()));
        generator.drop(format!("probe reply {name}"), &reply, reason);
    }
    for (name, host, reason) in [
        ("of another member", NORTH_HOST, ProbeNextHop),
        ("of a stranger", STRANGER, UnknownPeer),
    ] {
        let mut reply = tunnel(generator, &padded(&reply.bytes()));
        reply.src = between_clusters(generator.bed.outer, host).addr();
        generator.drop(format!("probe reply {name}"), &reply, reason);
    }
    let mut request = tunnel(generator, &padded(&bytes));
    request.src = between_clusters(generator.bed.outer, STRANGER).addr();
    generator.drop("probe of a stranger", &request, UnknownPeer);
}
