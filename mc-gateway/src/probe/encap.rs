//! Encapsulation of probes, as the payload of a UDP socket. Pure.

use bytes::{BufMut as _, Bytes, BytesMut};
use mc_gateway_common::abi::IDENTITY_HOST;
use mc_gateway_common::packet::{eth, probe, probe::Probe, tunnel};

/// Encapsulation shared by all probes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeEncap {
    /// Tunnel header in use.
    pub(super) format: tunnel::Format,
}

/// Length of an outer IP header without options or extensions, plus UDP.
pub(super) const fn outer_header_len(v6: bool) -> u32 {
    (if v6 { 40 } else { 20 }) + 8
}

impl ProbeEncap {
    /// The UDP payload of a probe with the inner source address `mac`, padded so that the outer IP packet
    /// has `probe.size` bytes where that is more than the probe needs.
    pub(super) fn encode(self, probe: &Probe, mac: eth::Mac, v6: bool) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_slice(&self.format.header(IDENTITY_HOST));
        bytes.put_slice(&eth::MULTICLUSTER_MAC);
        bytes.put_slice(&mac);
        bytes.put_u16(probe::ETHERTYPE);
        bytes.put_slice(&probe.bytes());
        let wanted = u32::from(probe.size).saturating_sub(outer_header_len(v6));
        let wanted = usize::try_from(wanted).unwrap_or_default();
        if bytes.len() < wanted {
            bytes.resize(wanted, 0);
        }
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::packet::probe::Kind;

    use super::*;

    const DRESS: ProbeEncap = ProbeEncap {
        format: tunnel::Format::Geneve,
    };
    const MAC: eth::Mac = [2, 0, 0, 0, 0, 1];

    fn probe(size: u16) -> Probe {
        Probe {
            kind: Kind::SizeRequest,
            size,
            slot: 1,
            id: 2,
            sequence: 3,
            sent_at: 4,
        }
    }

    #[test]
    fn a_size_probe_has_its_size_on_the_wire() {
        assert_eq!(DRESS.encode(&probe(1_500), MAC, false).len(), 1_472);
        assert_eq!(DRESS.encode(&probe(1_500), MAC, true).len(), 1_452);
        assert_eq!(DRESS.encode(&probe(0), MAC, false).len(), 8 + 14 + 40);
    }

    #[test]
    fn a_multicluster_frame_follows_the_tunnel_header() {
        let bytes = DRESS.encode(&probe(0), MAC, false);
        assert_eq!(bytes[2..4], [0x65, 0x58]);
        assert_eq!(bytes[8..14], eth::MULTICLUSTER_MAC);
        assert_eq!(bytes[14..20], MAC);
        assert_eq!(bytes[20..22], [0x88, 0xb5]);
    }
}
