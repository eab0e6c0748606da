//! Public keys of Nodes and remote gateways, and peers without one.

use super::*;
use crate::peer_secret::SecretPolicy::{self, Off, Optional, Required};

/// The desired state of the gateway with `--node-secrets` and `--unkeyed-clusters`.
fn with_secrets(
    objects: &Objects,
    nodes: SecretPolicy,
    clusters: &[&str],
) -> (DesiredState, Vec<FieldError>) {
    let me = LocalNode {
        node_name: "a".into(),
        cluster_id: Some("east".into()),
        secrets: Secrets {
            nodes,
            unkeyed_clusters: clusters.iter().map(ToString::to_string).collect(),
        },
        ..LocalNode::default()
    };
    first(objects, &me).unwrap()
}

fn peer_of(desired: &DesiredState, addr: [u8; 4]) -> PeerAuth {
    desired.peers[&IpAddr::from(addr)].auth
}

const B: [u8; 4] = [192, 0, 2, 2];
const WEST: [u8; 4] = [203, 0, 113, 9];

/// Without the key of Node b.
fn without_b() -> Objects {
    let mut objects = objects();
    objects.node_keys.retain(|key| key.name != "b");
    objects
}

fn without_west() -> Objects {
    let mut objects = objects();
    west(&mut objects).gateways[0].public_key.clear();
    objects
}

#[test]
fn a_node_without_a_public_key_is_no_next_hop_and_authenticates_nothing() {
    let (desired, rejected) = with_secrets(&without_b(), Required, &[]);
    assert_eq!(peer_of(&desired, B), PeerAuth::Missing);
    assert!(
        !desired
            .next_hops
            .values()
            .any(|next_hop| next_hop.addr == IpAddr::from(B))
    );
    let [error] = &rejected[..] else {
        panic!("{rejected:?}")
    };
    assert!(
        error.to_string().starts_with("Node b: NodeKey: \"b\" is missing"),
        "{error}"
    );
    assert!(
        desired.prefixes.contains_key(&net("10.1.1.0/24")),
        "its packets must not leave unencapsulated"
    );
}

#[test]
fn a_gateway_without_a_public_key_is_no_next_hop_and_authenticates_nothing() {
    let (desired, rejected) = with_secrets(&without_west(), Required, &["north"]);
    assert_eq!(peer_of(&desired, WEST), PeerAuth::Missing);
    assert!(
        !desired
            .next_hops
            .values()
            .any(|next_hop| next_hop.addr == IpAddr::from(WEST))
    );
    let [error] = &rejected[..] else {
        panic!("{rejected:?}")
    };
    let start = "ClusterInfoImport west-clusterinfo: spec.gatewayInfos[0].publicKey: \"\" is missing";
    assert!(error.to_string().starts_with(start), "{error}");
    assert!(
        desired.routes.contains(&net("10.2.0.0/16")),
        "its packets must not leave unencapsulated"
    );
}

#[test]
fn a_named_peer_needs_no_public_key_and_uses_one_that_it_has() {
    let (desired, rejected) = with_secrets(&without_b(), Optional, &[]);
    assert_eq!(
        (rejected, peer_of(&desired, B)),
        (vec![], PeerAuth::Optional(None))
    );
    assert_eq!(
        peer_of(&desired, WEST),
        PeerAuth::Required(key("203.0.113.9")),
        "clusters are not named"
    );
    let (desired, rejected) = with_secrets(&without_west(), Required, &["west"]);
    assert_eq!(
        (rejected, peer_of(&desired, WEST)),
        (vec![], PeerAuth::Optional(None))
    );
    assert_eq!(
        peer_of(&desired, B),
        PeerAuth::Required(key("b")),
        "Nodes are not named"
    );
    let (desired, _) = with_secrets(&objects(), Optional, &["west"]);
    assert_eq!(peer_of(&desired, B), PeerAuth::Optional(Some(key("b"))));
    let next_hop = desired
        .next_hops
        .values()
        .find(|next_hop| next_hop.addr == IpAddr::from(B));
    assert_eq!(
        next_hop.unwrap().auth.sent_key(),
        Some(&key("b")),
        "packets to it have the secret"
    );
}

#[test]
fn without_secrets_packets_of_both_kinds_are_accepted_and_none_is_sent() {
    let (desired, rejected) = with_secrets(&objects(), Off, &[]);
    assert_eq!(
        (rejected, peer_of(&desired, B)),
        (vec![], PeerAuth::Off(Some(key("b"))))
    );
    let auth = peer_of(&desired, B);
    assert_eq!((auth.sent_key(), auth.accepts_unkeyed()), (None, true));
    assert_eq!(
        auth.received_key(),
        Some(&key("b")),
        "neighbours with --node-secrets optional send it"
    );
}

#[test]
fn invalid_public_keys_are_rejected_with_object_field_and_value() {
    let (_, rejected) = rejected_on_gateway(|objects| west(objects).gateways[0].public_key = "short".into());
    let expected = "ClusterInfoImport west-clusterinfo: spec.gatewayInfos[0].publicKey: \"short\" is not a public key: \
                    32 bytes in base64";
    assert_eq!(rejected, expected);
    let mut objects = objects();
    objects.node_keys[1].public_key = "short".into();
    let (_, rejected) = with_secrets(&objects, Optional, &[]);
    let expected = "NodeKey b: spec.publicKey: \"short\" is not a public key: 32 bytes in base64";
    assert_eq!(
        rejected.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [expected]
    );
}

#[test]
fn a_key_that_its_node_does_not_own_is_not_used() {
    let mut objects = objects();
    objects.node_keys[1].owned = false;
    let (desired, rejected) = with_secrets(&objects, Required, &[]);
    assert_eq!(peer_of(&desired, B), PeerAuth::Missing);
    assert_eq!(rejected.len(), 2, "{rejected:?}");
    let errors: Vec<String> = rejected.iter().map(ToString::to_string).collect();
    assert!(
        errors[1].starts_with("NodeKey b: metadata.name: \"b\" is not the name"),
        "{errors:?}"
    );
}

#[test]
fn a_published_key_of_another_key_pair_is_reported() {
    let me = LocalNode {
        node_name: "a".into(),
        public_key: Some(key("new")),
        ..LocalNode::default()
    };
    let (desired, rejected) = first(&objects(), &me).unwrap();
    assert_eq!(desired.published_key, Some(key("a")));
    let [error] = &rejected[..] else {
        panic!("{rejected:?}")
    };
    assert!(
        error.to_string().starts_with("NodeKey a: spec.publicKey: "),
        "{error}"
    );
}
