//! Protocol and port of a traced packet, as the command line names them. Pure.

use std::str::FromStr;

use thiserror::Error;

/// Port where none is given.
const DEFAULT_PORT: u16 = 80;

/// Protocol of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A SYN to this port.
    Tcp(u16),
    /// A datagram to this port.
    Udp(u16),
    /// An echo request.
    Icmp,
}

/// Something that is not a protocol.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not tcp, udp or icmp, with a port as in tcp:443")]
pub struct ProtocolError(String);

impl FromStr for Protocol {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        let error = || ProtocolError(text.to_owned());
        let (name, port) = text.split_once(':').unwrap_or((text, ""));
        let port_or_default = || match port {
            "" => Ok(DEFAULT_PORT),
            port => port.parse().map_err(|_| error()),
        };
        match name.to_ascii_lowercase().as_str() {
            "tcp" => Ok(Self::Tcp(port_or_default()?)),
            "udp" => Ok(Self::Udp(port_or_default()?)),
            "icmp" if port.is_empty() => Ok(Self::Icmp),
            _ => Err(error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_has_an_optional_port() {
        assert_eq!("tcp:443".parse(), Ok(Protocol::Tcp(443)));
        assert_eq!("UDP".parse(), Ok(Protocol::Udp(80)));
        assert_eq!("icmp".parse(), Ok(Protocol::Icmp));
        for bad in ["icmp:8", "tcp:x", "sctp", "", "tcp:70000"] {
            assert!(bad.parse::<Protocol>().is_err(), "{bad}");
        }
    }
}
