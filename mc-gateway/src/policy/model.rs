//! Input and result of policies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mc_api::label_identity::Labels;
pub use mc_api::network_policy::Direction;
use mc_api::network_policy::{Action, Group, ObjectName, Policy};
use mc_gateway_common::abi::IDENTITY_HOST;
pub use mc_gateway_common::packet::ip::{ICMP, ICMPV6, SCTP, TCP, UDP};

/// The protocols with tables of their own: TCP, UDP, SCTP, ICMP and `ICMPv6`.
pub const PROTOCOLS: [u8; 5] = [TCP, UDP, SCTP, ICMP, ICMPV6];
/// The identity in packets of hosts, in clusters that announce identities. No label peer matches it.
pub const HOST_IDENTITY: u32 = IDENTITY_HOST;

/// The objects that decide on packets of Pods.
#[derive(Clone, Debug, Default)]
pub struct PolicySet {
    /// The policies, in any order.
    pub policies: Vec<Policy>,
    /// Priorities of Tiers by name, beside the default Tiers, whose priorities are fixed.
    pub tiers: BTreeMap<String, u8>,
    /// The groups, in any order.
    pub groups: Vec<Group>,
    /// Labels of the Namespaces of this cluster by name.
    pub namespaces: BTreeMap<String, Labels>,
    /// Pods of this cluster that are to be protected. Pods in the network of their host and Pods that have ended are
    /// not among them: their addresses are not theirs alone.
    pub local_pods: Vec<LocalPod>,
    /// All Pods of this cluster that rules can have as peers, those to be protected among them; without host network,
    /// and not ended. Of several Pods with one address the first by Namespace and name counts.
    pub cluster_pods: Vec<LocalPod>,
    /// The Services that egress rules have as peers, by name or by their endpoints.
    pub services: Vec<ServicePeer>,
    /// The addresses of this cluster's Nodes, where the service proxy serves node ports.
    pub node_ips: Vec<IpAddr>,
    /// The label identities of the `ClusterSet`. An ID with two different labels is unknown.
    pub identities: Vec<Identity>,
    /// The rules to enforce.
    pub mode: Mode,
}

/// A Pod of this cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalPod {
    /// Its Namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels, shared by the Pods of a workload.
    pub labels: Arc<Labels>,
    /// Name of its `ServiceAccount`.
    pub service_account: String,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// Named ports of its containers.
    pub ports: Vec<ContainerPort>,
}

/// A named port of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerPort {
    /// Its name.
    pub name: String,
    /// The number of its protocol in IP headers.
    pub protocol: u8,
    /// Its number.
    pub number: u16,
}

/// A Service that egress rules can have as peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePeer {
    /// Its name.
    pub name: ObjectName,
    /// Its addresses inside and outside of the cluster.
    pub ips: Vec<IpAddr>,
    /// Its ports.
    pub ports: Vec<ServicePeerPort>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePeerPort {
    /// The number of its protocol in IP headers.
    pub protocol: u8,
    /// The port that clients use.
    pub number: u16,
    /// The port at the addresses of Nodes, if it has one.
    pub node_port: Option<u16>,
    /// Its endpoints, regardless of their conditions.
    pub endpoints: BTreeSet<SocketAddr>,
}

/// A label identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its ID, between [`mc_api::label_identity::MIN_ID`] and [`mc_api::label_identity::MAX_ID`]; others are ignored.
    pub id: u32,
    /// Labels of the Namespace, among them its name.
    pub namespace: Arc<Labels>,
    /// Labels of the Pods.
    pub pod: Arc<Labels>,
}

/// The rules to enforce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// All rules.
    #[default]
    All,
    /// Peers by labels with scope `ClusterSet` and nothing else: Antrea in the cluster enforces the rest, also rules
    /// without such a peer.
    ClusterSetOnly,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The rules that apply.
    pub direction: Direction,
    /// Address of the Pod that the rules apply to.
    pub pod: IpAddr,
    /// Address of the other side. For egress it is the one that the Pod sends to: that of a Service, not of its
    /// backend.
    pub peer: IpAddr,
    /// Label identity of a sender in another cluster: [`HOST_IDENTITY`] for a host. The number 0xFFFFFF and any other
    /// number without a label identity are unknown. [`HOST_IDENTITY`] for egress and for peers in the own cluster.
    pub identity: u32,
    /// Protocol number.
    pub protocol: u8,
    /// Destination port; `type << 8 | code` for ICMP and `ICMPv6`. Irrelevant for other protocols.
    pub port: u16,
}

/// The decision on a packet.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The action.
    pub action: VerdictAction,
    /// The rule, if one matches.
    pub rule: Option<RuleRef>,
    /// The audited rule that would decide instead; none if its policy would not change the deciding rule.
    pub audited: Option<RuleRef>,
}

/// The action of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictAction {
    /// A rule allows the packet.
    Allow,
    /// A rule drops it.
    Drop,
    /// A rule drops it, and its sender is notified.
    Reject,
    /// A rule leaves the packet to the policies of Kubernetes, which the CNI enforces: the packet passes.
    ///
    /// Final: rules of the baseline Tier do not apply to it. Antrea applies them only to Pods that no policy of
    /// Kubernetes selects, and these policies are not known here.
    Pass,
    /// No rule matches, and the packet passes.
    DefaultAllow,
    /// No rule matches, the identity is unknown and a rule of the Pod has peers by labels in other clusters: the packet
    /// is dropped, because such a peer could match its sender.
    UnknownIdentity,
}

/// A rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleRef {
    /// Kind and name of the policy.
    pub policy: Arc<str>,
    /// The list of the rule.
    pub direction: Direction,
    /// Index of the rule in `spec.ingress` or `spec.egress`.
    pub index: usize,
    /// The part of the rule.
    pub part: RulePart,
}

/// The part of a rule that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RulePart {
    /// The rule itself.
    Rule,
    /// The drop of packets of unknown identity, because the rule has peers by labels in other clusters. Only of audited
    /// rules: the drop by others is [`VerdictAction::UnknownIdentity`].
    UnknownSenders,
}

// === impl ServicePeer ===

impl ServicePeer {
    /// Where clients reach a port of the Service: at its own addresses and at those of Nodes.
    pub(super) fn addresses<'a>(
        &'a self,
        port: &'a ServicePeerPort,
        node_ips: &'a [IpAddr],
    ) -> impl Iterator<Item = SocketAddr> + 'a {
        let own = self.ips.iter().map(|ip| SocketAddr::new(*ip, port.number));
        let of_nodes = port.node_port.into_iter().flat_map(|number| {
            let ips = node_ips.iter();
            ips.map(move |ip| SocketAddr::new(*ip, number))
        });
        own.chain(of_nodes)
    }
}

// === impl RuleRef ===

impl RuleRef {
    /// Path of the rule in its policy, followed by ` unknown senders` for that part.
    #[must_use]
    pub fn path(&self) -> String {
        let part = match self.part {
            RulePart::Rule => "",
            RulePart::UnknownSenders => " unknown senders",
        };
        format!("spec.{}[{}]{part}", self.direction.field(), self.index)
    }
}

// === impl Verdict ===

impl Verdict {
    /// The decision of a rule.
    pub(super) fn of_rule(action: Action, rule: RuleRef) -> Self {
        let action = match action {
            Action::Allow => VerdictAction::Allow,
            Action::Drop => VerdictAction::Drop,
            Action::Reject => VerdictAction::Reject,
            Action::Pass => VerdictAction::Pass,
        };
        Self {
            action,
            rule: Some(rule),
            audited: None,
        }
    }

    /// The same decision, with the audited rule that would decide instead.
    pub(super) fn with_audited(self, audited: Option<RuleRef>) -> Self {
        Self { audited, ..self }
    }

    /// The decision without a matching rule.
    pub(super) fn without_rule(drop_unknown: bool) -> Self {
        let action = if drop_unknown {
            VerdictAction::UnknownIdentity
        } else {
            VerdictAction::DefaultAllow
        };
        Self {
            action,
            rule: None,
            audited: None,
        }
    }
}
