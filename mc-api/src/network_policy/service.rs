//! Ports and protocols of a rule.

use serde_json::Value;

use super::{
    error::{Errors, PolicyError},
    fields::{Fields, Rejected},
};

/// A protocol with ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum L4Protocol {
    /// TCP, the default.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// An entry of `ports` or `protocols`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// Destination ports `first..=last`; 0 to 65535 without a port.
    Ports {
        /// The protocol.
        protocol: L4Protocol,
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
    },
    /// A port of the destination's containers.
    Named {
        /// The protocol.
        protocol: L4Protocol,
        /// The name.
        name: String,
    },
    /// ICMP messages, and `ICMPv6` messages with the same numbers.
    Icmp {
        /// The type, or all of them.
        kind: Option<u8>,
        /// The code, or all of them; never without a type.
        code: Option<u8>,
    },
    /// An entry with an error: it matches nothing.
    Unsupported,
}

// === impl L4Protocol ===

impl L4Protocol {
    /// The protocol of this name in Kubernetes.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }

    /// Its number in IP headers.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

/// The services of a rule; `None` for all.
pub(super) fn parse_services(
    rule: &Fields<'_>,
    errors: &mut Errors,
) -> Result<Option<Vec<Service>>, Rejected> {
    let (ports, protocols) = (rule.list("ports", errors)?, rule.list("protocols", errors)?);
    if ports.is_empty() && protocols.is_empty() {
        return Ok(None);
    }
    let mut services = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let path = rule.path_of(&format!("ports[{index}]"));
        services.push(parse_port(port, path, errors).unwrap_or(Service::Unsupported));
    }
    for (index, protocol) in protocols.iter().enumerate() {
        let path = rule.path_of(&format!("protocols[{index}]"));
        services.push(parse_protocol(protocol, path, errors).unwrap_or(Service::Unsupported));
    }
    Ok(Some(services))
}

fn parse_port(value: &Value, path: String, errors: &mut Errors) -> Result<Service, Rejected> {
    let port = Fields::new(value, path, errors)?;
    port.only(
        &["protocol", "port", "endPort"],
        &["sourcePort", "sourceEndPort"],
        errors,
    )?;
    let protocol = match port.text("protocol", errors)? {
        None => L4Protocol::default(),
        Some(name) => L4Protocol::from_name(name)
            .ok_or_else(|| port.reject("protocol", PolicyError::Protocol, errors))?,
    };
    let number = match port.get("port") {
        Some(Value::String(name)) if !name.is_empty() => {
            port.excludes("endPort", &["port"], errors)?;
            // The name is one of the destination's containers, which differ.
            return Ok(Service::Named {
                protocol,
                name: name.clone(),
            });
        }
        _ => parse_number(&port, "port", errors)?,
    };
    match (number, parse_number(&port, "endPort", errors)?) {
        (None, None) => Ok(Service::Ports {
            protocol,
            first: 0,
            last: u16::MAX,
        }),
        (None, Some(_)) => Err(port.reject("port", PolicyError::Missing, errors)),
        (Some(first), Some(last)) if last < first => {
            Err(port.reject("endPort", PolicyError::ReversedRange { port: first }, errors))
        }
        (Some(first), last) => Ok(Service::Ports {
            protocol,
            first,
            last: last.unwrap_or(first),
        }),
    }
}

fn parse_number(port: &Fields<'_>, key: &str, errors: &mut Errors) -> Result<Option<u16>, Rejected> {
    let Some(value) = port.get(key) else {
        return Ok(None);
    };
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
    match number.filter(|number| *number > 0) {
        None => Err(port.reject(key, PolicyError::Port, errors)),
        number => Ok(number),
    }
}

fn parse_protocol(value: &Value, path: String, errors: &mut Errors) -> Result<Service, Rejected> {
    let protocol = Fields::new(value, path, errors)?;
    protocol.only(&["icmp"], &["igmp"], errors)?;
    let Some(icmp) = protocol.get("icmp") else {
        return Err(protocol.reject("icmp", PolicyError::Missing, errors));
    };
    let icmp = Fields::new(icmp, protocol.path_of("icmp"), errors)?;
    icmp.only(&["icmpType", "icmpCode"], &[], errors)?;
    let (kind, code) = (
        parse_byte(&icmp, "icmpType", errors)?,
        parse_byte(&icmp, "icmpCode", errors)?,
    );
    if kind.is_none() && code.is_some() {
        return Err(icmp.reject("icmpType", PolicyError::Missing, errors));
    }
    Ok(Service::Icmp { kind, code })
}

fn parse_byte(icmp: &Fields<'_>, key: &str, errors: &mut Errors) -> Result<Option<u8>, Rejected> {
    let Some(value) = icmp.get(key) else {
        return Ok(None);
    };
    let number = value.as_u64().and_then(|number| u8::try_from(number).ok());
    number
        .map(Some)
        .ok_or_else(|| icmp.reject(key, PolicyError::Icmp, errors))
}
