//! Names of the objects that a dropped packet has by number or address. Pure.
//!
//! *Guarantees*: a remote cluster is named only where the programs have compared the source with the peer's cluster;
//! text that users of other clusters choose is at most [`MAX_TEXT`] bytes long, besides its [`MARKER`], and has no
//! character that a terminal interprets: the JSON format of the log escapes fewer of them than terminals have.

use std::borrow::Cow;
use std::net::IpAddr;

use super::decode::DroppedPacket;
use crate::attachment::Program;
use crate::flow_names::FlowNames;

/// Longest text of a field, in bytes: a label identity may have 16 KiB.
const MAX_TEXT: usize = 256;
/// End of a text that is cut off. No label contains it: labels are ASCII.
const MARKER: char = '…';

/// The names of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names<'n> {
    /// Of the peer; empty for a packet of this cluster or of an unknown peer.
    pub(super) peer: &'n str,
    /// Policy that dropped the packet.
    pub(super) policy: Option<&'n str>,
    /// Path of its rule.
    pub(super) rule: Option<&'n str>,
    /// ID of the sender's cluster, if it is another one.
    pub(super) src_cluster: Option<Cow<'n, str>>,
    /// Labels of the sender's Namespace, if it is in another cluster.
    pub(super) src_namespace_labels: Option<Cow<'n, str>>,
    /// The sender.
    pub(super) src: PodNames<'n>,
    /// The receiver.
    pub(super) dst: PodNames<'n>,
}

/// Names of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodNames<'n> {
    /// Namespace and name, if it is in this cluster.
    pub(super) pod: Option<&'n str>,
    /// Its labels.
    pub(super) labels: Option<Cow<'n, str>>,
}

/// The names that belong to `packet`.
pub(super) fn names<'n>(packet: &DroppedPacket, known: &'n FlowNames) -> Names<'n> {
    let peer = packet.peer.and_then(|peer| known.ids.peers.get(&peer));
    let rule = known.ids.rules.get(&packet.rule);
    let mut names = Names {
        peer: peer.map_or("", String::as_str),
        policy: rule.map(|rule| &*rule.policy),
        rule: rule.map(|rule| &*rule.rule),
        ..Names::default()
    };
    let Some(flow) = packet.flow else { return names };
    match packet.program {
        // The packet has passed the admission of `from_underlay`, here or at the gateway that forwarded it.
        Some(Program::FromRemote) => {
            let cluster = known.remote_cluster(flow.src);
            let labels = packet.identity.zip(cluster);
            let labels = labels.and_then(|(identity, cluster)| known.identity_labels(identity, cluster));
            names.src_cluster = cluster.map(loggable);
            names.src_namespace_labels = labels.and_then(|labels| non_empty(labels.namespace));
            names.src.labels = labels.and_then(|labels| non_empty(labels.pod));
            names.dst = pod_names(known, flow.dst);
        }
        Some(Program::ToPod | Program::FromPod) => {
            names.src = pod_names(known, flow.src);
            names.dst = pod_names(known, flow.dst);
        }
        // Admission may not have accepted these sources.
        Some(Program::ToRemote | Program::FromTunnel | Program::FromUnderlay) | None => {}
    }
    names
}

fn pod_names(known: &FlowNames, addr: IpAddr) -> PodNames<'_> {
    known.pod(addr).map_or_else(PodNames::default, |pod| PodNames {
        pod: Some(&pod.name),
        labels: non_empty(&pod.labels),
    })
}

fn non_empty(text: &str) -> Option<Cow<'_, str>> {
    (!text.is_empty()).then(|| loggable(text))
}

/// The first [`MAX_TEXT`] bytes of `text`, fewer if these end within a character. U+FFFD replaces each character that
/// no label and no cluster ID contains.
fn loggable(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_graphic() || c == ' ';
    if text.len() <= MAX_TEXT && text.chars().all(is_plain) {
        return text.into();
    }
    let replaced = text.chars().map(|c| {
        if is_plain(c) {
            c
        } else {
            char::REPLACEMENT_CHARACTER
        }
    });
    // A character that does not fit shows that the text is longer.
    let mut loggable: String = replaced.take(MAX_TEXT.saturating_add(1)).collect();
    if loggable.len() > MAX_TEXT {
        loggable.truncate(loggable.floor_char_boundary(MAX_TEXT));
        loggable.push(MARKER);
    }
    loggable.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mc_gateway_common::abi::CLUSTER_LOCAL;

    use super::super::decode::FiveTuple;
    use super::*;
    use crate::desired::PrefixRoute;
    use crate::desired::rule_names::RuleName;
    use crate::id_names::IdNames;
    use crate::identity_objects::{IdentityInfo, IdentityObjects};
    use crate::objects::{Objects, PodInfo};

    const EAST: [u8; 4] = [10, 11, 0, 5];
    const SERVER: [u8; 4] = [10, 12, 0, 5];
    const LOCAL: [u8; 4] = [10, 12, 0, 6];

    /// A cluster with two Pods, and identity 9 of `clusters`.
    fn known(label: &str, clusters: &[&str]) -> FlowNames {
        let route = |cluster| PrefixRoute {
            cluster,
            group: 0,
            deliver: false,
        };
        let pod = |name: &str, ip: [u8; 4], labels: &str| {
            Arc::new(PodInfo {
                name: name.to_owned(),
                ips: vec![IpAddr::from(ip).to_string()],
                labels: labels.into(),
                ..PodInfo::default()
            })
        };
        let identity = IdentityInfo {
            id: 9,
            label: label.to_owned(),
            clusters: Some(clusters.iter().map(ToString::to_string).collect()),
            ..IdentityInfo::default()
        };
        let rule = RuleName {
            policy: "ClusterNetworkPolicy policy".into(),
            rule: "spec.ingress[1]".into(),
            action: "Drop".into(),
        };
        let ids = IdNames {
            clusters: [(7, "east".to_owned())].into(),
            peers: [(IpAddr::from([192, 0, 2, 1]), "Gateway g".to_owned())].into(),
            rules: [(77, rule)].into(),
            ..IdNames::default()
        };
        let objects = Objects {
            pods: vec![
                pod("shop/server", SERVER, "app=server"),
                pod("shop/local", LOCAL, ""),
            ],
            identities: Some(IdentityObjects {
                identities: vec![Arc::new(identity)],
                ..IdentityObjects::default()
            }),
            ..Objects::default()
        };
        let prefixes = [("10.11.0.0/16", 7), ("10.12.0.0/16", CLUSTER_LOCAL)];
        FlowNames {
            ids: Arc::new(ids),
            prefixes: prefixes
                .map(|(net, cluster)| (net.parse().unwrap(), route(cluster)))
                .into(),
            objects: Arc::new(objects),
        }
    }

    fn dropped(program: Program, src: [u8; 4], identity: Option<u32>) -> DroppedPacket {
        DroppedPacket {
            reason: 39,
            program: Some(program),
            ifindex: 3,
            length: 60,
            rule: 77,
            identity,
            peer: None,
            flow: Some(FiveTuple {
                src: src.into(),
                dst: SERVER.into(),
                proto: 6,
                src_port: Some(1024),
                dst_port: Some(80),
            }),
        }
    }

    const LABEL: &str = "ns:team=a&pod:app=client";

    #[test]
    fn a_sender_in_another_cluster_has_cluster_and_labels() {
        let known = known(LABEL, &["east"]);
        let named = names(&dropped(Program::FromRemote, EAST, Some(9)), &known);
        let expected = Names {
            peer: "",
            policy: Some("ClusterNetworkPolicy policy"),
            rule: Some("spec.ingress[1]"),
            src_cluster: Some("east".into()),
            src_namespace_labels: Some("team=a".into()),
            src: PodNames {
                pod: None,
                labels: Some("app=client".into()),
            },
            dst: PodNames {
                pod: Some("shop/server"),
                labels: Some("app=server".into()),
            },
        };
        assert_eq!(named, expected);
    }

    #[test]
    fn a_sender_without_a_valid_identity_has_its_cluster_only() {
        let exported = known(LABEL, &["east"]);
        let of_others = known(LABEL, &["west"]);
        // Unknown, a host, without a record, and forged.
        for (identity, known) in [
            (None, &exported),
            (Some(0), &exported),
            (Some(8), &exported),
            (Some(9), &of_others),
        ] {
            let named = names(&dropped(Program::FromRemote, EAST, identity), known);
            assert_eq!(named.src_cluster.as_deref(), Some("east"), "{identity:?}");
            let labels = (named.src_namespace_labels, named.src);
            assert_eq!(labels, (None, PodNames::default()), "{identity:?}");
        }
        let known = known(LABEL, &["east"]);
        let from_nowhere = names(&dropped(Program::FromRemote, [192, 0, 2, 9], Some(9)), &known);
        assert_eq!(from_nowhere.src_cluster, None);
        assert_eq!(from_nowhere.src.labels, None);
    }

    #[test]
    fn pods_of_this_cluster_are_named_at_their_devices() {
        let known = known(LABEL, &["east"]);
        for program in [Program::ToPod, Program::FromPod] {
            let named = names(&dropped(program, LOCAL, None), &known);
            assert_eq!((named.src.pod, named.src.labels), (Some("shop/local"), None));
            assert_eq!(named.dst.pod, Some("shop/server"));
            let forged = names(&dropped(program, EAST, None), &known);
            assert_eq!(forged.src_cluster, None, "not compared with a peer");
        }
    }

    #[test]
    fn addresses_that_a_sender_may_choose_name_nothing() {
        let known = known(LABEL, &["east"]);
        for program in [Program::ToRemote, Program::FromTunnel, Program::FromUnderlay] {
            let packet = DroppedPacket {
                peer: Some([192, 0, 2, 1].into()),
                rule: 0,
                ..dropped(program, EAST, None)
            };
            let expected = Names {
                peer: "Gateway g",
                ..Names::default()
            };
            assert_eq!(names(&packet, &known), expected);
        }
    }

    #[test]
    fn long_labels_are_cut_off_between_characters() {
        let fits = "a".repeat(MAX_TEXT);
        assert_eq!(loggable(&fits), fits);
        let one_more = format!("{fits}b");
        assert_eq!(loggable(&one_more), format!("{fits}…"));
        // The character of three bytes would end behind the limit.
        let within = format!("{}ß{}", "a".repeat(MAX_TEXT - 1), "b".repeat(MAX_TEXT));
        assert_eq!(loggable(&within), format!("{}…", "a".repeat(MAX_TEXT - 1)));
        let label = format!("ns:{}&pod:{}", "n".repeat(9_000), "€".repeat(2_000));
        let known = known(&label, &["east"]);
        let named = names(&dropped(Program::FromRemote, EAST, Some(9)), &known);
        assert_eq!(
            named.src_namespace_labels,
            Some(format!("{}…", "n".repeat(256)).into())
        );
        assert_eq!(
            named.src.labels,
            Some(format!("{}…", "\u{fffd}".repeat(85)).into())
        );
    }

    /// In the JSON log, labels could change the direction of text.
    #[test]
    fn labels_have_no_character_that_a_terminal_interprets() {
        for c in [
            '\u{7f}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{2028}', '\u{1b}', '\n', 'é',
        ] {
            assert_eq!(loggable(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
        let label = "app.kubernetes.io/name=web-1_a,tier=x y";
        assert!(matches!(loggable(label), Cow::Borrowed(same) if same == label));
        let known = known("ns:a=\u{2066}2J&pod:b=\u{202e}", &["east"]);
        let named = names(&dropped(Program::FromRemote, EAST, Some(9)), &known);
        assert_eq!(named.src_namespace_labels.as_deref(), Some("a=\u{fffd}2J"));
        assert_eq!(named.src.labels.as_deref(), Some("b=\u{fffd}"));
    }
}
