//! Decoder for the input of data path targets: tables, then a frame.

use mc_gateway_common::{
    abi::{CONFIG_DSCP_FIXED, CONFIG_UDP_CHECKSUM},
    maps::MemoryMaps,
    packet::SlicePacket,
};

use crate::fixture::{self, Shape};

/// MTUs of all next hops: unknown, tiny, and around every limit.
const MTUS: [u32; 8] = [0, 68, 576, 1_279, 1_280, 1_300, 1_450, 9_000];
/// Bytes before the frame.
const HEAD_LEN: usize = 4;
/// Maximum number of bytes appended to a frame.
pub(crate) const MAX_FILL: usize = 4_096;

/// The decoded head of an input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input {
    pub(crate) shape: Shape,
    pub(crate) gateway: bool,
    pub(crate) partial_checksum: bool,
    pub(crate) mtu: u32,
    gso_size: u32,
    fill: usize,
    config_flags: u32,
    no_tokens: bool,
}

impl Input {
    /// Decodes the head; `None` if the input is too short.
    pub(crate) fn read(data: &[u8]) -> Option<(Self, &[u8])> {
        let (&[flags, sizes, low, high], rest) = data.split_first_chunk::<HEAD_LEN>()?;
        let shape = Shape {
            inner_v6: flags & 1 != 0,
            outer_v6: flags & 2 != 0,
            vxlan: flags & 4 != 0,
        };
        let mut config_flags = 0;
        if flags & 0x10 != 0 {
            config_flags |= CONFIG_UDP_CHECKSUM;
        }
        if flags & 0x20 != 0 {
            config_flags |= CONFIG_DSCP_FIXED;
        }
        let input = Self {
            shape,
            gateway: flags & 8 != 0,
            partial_checksum: flags & 0x40 != 0,
            mtu: MTUS[usize::from(sizes & 7)],
            gso_size: [0, 0, 500, 1_400][usize::from(sizes >> 3 & 3)],
            fill: usize::from(u16::from_le_bytes([low, high])) % MAX_FILL,
            config_flags,
            no_tokens: sizes & 0x20 != 0,
        };
        Some((input, rest))
    }

    /// The encoded tables: every next hop is probed, and one of them is dead.
    pub(crate) fn tables(&self) -> MemoryMaps {
        let tables = if self.gateway {
            fixture::gateway()
        } else {
            fixture::node()
        };
        let mut tables = self.shape.tables(tables);
        if let Some(config) = &mut tables.config {
            config.flags |= self.config_flags;
            config.tos = 0x28;
            config.detect = 3;
            config.hold_down_ms = 1_000;
        }
        for next_hop in tables.next_hops.values_mut() {
            next_hop.mtu = self.mtu;
        }
        if self.no_tokens {
            tables.icmp_limit.borrow_mut().tokens = 0;
        }
        tables.health.now = 1 << 40;
        for (slot, next_hop) in &tables.next_hops {
            let sent = mc_gateway_common::abi::liveness::ProbeSent {
                id: next_hop.id,
                sequence: 12,
            };
            let seen = mc_gateway_common::abi::liveness::ProbeReply {
                id: next_hop.id,
                sequence: 8 + slot,
                ..Default::default()
            };
            tables.health.sent.insert(*slot, sent);
            tables.health.seen.borrow_mut().insert(*slot, seen);
        }
        tables
    }

    /// The frame with the appended bytes; `None` if it is shorter than an Ethernet header, which no program receives.
    pub(crate) fn packet_with(&self, frame: &[u8]) -> Option<SlicePacket> {
        let mut frame = frame.to_vec();
        frame.extend((0..self.fill).map(|at| at.to_le_bytes()[0]));
        if frame.len() < 14 {
            return None;
        }
        let mut packet = SlicePacket::new(frame);
        packet.set_gso_size(self.gso_size);
        packet.set_checksum_partial(self.partial_checksum);
        Some(packet)
    }

    /// Whether the packet is a GSO packet.
    pub(crate) fn is_gso(&self) -> bool {
        self.gso_size != 0
    }
}
