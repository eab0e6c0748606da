//! Policies of users, random ones, and large sets.

mod audit;
mod egress;
mod examples;
mod generate;
mod issues;
mod order;
mod property;
mod protected_pods;
mod scale;
mod shadowed;

use std::net::IpAddr;

use mc_api::label_identity::{Labels, NAMESPACE_NAME};
use mc_api::network_policy::{ObjectName, Policy, parse};
use serde_json::Value;

use super::{
    Direction, Identity, LocalPod, Packet, PolicySet, Verdict, VerdictAction, compile, evaluate, look_up,
    model::TCP,
};

pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

/// The policy of this spec, which has no errors.
pub(super) fn policy(namespace: Option<&str>, name: &str, spec: &Value) -> Policy {
    let name = match namespace {
        None => ObjectName::cluster(name),
        Some(namespace) => ObjectName::namespaced(namespace, name),
    };
    let (policy, errors) = parse(name, spec);
    assert_eq!(errors, []);
    policy
}

pub(super) fn pod(namespace: &str, name: &str, ip: &str, pairs: &[(&str, &str)]) -> LocalPod {
    LocalPod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        labels: labels(pairs).into(),
        service_account: "default".to_owned(),
        ips: vec![ip.parse().unwrap()],
        ports: vec![],
    }
}

pub(super) fn identity(id: u32, namespace: &str, pairs: &[(&str, &str)], pod: &[(&str, &str)]) -> Identity {
    Identity {
        id,
        namespace: labels(&[&[(NAMESPACE_NAME, namespace)], pairs].concat()).into(),
        pod: labels(pod).into(),
    }
}

/// A packet to TCP port 80.
pub(super) fn packet(destination: &str, identity: u32) -> Packet {
    Packet {
        direction: Direction::Ingress,
        pod: destination.parse().unwrap(),
        peer: IpAddr::from([10, 200, 0, 1]),
        identity,
        protocol: TCP,
        port: 80,
    }
}

/// The verdict, equal by both ways.
pub(super) fn verdict(set: &PolicySet, packet: &Packet) -> Verdict {
    let verdict = evaluate(set, packet);
    let (tables, _) = compile(set);
    assert_eq!(look_up(&tables, packet), verdict, "{packet:?} in {tables:#?}");
    verdict
}

/// A letter for each action.
pub(super) fn letter(verdict: &Verdict) -> char {
    match verdict.action {
        VerdictAction::Allow => 'A',
        VerdictAction::Drop => 'D',
        VerdictAction::Reject => 'R',
        VerdictAction::Pass => 'P',
        VerdictAction::DefaultAllow => '.',
        VerdictAction::UnknownIdentity => 'U',
    }
}
