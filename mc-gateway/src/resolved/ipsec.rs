//! IPsec policies of the host, and the decision on encapsulated packets between two addresses.
//!
//! The kernel applies policies to packets of sockets and of its own forwarding. The programs send with
//! `bpf_redirect_neigh`, behind the output policies, and receive in front of the input policies (`net/core/filter.c`):
//! without this decision their packets would bypass a policy in clear text.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use mc_gateway_common::packet::ip::UDP;

/// Direction of the packets that a policy applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyDirection {
    /// Sent by this host.
    Out,
    /// Received by this host.
    In,
    /// Forwarded by this host.
    Forward,
}

impl PolicyDirection {
    /// Every direction.
    pub const ALL: [Self; 3] = [Self::Out, Self::In, Self::Forward];
}

impl fmt::Display for PolicyDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Out => "out",
            Self::In => "in",
            Self::Forward => "fwd",
        })
    }
}

/// The ports of a selector: those that equal `port` in the bits of `mask`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSelector {
    /// The port.
    pub port: u16,
    /// Its significant bits; 0 selects every port.
    pub mask: u16,
}

impl PortSelector {
    const fn contains(self, port: u16) -> bool {
        (self.port ^ port) & self.mask == 0
    }
}

/// An IPsec policy without mark and interface ID (`struct xfrm_userpolicy_info`, `linux/xfrm.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpsecPolicy {
    /// Direction.
    pub direction: PolicyDirection,
    /// Source addresses.
    pub src: IpNet,
    /// Destination addresses.
    pub dst: IpNet,
    /// IP protocol; 0 selects every protocol.
    pub proto: u8,
    /// Source ports.
    pub src_ports: PortSelector,
    /// Destination ports.
    pub dst_ports: PortSelector,
    /// Index of the device; 0 selects every device.
    pub ifindex: u32,
    /// Of several policies the kernel applies the one with the smallest number.
    pub priority: u32,
    /// Whether it is a sub-policy (`XFRM_POLICY_TYPE_SUB`). The kernel applies one of each type.
    pub sub: bool,
    /// Whether it blocks or transforms packets; otherwise it allows clear text.
    pub protects: bool,
}

impl fmt::Display for IpsecPolicy {
    /// In the notation of `ip xfrm policy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src {} dst {}", self.src, self.dst)?;
        if self.proto != 0 {
            write!(f, " proto {}", self.proto)?;
        }
        for (name, ports) in [("sport", self.src_ports), ("dport", self.dst_ports)] {
            if ports.mask != 0 {
                write!(f, " {name} {}", ports.port)?;
            }
        }
        write!(f, " dir {} priority {}", self.direction, self.priority)
    }
}

/// All IPsec policies of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpsecPolicies {
    /// In the order in which the kernel applies them. Of equal priorities the protecting ones are first: their order
    /// in the kernel is unknown.
    policies: Vec<IpsecPolicy>,
    /// Directions in which packets without a policy are blocked (`ip xfrm policy setdefault`, Linux 5.15).
    blocked: BTreeSet<PolicyDirection>,
}

/// Encapsulated packets between two addresses. Their source port is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    /// Address of this host.
    pub(super) local: IpAddr,
    /// Address of the other node.
    pub(super) remote: IpAddr,
    /// Index of the output device, if known.
    pub(super) ifindex: Option<u32>,
    /// Destination port of both directions.
    pub(super) port: u16,
}

/// The packets of a [`Leg`] that a policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coverage {
    None,
    Some,
    All,
}

impl IpsecPolicies {
    /// The policies in any order, and the directions that block packets without a policy.
    #[must_use]
    pub fn new(mut policies: Vec<IpsecPolicy>, blocked: BTreeSet<PolicyDirection>) -> Self {
        policies.sort_by_key(|policy| (policy.priority, !policy.protects));
        Self { policies, blocked }
    }

    /// The policy that packets of the leg would bypass, in the notation of `ip xfrm policy`. None if the host sends and
    /// accepts them in clear text.
    pub(super) fn bypassed_by(&self, leg: &Leg) -> Option<String> {
        PolicyDirection::ALL
            .into_iter()
            .find_map(|direction| self.bypassed_in(leg, direction))
    }

    fn bypassed_in(&self, leg: &Leg, direction: PolicyDirection) -> Option<String> {
        let mut allowed = false;
        for sub in [false, true] {
            let of_type = |policy: &&IpsecPolicy| policy.direction == direction && policy.sub == sub;
            for policy in self.policies.iter().filter(of_type) {
                match policy.coverage(leg) {
                    Coverage::None => {}
                    _ if policy.protects => return Some(policy.to_string()),
                    Coverage::Some => {}
                    Coverage::All => {
                        allowed = true;
                        break;
                    }
                }
            }
        }
        let blocked = !allowed && self.blocked.contains(&direction);
        blocked.then(|| format!("default dir {direction} block"))
    }
}

impl IpsecPolicy {
    fn coverage(&self, leg: &Leg) -> Coverage {
        let (src, dst) = match self.direction {
            PolicyDirection::Out => (leg.local, leg.remote),
            PolicyDirection::In | PolicyDirection::Forward => (leg.remote, leg.local),
        };
        let selected = self.src.contains(&src)
            && self.dst.contains(&dst)
            && matches!(self.proto, 0 | UDP)
            && self.dst_ports.contains(leg.port);
        // The device of received packets is not known in advance.
        let ifindex = leg.ifindex.filter(|_| self.direction == PolicyDirection::Out);
        let device = match ifindex {
            _ if self.ifindex == 0 => Coverage::All,
            Some(ifindex) if ifindex == self.ifindex => Coverage::All,
            Some(_) => Coverage::None,
            None => Coverage::Some,
        };
        match device {
            Coverage::All if selected && self.src_ports.mask != 0 => Coverage::Some,
            device if selected => device,
            _ => Coverage::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PORT: u16 = 6081;

    fn leg() -> Leg {
        Leg {
            local: [192, 0, 2, 1].into(),
            remote: [192, 0, 2, 2].into(),
            ifindex: Some(2),
            port: PORT,
        }
    }

    fn policy() -> IpsecPolicy {
        IpsecPolicy {
            direction: PolicyDirection::Out,
            src: "192.0.2.1/32".parse().unwrap(),
            dst: "192.0.2.2/32".parse().unwrap(),
            proto: 0,
            src_ports: PortSelector::default(),
            dst_ports: PortSelector::default(),
            ifindex: 0,
            priority: 9,
            sub: false,
            protects: true,
        }
    }

    fn bypassed(policies: &[IpsecPolicy]) -> Option<String> {
        IpsecPolicies::new(policies.to_vec(), BTreeSet::new()).bypassed_by(&leg())
    }

    #[test]
    fn the_bypassed_policy_is_named() {
        let port = |port, mask| PortSelector { port, mask };
        let text = bypassed(&[IpsecPolicy {
            proto: UDP,
            dst_ports: port(PORT, 0xffff),
            ..policy()
        }]);
        let expected = "src 192.0.2.1/32 dst 192.0.2.2/32 proto 17 dport 6081 dir out priority 9";
        assert_eq!(text.as_deref(), Some(expected));
        let incoming = IpsecPolicy {
            direction: PolicyDirection::In,
            src: policy().dst,
            dst: policy().src,
            ..policy()
        };
        let forwarded = IpsecPolicy {
            direction: PolicyDirection::Forward,
            ..incoming
        };
        for policy in [incoming, forwarded] {
            assert_eq!(bypassed(&[policy]), Some(policy.to_string()));
        }
        let all = "0.0.0.0/0".parse().unwrap();
        assert!(
            bypassed(&[IpsecPolicy {
                src: all,
                dst: all,
                ..policy()
            }])
            .is_some()
        );
    }

    #[test]
    fn policies_for_other_packets_have_no_effect() {
        let other: IpNet = "192.0.2.3/32".parse().unwrap();
        let v6: IpNet = "::/0".parse().unwrap();
        let ports = PortSelector {
            port: 4789,
            mask: 0xffff,
        };
        for policy in [
            IpsecPolicy {
                dst: other,
                ..policy()
            },
            IpsecPolicy {
                src: other,
                ..policy()
            },
            IpsecPolicy {
                src: v6,
                dst: v6,
                ..policy()
            },
            IpsecPolicy { proto: 6, ..policy() },
            IpsecPolicy {
                dst_ports: ports,
                ..policy()
            },
            IpsecPolicy {
                ifindex: 3,
                ..policy()
            },
            IpsecPolicy {
                direction: PolicyDirection::In,
                ..policy()
            },
            IpsecPolicy {
                protects: false,
                ..policy()
            },
        ] {
            assert_eq!(bypassed(&[policy]), None, "{policy:?}");
        }
    }

    #[test]
    fn an_exemption_of_higher_priority_allows_clear_text() {
        let exemption = IpsecPolicy {
            proto: UDP,
            priority: 1,
            protects: false,
            ..policy()
        };
        assert_eq!(bypassed(&[policy(), exemption]), None);
        for priority in [9, 10] {
            let exemption = IpsecPolicy {
                priority,
                ..exemption
            };
            assert!(bypassed(&[exemption, policy()]).is_some(), "priority {priority}");
        }
        // It covers some source ports only.
        let src_ports = PortSelector {
            port: 50_000,
            mask: 0xffff,
        };
        assert!(
            bypassed(&[
                policy(),
                IpsecPolicy {
                    src_ports,
                    ..exemption
                }
            ])
            .is_some()
        );
        let sub = IpsecPolicy {
            sub: true,
            ..policy()
        };
        assert!(bypassed(&[sub, exemption]).is_some(), "one of each type applies");
    }

    #[test]
    fn a_blocking_default_needs_an_exemption() {
        let blocked: BTreeSet<_> = [PolicyDirection::In].into();
        let policies = IpsecPolicies::new(vec![], blocked.clone());
        let text = policies.bypassed_by(&leg());
        assert_eq!(text.as_deref(), Some("default dir in block"));
        let exemption = IpsecPolicy {
            direction: PolicyDirection::In,
            src: policy().dst,
            dst: policy().src,
            protects: false,
            ..policy()
        };
        let policies = IpsecPolicies::new(vec![exemption], blocked);
        assert_eq!(policies.bypassed_by(&leg()), None);
    }

    /// A packet of the leg, as the kernel compares it with a selector (`xfrm_selector_match`,
    /// `net/xfrm/xfrm_policy.c`).
    #[derive(Clone, Copy, Debug)]
    struct Packet {
        direction: PolicyDirection,
        src_port: u16,
        ifindex: u32,
    }

    fn selects(policy: &IpsecPolicy, packet: Packet) -> bool {
        let (src, dst) = match packet.direction {
            PolicyDirection::Out => (leg().local, leg().remote),
            _ => (leg().remote, leg().local),
        };
        policy.direction == packet.direction
            && policy.src.contains(&src)
            && policy.dst.contains(&dst)
            && (policy.proto == 0 || policy.proto == UDP)
            && policy.dst_ports.contains(PORT)
            && policy.src_ports.contains(packet.src_port)
            && (policy.ifindex == 0 || policy.ifindex == packet.ifindex)
    }

    /// Whether the kernel blocks or transforms the packet.
    fn is_protected(policies: &[IpsecPolicy], blocked: &BTreeSet<PolicyDirection>, packet: Packet) -> bool {
        let first = |sub| {
            let matching = policies
                .iter()
                .filter(|policy| policy.sub == sub && selects(policy, packet));
            matching.min_by_key(|policy| (policy.priority, !policy.protects))
        };
        let applied: Vec<_> = [first(false), first(true)].into_iter().flatten().collect();
        if applied.is_empty() {
            blocked.contains(&packet.direction)
        } else {
            applied.iter().any(|policy| policy.protects)
        }
    }

    fn any_direction() -> impl Strategy<Value = PolicyDirection> {
        prop::sample::select(PolicyDirection::ALL.to_vec())
    }

    fn any_net() -> impl Strategy<Value = IpNet> {
        let nets = [
            "192.0.2.1/32",
            "192.0.2.2/32",
            "192.0.2.0/24",
            "0.0.0.0/0",
            "10.0.0.0/8",
            "::/0",
        ];
        prop::sample::select(nets.map(|net| net.parse().unwrap()).to_vec())
    }

    fn any_ports() -> impl Strategy<Value = PortSelector> {
        let ports = [(0, 0), (PORT, 0xffff), (50_000, 0xffff), (0x8000, 0x8000)];
        prop::sample::select(ports.map(|(port, mask)| PortSelector { port, mask }).to_vec())
    }

    prop_compose! {
        fn any_policy()(
            direction in any_direction(),
            (src, dst) in (any_net(), any_net()),
            proto in prop::sample::select(vec![0, UDP, 6]),
            (src_ports, dst_ports) in (any_ports(), any_ports()),
            ifindex in prop::sample::select(vec![0, 2, 3]),
            priority in 0_u32..4,
            sub in prop::bool::weighted(0.2),
            protects: bool,
        ) -> IpsecPolicy {
            IpsecPolicy { direction, src, dst, proto, src_ports, dst_ports, ifindex, priority, sub, protects }
        }
    }

    proptest! {
        #[test]
        fn a_leg_with_a_protected_packet_is_refused(
            policies in prop::collection::vec(any_policy(), 0..8),
            blocked in prop::collection::btree_set(any_direction(), 0..2),
            direction in any_direction(),
            src_port in prop::sample::select(vec![1_u16, 50_000, PORT, 40_000]),
            ifindex in 2_u32..4,
        ) {
            let ifindex = if direction == PolicyDirection::Out { 2 } else { ifindex };
            let packet = Packet { direction, src_port, ifindex };
            let refused = IpsecPolicies::new(policies.clone(), blocked.clone()).bypassed_by(&leg());
            if is_protected(&policies, &blocked, packet) {
                prop_assert!(refused.is_some(), "{packet:?}");
            }
        }

        #[test]
        fn a_refused_leg_has_a_protecting_policy(
            policies in prop::collection::vec(any_policy(), 0..8),
        ) {
            let refused = IpsecPolicies::new(policies.clone(), BTreeSet::new()).bypassed_by(&leg());
            let protecting = policies.iter().any(|policy| {
                let packets = PolicyDirection::ALL.into_iter().flat_map(|direction| {
                    [2, 3].map(|ifindex| Packet { direction, src_port: policy.src_ports.port, ifindex })
                });
                policy.protects && packets.into_iter().any(|packet| selects(policy, packet))
            });
            prop_assert!(refused.is_none() || protecting, "{refused:?}");
        }
    }
}
