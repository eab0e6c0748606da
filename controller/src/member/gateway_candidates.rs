//! Gateway eligibility of Nodes: addresses, weight, health. Pure.

use std::{fmt, net::IpAddr};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mc_api::{
    config::GatewayIpPrecedence,
    gateway::{DEFAULT_WEIGHT, Gateway},
    names, validation,
};

use crate::{
    issue_code::IssueCode,
    plan::Plan,
    snapshot::{MemberSnapshot, get},
};

/// A Node that may become a gateway.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: String,
    /// Its readiness and schedulability.
    pub health: NodeHealth,
    /// The tunnel endpoint for other clusters.
    pub gateway_ip: IpAddr,
    /// The tunnel endpoint for the other Nodes of this cluster.
    pub internal_ip: IpAddr,
    /// Its share of the flows, 1 to 255.
    pub weight: u32,
    /// Its present Gateway.
    pub existing: Option<&'a Gateway>,
}

/// Readiness and schedulability of a Node, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeHealth {
    /// Ready.
    Ready,
    /// Ready, but cordoned: it is about to be removed.
    Cordoned,
    /// Not Ready; its data path may still work.
    NotReady,
    /// Not Ready and cordoned.
    CordonedNotReady,
}

/// The reason why a Node is ineligible, or its weight ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IneligibleReason {
    /// No address of the required type.
    #[error("status.addresses has no IPv4 {address_type}; this Node cannot be a gateway")]
    NoAddress {
        /// `InternalIP` or `ExternalIP`.
        address_type: &'static str,
    },
    /// The annotation is not a valid address.
    #[error(
        "annotation {}: {cause}; this Node cannot be a gateway",
        names::ANNOTATION_GATEWAY_IP
    )]
    Annotation {
        /// The error.
        cause: validation::ValidationError,
    },
    /// The annotation is not an IPv4 address.
    #[error(
        "annotation {}: {value:?} is not IPv4; this Node cannot be a gateway",
        names::ANNOTATION_GATEWAY_IP
    )]
    NotIpv4 {
        /// The value.
        value: String,
    },
    /// The annotation is not a weight; the Node remains eligible.
    #[error(
        "annotation {}: {value:?} is not a weight from 1 to 255; {DEFAULT_WEIGHT} is used",
        names::ANNOTATION_GATEWAY_WEIGHT
    )]
    Weight {
        /// The value.
        value: String,
    },
}

// === impl NodeHealth ===

impl NodeHealth {
    /// The health of a Node.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref());
        let ready = conditions
            .unwrap_or_default()
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        let cordoned = node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true);
        match (ready, cordoned) {
            (true, false) => Self::Ready,
            (true, true) => Self::Cordoned,
            (false, false) => Self::NotReady,
            (false, true) => Self::CordonedNotReady,
        }
    }

    /// Whether the Node is Ready.
    #[must_use]
    pub fn is_ready(self) -> bool {
        matches!(self, Self::Ready | Self::Cordoned)
    }
}

impl fmt::Display for NodeHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "Ready",
            Self::Cordoned => "cordoned",
            Self::NotReady => "not Ready",
            Self::CordonedNotReady => "cordoned and not Ready",
        })
    }
}

/// The annotated Nodes with valid addresses, by name.
pub fn candidates<'a>(snapshot: &'a MemberSnapshot, plan: &mut Plan) -> Vec<Candidate<'a>> {
    let mut candidates = vec![];
    for node in snapshot.nodes.values().filter(|n| is_candidate(n)) {
        let name = node.name_any();
        let subject = format!("Node {name}");
        let (gateway_ip, internal_ip) = match addresses(node, snapshot.config.gateway_ip_precedence) {
            Ok(both) => both,
            Err(unfit) => {
                plan.issue(IssueCode::GatewayCandidateUnfit, subject, unfit.to_string());
                continue;
            }
        };
        let weight = weight(node).unwrap_or_else(|unfit| {
            plan.issue(IssueCode::GatewayCandidateUnfit, subject, unfit.to_string());
            DEFAULT_WEIGHT
        });
        candidates.push(Candidate {
            health: NodeHealth::of(node),
            gateway_ip,
            internal_ip,
            weight,
            existing: get(&snapshot.gateways, &snapshot.namespace, &name).map(AsRef::as_ref),
            name,
        });
    }
    candidates
}

/// Whether any Node is annotated as a gateway.
pub(super) fn any(snapshot: &MemberSnapshot) -> bool {
    snapshot.nodes.values().any(|node| is_candidate(node))
}

fn is_candidate(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_none() && node.annotations().contains_key(names::ANNOTATION_GATEWAY)
}

/// The gateway IP and the internal IP of a Node.
fn addresses(node: &Node, precedence: GatewayIpPrecedence) -> Result<(IpAddr, IpAddr), IneligibleReason> {
    let internal = address(node, "InternalIP").ok_or(IneligibleReason::NoAddress {
        address_type: "InternalIP",
    })?;
    let gateway = match (node.annotations().get(names::ANNOTATION_GATEWAY_IP), precedence) {
        (Some(value), _) => match validation::gateway_ip(value) {
            Ok(ip) if ip.is_ipv4() => ip,
            Ok(_) => return Err(IneligibleReason::NotIpv4 { value: value.clone() }),
            Err(cause) => return Err(IneligibleReason::Annotation { cause }),
        },
        (None, GatewayIpPrecedence::Internal) => internal,
        (None, GatewayIpPrecedence::External) => {
            address(node, "ExternalIP").ok_or(IneligibleReason::NoAddress {
                address_type: "ExternalIP",
            })?
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

fn weight(node: &Node) -> Result<u32, IneligibleReason> {
    let Some(value) = node.annotations().get(names::ANNOTATION_GATEWAY_WEIGHT) else {
        return Ok(DEFAULT_WEIGHT);
    };
    // `parse` accepts "+7".
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    let weight = value.parse::<u8>().ok().filter(|w| digits && *w > 0);
    weight
        .map(u32::from)
        .ok_or_else(|| IneligibleReason::Weight { value: value.clone() })
}
