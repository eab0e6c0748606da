//! Which Node is gateway. Needs no leader.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, core::ObjectMeta};

use crate::{
    api::{config::GatewayIpPrecedence, gateway::Gateway, names, validation},
    plan::{Plan, Side},
    world::MemberWorld,
};

/// Why a Node cannot be gateway.
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
}

/// Writes the Gateway and returns what is in force, the primary first.
///
/// One Gateway is active: it stays as long as its Node is Ready and fit, else the first fit Node by name takes
/// over. The new one is written before the old one goes. When no other Node could take over, a Node that
/// is merely not Ready keeps its Gateway: its data path may well be working.
pub fn plan(world: &MemberWorld, plan: &mut Plan) -> Vec<Gateway> {
    let Some(service_cidr) = world.service_cidr else {
        // Found out in a moment; gateways without it could not deliver to Services.
        return vec![];
    };
    let mut candidates = vec![];
    for node in world.nodes.values().filter(|n| is_candidate(n)) {
        match addresses(node, world.config.precedence) {
            Ok((gateway_ip, internal_ip)) => candidates.push((node, gateway_ip, internal_ip)),
            Err(unfit) => plan.notice(format!("Node {}", node.name_any()), unfit.to_string()),
        }
    }
    let active: BTreeSet<_> = world.gateways.values().map(|g| g.name_any()).collect();
    // Ready before not Ready, active before new, then by name; but an idle Node that is not Ready never starts.
    let chosen = candidates
        .iter()
        .filter(|(node, ..)| is_ready(node) || active.contains(&node.name_any()))
        .min_by_key(|(node, ..)| {
            (
                !is_ready(node),
                !active.contains(&node.name_any()),
                node.name_any(),
            )
        });
    let wanted: Vec<_> = chosen
        .into_iter()
        .map(|(node, gateway_ip, internal_ip)| Gateway {
            metadata: ObjectMeta {
                name: Some(node.name_any()),
                namespace: Some(world.namespace.clone()),
                ..ObjectMeta::default()
            },
            gateway_ip: gateway_ip.to_string(),
            internal_ip: internal_ip.to_string(),
            service_cidr: service_cidr.to_string(),
            ..Gateway::default()
        })
        .collect();
    for gateway in &wanted {
        let same = world.gateways.values().any(|old| {
            old.name_any() == gateway.name_any()
                && (&old.gateway_ip, &old.internal_ip, &old.service_cidr)
                    == (&gateway.gateway_ip, &gateway.internal_ip, &gateway.service_cidr)
        });
        if !same {
            plan.apply(Side::Local, gateway);
        }
    }
    for old in world.gateways.values() {
        if !wanted.iter().any(|g| g.name_any() == old.name_any()) {
            plan.delete(Side::Local, old.as_ref());
        }
    }
    wanted
}

/// No membership, no gateways.
pub fn withdraw(world: &MemberWorld, plan: &mut Plan) {
    for old in world.gateways.values() {
        plan.delete(Side::Local, old.as_ref());
    }
}

fn is_candidate(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_none() && node.annotations().contains_key(names::ANNOTATION_GATEWAY)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|s| s.conditions.as_deref())
        .unwrap_or_default();
    conditions
        .iter()
        .any(|c| c.type_ == "Ready" && c.status == "True")
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
