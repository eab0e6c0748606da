//! The synthetic packet of a trace. Pure.

use std::net::IpAddr;

use bytes::{BufMut as _, Bytes, BytesMut};
use mc_gateway_common::abi::service::Backend;
use mc_gateway_common::abi::{Addr, Config, SourceMac};
use mc_gateway_common::flow;
use mc_gateway_common::packet::encap::{Encap, HOP_LIMIT};
use mc_gateway_common::packet::tunnel::Format;
use mc_gateway_common::packet::{SlicePacket, eth, ip};

use super::protocol::Protocol;
use crate::cidr::to_abi_addr;
use crate::inspect::snapshot::Snapshot;

/// TTL of the packet, decremented once by the node.
const TTL: u8 = 63;
/// Source port, from the dynamic range (RFC 6335).
const SOURCE_PORT: u16 = 54_321;
/// Content after the transport header.
const PAYLOAD: [u8; 8] = *b"mc-trace";

/// Addresses and protocol of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceFlow {
    /// Source.
    pub src: IpAddr,
    /// Destination, of the same family.
    pub dst: IpAddr,
    /// Protocol and port.
    pub protocol: Protocol,
    /// Label identity of a sender in another cluster, 24 bits.
    pub identity: u32,
}

impl TraceFlow {
    const fn protocol_number(&self) -> u8 {
        match (self.protocol, self.dst) {
            (Protocol::Tcp(_), _) => ip::TCP,
            (Protocol::Udp(_), _) => ip::UDP,
            (Protocol::Icmp, IpAddr::V4(_)) => ip::ICMP,
            (Protocol::Icmp, IpAddr::V6(_)) => ip::ICMPV6,
        }
    }

    /// Protocol number and destination port, where there are any.
    #[must_use]
    pub const fn proto_and_port(&self) -> Option<(u8, u16)> {
        match self.protocol {
            Protocol::Tcp(port) => Some((ip::TCP, port)),
            Protocol::Udp(port) => Some((ip::UDP, port)),
            Protocol::Icmp => None,
        }
    }

    /// The first Pod of this node behind the destination Service.
    #[must_use]
    pub fn backend<'s>(&self, snapshot: &'s Snapshot) -> Option<(u64, &'s Backend)> {
        let (proto, port) = self.proto_and_port()?;
        let mut backends = snapshot.contents.services.backends.iter();
        backends
            .find(|(_, backend)| {
                backend.group == 0
                    && (backend.service, backend.service_port, backend.proto)
                        == (to_abi_addr(self.dst), port, proto)
            })
            .map(|(id, backend)| (*id, backend))
    }

    const fn ethertype(&self) -> u16 {
        if self.dst.is_ipv4() { eth::IPV4 } else { eth::IPV6 }
    }

    fn transport_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        match self.protocol {
            Protocol::Tcp(port) => {
                bytes.put_u16(SOURCE_PORT);
                bytes.put_u16(port);
                // Sequence and acknowledgement, 5 words, SYN, window, checksum, urgent pointer.
                bytes.put_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
            }
            Protocol::Udp(port) => {
                bytes.put_u16(SOURCE_PORT);
                bytes.put_u16(port);
                bytes.put_slice(&[0, 16, 0, 0]);
                bytes.put_slice(&PAYLOAD);
            }
            Protocol::Icmp => {
                let echo = if self.dst.is_ipv4() { 8 } else { 128 };
                bytes.put_slice(&[echo, 0, 0, 0, 0x7a, 0x69, 0, 1]);
                bytes.put_slice(&PAYLOAD);
            }
        }
        bytes.freeze()
    }

    /// The IP packet.
    #[must_use]
    pub fn ip_packet(&self) -> Bytes {
        let transport = self.transport_bytes();
        let length = u16::try_from(transport.len()).unwrap_or(u16::MAX);
        let mut packet = BytesMut::new();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let total = length.saturating_add(20).to_be_bytes();
                let proto = self.protocol_number();
                packet.put_slice(&ip::v4_header(0, total, TTL, proto, src.octets(), dst.octets()));
            }
            (src, dst) => {
                packet.put_slice(&[0x60, 0, 0, 0]);
                packet.put_u16(length);
                packet.put_slice(&[self.protocol_number(), TTL]);
                packet.put_slice(&to_abi_addr(src));
                packet.put_slice(&to_abi_addr(dst));
            }
        }
        packet.put(transport);
        packet.freeze()
    }

    /// Its hash, from the same function the programs use.
    #[must_use]
    pub fn hash(&self) -> u32 {
        let packet = self.ip_packet();
        let header = match self.dst {
            IpAddr::V4(_) => packet.first_chunk().map(ip::Header::v4),
            IpAddr::V6(_) => packet.first_chunk().map(ip::Header::v6),
        };
        let transport = self.transport_bytes();
        let ports = transport
            .first_chunk()
            .map_or(0, |ports| u32::from_le_bytes(*ports));
        let frame = [&[0; 14][..], &packet].concat();
        header.map_or(0, |header| {
            flow::hash(&SlicePacket::new(frame), &header, eth::END, ports)
        })
    }

    /// The frame as it leaves through `mc0`.
    #[must_use]
    pub fn mc0_frame(&self, config: &Config) -> Bytes {
        frame(
            config.mc0_mac,
            config.mc0_mac,
            self.ethertype(),
            &self.ip_packet(),
        )
    }

    /// The frame from `peer` to `local`, both of one family, with the inner source MAC address `mac`.
    #[must_use]
    pub fn underlay_frame(&self, config: &Config, peer: Addr, local: Addr, mac: SourceMac) -> Bytes {
        let inner = self.ip_packet();
        let outer = Encap {
            format: Format::from_config(config),
            src: peer.into(),
            dst: local.into(),
            tos: 0,
            ttl: HOP_LIMIT,
            hash: self.hash(),
            port: config.port,
            inner_sum: None,
            vni: self.identity,
            inner_src: mac,
            inner_type: self.ethertype(),
            inner_len: u32::try_from(inner.len()).unwrap_or(u32::MAX),
        };
        let mut packet = BytesMut::new();
        let ethertype = if ip::is_v4(&peer) {
            packet.put_slice(&outer.over_v4().0);
            eth::IPV4
        } else {
            packet.put_slice(&outer.over_v6().0);
            eth::IPV6
        };
        packet.put(inner);
        frame(config.mc0_mac, config.mc0_mac, ethertype, &packet)
    }
}

fn frame(dst: eth::Mac, src: eth::Mac, ethertype: u16, packet: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(packet.len().saturating_add(14));
    frame.put_slice(&dst);
    frame.put_slice(&src);
    frame.put_u16(ethertype);
    frame.put_slice(packet);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_both_families_are_valid() {
        for (src, dst) in [("10.11.0.5", "10.12.0.5"), ("fd00:1::5", "fd00:2::5")] {
            for protocol in [Protocol::Tcp(80), Protocol::Udp(53), Protocol::Icmp] {
                let flow = TraceFlow {
                    src: src.parse().unwrap(),
                    dst: dst.parse().unwrap(),
                    protocol,
                    identity: 0,
                };
                let packet = flow.ip_packet();
                let header = if flow.dst.is_ipv4() {
                    ip::Header::v4(packet.first_chunk().unwrap())
                } else {
                    ip::Header::v6(packet.first_chunk().unwrap())
                };
                assert!(header.fits(u32::try_from(packet.len()).unwrap()), "{flow:?}");
                assert_eq!(
                    (header.src, header.dst),
                    (to_abi_addr(flow.src).into(), to_abi_addr(flow.dst).into())
                );
            }
        }
    }
}
