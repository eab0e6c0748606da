//! The beds on which the data paths are compared.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::case::Case;
use crate::topology::{Links, NicPair};

/// Underlay and attachment of the Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Bed {
    /// Packets of MTU size on the underlay, joined again by each receiver (GRO), as behind a network card; routed
    /// Pods.
    WireLikeRouted,
    /// The same underlay; Pods on a bridge.
    WireLikeBridge,
    /// The same underlay with complete checksums, as XDP programs need them; routed Pods.
    WireLikeChecksums,
    /// Super-packets cross the underlay, as between containers on one host; routed Pods.
    VethRouted,
    /// The same underlay; Pods on a bridge.
    VethBridge,
    /// Pairs of network devices, which `MC_NIC_PAIRS` names, as the underlay; routed Pods.
    NicsRouted,
    /// The same underlay; Pods on a bridge.
    NicsBridge,
}

// === impl Bed ===

impl Bed {
    /// All beds, the headline first.
    pub const ALL: [Self; 7] = [
        Self::WireLikeRouted,
        Self::WireLikeBridge,
        Self::WireLikeChecksums,
        Self::VethRouted,
        Self::VethBridge,
        Self::NicsRouted,
        Self::NicsBridge,
    ];

    /// The cases that are compared on every bed; the others need [`Bed::VethRouted`].
    const CASES: [Case; 4] = [
        Case::Plain,
        Case::KernelVxlan,
        Case::McGateway,
        Case::McGatewayVxlan,
    ];

    /// The beds of a run that names none: all that this machine has.
    pub fn available() -> impl Iterator<Item = Self> {
        let nics = NicPair::are_named();
        Self::ALL
            .into_iter()
            .filter(move |bed| nics || bed.links() != Links::Nics)
    }

    /// Name on the command line and in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WireLikeRouted => "wire-like-routed",
            Self::WireLikeBridge => "wire-like-bridge",
            Self::WireLikeChecksums => "wire-like-checksums",
            Self::VethRouted => "veth-routed",
            Self::VethBridge => "veth-bridge",
            Self::NicsRouted => "nics-routed",
            Self::NicsBridge => "nics-bridge",
        }
    }

    /// Short description.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::WireLikeRouted => "wire-like underlay, routed Pods",
            Self::WireLikeBridge => "wire-like underlay, Pods on a bridge",
            Self::WireLikeChecksums => "wire-like underlay, complete checksums",
            Self::VethRouted => "veth underlay, routed Pods",
            Self::VethBridge => "veth underlay, Pods on a bridge",
            Self::NicsRouted => "network devices, routed Pods",
            Self::NicsBridge => "network devices, Pods on a bridge",
        }
    }

    /// Whether Pods are attached to a bridge.
    #[must_use]
    pub const fn bridge(self) -> bool {
        matches!(self, Self::WireLikeBridge | Self::VethBridge | Self::NicsBridge)
    }

    /// Links between the nodes.
    #[must_use]
    pub const fn links(self) -> Links {
        match self {
            Self::WireLikeRouted | Self::WireLikeBridge => Links::WireLike,
            Self::WireLikeChecksums => Links::WireLikeForXdp,
            Self::VethRouted | Self::VethBridge => Links::Veth,
            Self::NicsRouted | Self::NicsBridge => Links::Nics,
        }
    }

    /// Whether a case is measured on this bed.
    #[must_use]
    pub fn has(self, case: Case) -> bool {
        if case.is_xdp() {
            return matches!(self, Self::WireLikeChecksums | Self::NicsRouted);
        }
        self == Self::VethRouted || Self::CASES.contains(&case)
    }

    /// Subject of a case's samples on this bed. Those of [`Bed::VethRouted`], the only bed of earlier reports, have
    /// the name of the case.
    #[must_use]
    pub fn subject(self, case: Case) -> String {
        match self {
            Self::VethRouted => case.name().to_owned(),
            bed => format!("{}.{}", bed.name(), case.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_command_line_and_the_report() {
        for bed in Bed::ALL {
            assert_eq!(Bed::from_str(bed.name(), false), Ok(bed));
            assert_eq!(
                serde_json::to_string(&bed).unwrap(),
                format!("\"{}\"", bed.name())
            );
        }
        assert_eq!(Bed::value_variants(), Bed::ALL);
    }

    #[test]
    fn subjects_of_beds_and_cases_are_distinct() {
        let subjects: std::collections::BTreeSet<String> = Bed::ALL
            .into_iter()
            .flat_map(|bed| Case::ALL.map(|case| bed.subject(case)))
            .collect();
        assert_eq!(subjects.len(), Bed::ALL.len() * Case::ALL.len());
        assert_eq!(Bed::VethRouted.subject(Case::Plain), "plain");
    }
}
