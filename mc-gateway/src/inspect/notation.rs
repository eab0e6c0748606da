//! Names and notations of the values in the maps, for `inspect`, `trace` and the metrics. Pure.

use std::net::{IpAddr, SocketAddr};

use mc_gateway_common::abi::{self, Addr, V4_PREFIX_BITS};
use mc_gateway_common::liveness::State;
use mc_gateway_common::packet::ip;

use crate::cidr::from_abi_addr;
use crate::resolved::PrefixKey;

/// Name of a liveness state.
#[must_use]
pub const fn state_name(state: Option<State>) -> &'static str {
    match state {
        None => "unprobed",
        Some(State::Alive) => "alive",
        Some(State::HeldDown) => "held-down",
        Some(State::Dead) => "dead",
    }
}

/// A MAC address in the usual form, such as `02:00:00:00:00:01`.
pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Name of a prefix's action.
pub(crate) fn action_name(action: u32) -> String {
    match action {
        abi::ACTION_DELIVER => "deliver".to_owned(),
        abi::ACTION_FORWARD => "forward".to_owned(),
        abi::ACTION_SERVICE => "service".to_owned(),
        abi::ACTION_REPLY => "reply".to_owned(),
        0 => "none".to_owned(),
        other => format!("unknown ({other})"),
    }
}

/// Names of a peer's roles.
pub(crate) fn role_names(flags: u32) -> Vec<&'static str> {
    let known = [
        (abi::PEER_REMOTE_GATEWAY, "remote-gateway"),
        (abi::PEER_LOCAL_GATEWAY, "local-gateway"),
        (abi::PEER_LOCAL_NODE, "local-node"),
        (abi::PEER_ANTREA, "antrea"),
    ];
    let set = known.into_iter().filter(|(flag, _)| flags & flag != 0);
    set.map(|(_, name)| name).collect()
}

/// Whether packets of a peer need its secret.
pub(crate) fn secret_name(peer: &abi::Peer) -> &'static str {
    if peer.flags & abi::PEER_UNKEYED != 0 {
        "not required"
    } else if peer.source_macs == [0; abi::SECRET_SLOTS] {
        "missing"
    } else {
        "required"
    }
}

/// Name of an IP protocol.
pub(crate) fn protocol_name(proto: u32) -> String {
    match u8::try_from(proto) {
        Ok(ip::TCP) => "TCP".to_owned(),
        Ok(ip::UDP) => "UDP".to_owned(),
        _ => proto.to_string(),
    }
}

/// Address and port.
pub(crate) fn format_endpoint(addr: &Addr, port: u16) -> String {
    SocketAddr::new(from_abi_addr(addr), port).to_string()
}

/// Address of a neighbour; `None` if the kernel resolves it.
#[must_use]
pub fn neighbor_addr(via: &abi::Neighbor) -> Option<IpAddr> {
    match via.family {
        abi::Neighbor::V4 => {
            let first: Option<&[u8; 4]> = via.addr.first_chunk();
            first.map(|addr| IpAddr::from(*addr))
        }
        abi::Neighbor::V6 => Some(via.addr.into()),
        _ => None,
    }
}

/// A prefix in CIDR notation.
#[must_use]
pub fn format_prefix(key: &PrefixKey) -> String {
    let addr = from_abi_addr(&key.addr);
    let len = if addr.is_ipv4() {
        key.len.saturating_sub(V4_PREFIX_BITS)
    } else {
        key.len
    };
    format!("{addr}/{len}")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn prefixes_of_both_families_have_their_own_length() {
        let v4 = PrefixKey {
            len: 112,
            addr: "::ffff:10.12.0.0".parse::<Ipv6Addr>().unwrap().octets(),
        };
        assert_eq!(format_prefix(&v4), "10.12.0.0/16");
        let v6 = PrefixKey {
            len: 48,
            addr: "fd00:1::".parse::<Ipv6Addr>().unwrap().octets(),
        };
        assert_eq!(format_prefix(&v6), "fd00:1::/48");
    }
}
