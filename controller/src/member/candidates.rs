//! What the Nodes say of themselves as gateways: addresses, weight, condition. Pure.

use std::{fmt, net::IpAddr};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::{
    api::{
        config::GatewayIpPrecedence,
        gateway::{DEFAULT_WEIGHT, Gateway},
        names, validation,
    },
    plan::Plan,
    world::{MemberWorld, get},
};

/// A Node that may be gateway.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: String,
    /// Whether it can serve, and whether it is meant to.
    pub condition: Condition,
    /// The address other clusters send to.
    pub gateway_ip: IpAddr,
    /// The address the other Nodes of this cluster send to.
    pub internal_ip: IpAddr,
    /// Its share of the flows, 1 to 255.
    pub weight: u32,
    /// The Gateway it is already.
    pub old: Option<&'a Gateway>,
}

/// Whether a Node can serve, and whether it is meant to; the better the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// Ready.
    Serving,
    /// Ready, but cordoned: somebody is about to take it away.
    Cordoned,
    /// Not Ready: nobody knows, its data path may well be working.
    NotReady,
    /// Not Ready and cordoned.
    Leaving,
}

/// What is wrong with a Node's word.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// No address of the wanted type.
    #[error("status.addresses has no IPv4 {wanted}; no Gateway is made of this Node")]
    NoAddress {
        /// `InternalIP` or `ExternalIP`.
        wanted: &'static str,
    },
    /// The annotation is no usable address.
    #[error(
        "annotation {}: {cause}; no Gateway is made of this Node",
        names::ANNOTATION_GATEWAY_IP
    )]
    Annotation {
        /// What is wrong with it.
        cause: validation::Invalid,
    },
    /// The annotation is not an IPv4 address.
    #[error(
        "annotation {}: {value:?} is not IPv4; no Gateway is made of this Node",
        names::ANNOTATION_GATEWAY_IP
    )]
    NotIpv4 {
        /// As given.
        value: String,
    },
    /// The annotation is no weight; this alone keeps no Node from being gateway.
    #[error(
        "annotation {}: {value:?} is not a weight from 1 to 255; {DEFAULT_WEIGHT} is used",
        names::ANNOTATION_GATEWAY_WEIGHT
    )]
    Weight {
        /// As given.
        value: String,
    },
}

// === impl Condition ===

impl Condition {
    /// Whether the Node is known to work.
    #[must_use]
    pub fn ready(self) -> bool {
        matches!(self, Self::Serving | Self::Cordoned)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serving => "Ready",
            Self::Cordoned => "cordoned",
            Self::NotReady => "not Ready",
            Self::Leaving => "cordoned and not Ready",
        })
    }
}

/// The annotated Nodes with usable addresses, by name.
pub fn read<'a>(world: &'a MemberWorld, plan: &mut Plan) -> Vec<Candidate<'a>> {
    let mut candidates = vec![];
    for node in world.nodes.values().filter(|n| is_candidate(n)) {
        let name = node.name_any();
        let subject = format!("Node {name}");
        let (gateway_ip, internal_ip) = match addresses(node, world.config.precedence) {
            Ok(both) => both,
            Err(unfit) => {
                plan.notice(subject, unfit.to_string());
                continue;
            }
        };
        let weight = weight(node).unwrap_or_else(|unfit| {
            plan.notice(subject, unfit.to_string());
            DEFAULT_WEIGHT
        });
        candidates.push(Candidate {
            condition: condition(node),
            gateway_ip,
            internal_ip,
            weight,
            old: get(&world.gateways, &world.namespace, &name).map(AsRef::as_ref),
            name,
        });
    }
    candidates
}

fn is_candidate(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_none() && node.annotations().contains_key(names::ANNOTATION_GATEWAY)
}

fn condition(node: &Node) -> Condition {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref());
    let ready = conditions
        .unwrap_or_default()
        .iter()
        .any(|c| c.type_ == "Ready" && c.status == "True");
    let cordoned = node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true);
    match (ready, cordoned) {
        (true, false) => Condition::Serving,
        (true, true) => Condition::Cordoned,
        (false, false) => Condition::NotReady,
        (false, true) => Condition::Leaving,
    }
}

/// The gateway IP and the internal IP of a Node.
fn addresses(node: &Node, precedence: GatewayIpPrecedence) -> Result<(IpAddr, IpAddr), Unfit> {
    let internal = address(node, "InternalIP").ok_or(Unfit::NoAddress { wanted: "InternalIP" })?;
    let gateway = match (node.annotations().get(names::ANNOTATION_GATEWAY_IP), precedence) {
        (Some(value), _) => match validation::gateway_ip(value) {
            Ok(ip) if ip.is_ipv4() => ip,
            Ok(_) => return Err(Unfit::NotIpv4 { value: value.clone() }),
            Err(cause) => return Err(Unfit::Annotation { cause }),
        },
        (None, GatewayIpPrecedence::Internal) => internal,
        (None, GatewayIpPrecedence::External) => {
            address(node, "ExternalIP").ok_or(Unfit::NoAddress { wanted: "ExternalIP" })?
        }
    };
    Ok((gateway, internal))
}

fn address(node: &Node, wanted: &str) -> Option<IpAddr> {
    let all = node
        .status
        .as_ref()
        .and_then(|s| s.addresses.as_deref())
        .unwrap_or_default();
    all.iter()
        .filter(|a| a.type_ == wanted)
        .filter_map(|a| validation::gateway_ip(&a.address).ok())
        .find(IpAddr::is_ipv4)
}

fn weight(node: &Node) -> Result<u32, Unfit> {
    let Some(value) = node.annotations().get(names::ANNOTATION_GATEWAY_WEIGHT) else {
        return Ok(DEFAULT_WEIGHT);
    };
    // `parse` alone would take "+7".
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    let weight = value.parse::<u8>().ok().filter(|w| digits && *w > 0);
    weight
        .map(u32::from)
        .ok_or_else(|| Unfit::Weight { value: value.clone() })
}
