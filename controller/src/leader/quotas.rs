//! Quotas of members: the exports that the leader distributes for one of them.
//!
//! Without a bound a member with stolen credentials fills the API servers of all importers. Annotations of the member's
//! ServiceAccount, or of the Namespace of a single member, replace the defaults.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    io,
};

use kube::ResourceExt;
use mc_api::{
    names,
    resource_export::{ResourceExport, kind},
};
use mc_kube::NamespacedName;
use serde::Serialize;

use super::{
    account_bindings::{self, RestrictedMember},
    admission::without,
    export_status,
    resources::is_active,
};
use crate::{issue_code::IssueCode, plan::Plan, snapshot::LeaderSnapshot};

/// The refused exports of a cluster with a status and an Event; the others are counted in one issue.
const MAX_REPORTED: usize = 50;

/// A bounded resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bounded {
    /// Exported Services.
    Services,
    /// The addresses of all exported endpoints.
    Endpoints,
    /// Exported label identities.
    LabelIdentities,
    /// The prefixes of the network: a plan compares each with those of all clusters.
    Prefixes,
    /// The bytes that importers receive, in their copy of the export and again in their own objects: the JSON of a
    /// Service or of endpoints, which has texts without a bound of their own, and the text of a label identity.
    Bytes,
}

const ALL: [Bounded; 5] = [
    Bounded::Services,
    Bounded::Endpoints,
    Bounded::LabelIdentities,
    Bounded::Prefixes,
    Bounded::Bytes,
];

/// The bounds of one member.
type Quota = BTreeMap<Bounded, usize>;

/// An export beyond a quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cluster exceeds its quota of {max} {} (annotation {} of its {holder})", bounded.plural(), bounded.annotation())]
pub(super) struct QuotaError {
    bounded: Bounded,
    max: usize,
    /// The kind of the annotated object.
    holder: &'static str,
}

/// The snapshot without the exports beyond the quotas: of each cluster the oldest ones that fit are kept.
#[must_use]
pub(super) fn enforce<'a>(
    snapshot: Cow<'a, LeaderSnapshot>,
    bindings: &BTreeMap<String, String>,
    plan: &mut Plan,
) -> Cow<'a, LeaderSnapshot> {
    let quotas = quotas(&snapshot, bindings, plan);
    let mut refused = BTreeSet::new();
    for (cluster, bounded) in exceeded(&snapshot, &quotas) {
        let max = bound(&quotas, cluster, bounded);
        let exports = beyond(&snapshot, cluster, bounded, max);
        let has_namespace = snapshot.member_namespaces.home(cluster).is_some();
        let holder = if has_namespace {
            "Namespace"
        } else {
            "ServiceAccount"
        };
        let error = QuotaError { bounded, max, holder };
        // Exports of label identities have no status.
        let reported = exports
            .iter()
            .filter(|(_, export)| export.spec.kind != kind::LABEL_IDENTITY);
        for (_, export) in reported.take(MAX_REPORTED) {
            export_status::write(&snapshot, export, Some(&error.to_string()), plan);
        }
        plan.issue(
            IssueCode::QuotaExceeded,
            format!("cluster {cluster:?}"),
            format!("{} ResourceExports are ignored: {error}", exports.len()),
        );
        refused.extend(exports.into_iter().map(|(name, _)| name.clone()));
    }
    if refused.is_empty() {
        return snapshot;
    }
    Cow::Owned(without(&snapshot, &refused))
}

/// The bounds that annotations set, by cluster. An invalid one is reported and has no effect.
fn quotas(
    snapshot: &LeaderSnapshot,
    bindings: &BTreeMap<String, String>,
    plan: &mut Plan,
) -> BTreeMap<String, Quota> {
    let mut quotas: BTreeMap<String, Quota> = BTreeMap::new();
    for restricted in account_bindings::restricted_members(snapshot, bindings) {
        let Some(cluster) = restricted.cluster else {
            continue;
        };
        for bounded in ALL {
            if let Some(max) = annotated(&restricted, bounded, plan) {
                quotas.entry(cluster.to_owned()).or_default().insert(bounded, max);
            }
        }
    }
    quotas
}

fn annotated(restricted: &RestrictedMember<'_>, bounded: Bounded, plan: &mut Plan) -> Option<usize> {
    let annotation = bounded.annotation();
    let value = restricted.annotations.get(annotation)?;
    let max = value.parse().ok();
    if max.is_none() {
        plan.issue(
            IssueCode::InvalidAnnotation,
            restricted.subject.as_str(),
            format!("annotation {annotation}: {value:?} is not a number; ignored"),
        );
    }
    max
}

fn bound(quotas: &BTreeMap<String, Quota>, cluster: &str, bounded: Bounded) -> usize {
    let quota = quotas.get(cluster).and_then(|quota| quota.get(&bounded));
    quota.copied().unwrap_or_else(|| bounded.default_max())
}

/// The quotas that clusters exceed.
fn exceeded<'a>(snapshot: &'a LeaderSnapshot, quotas: &BTreeMap<String, Quota>) -> Vec<(&'a str, Bounded)> {
    let mut used: BTreeMap<(&str, Bounded), usize> = BTreeMap::new();
    for export in snapshot.exports.values().filter(|export| is_active(export)) {
        let amounts = ALL
            .into_iter()
            .filter_map(|bounded| Some((bounded, amount(export, bounded)?)));
        for (bounded, amount) in amounts {
            let total = used.entry((&export.spec.cluster_id, bounded)).or_default();
            *total = total.saturating_add(amount);
        }
    }
    let exceeded = used
        .into_iter()
        .filter(|((cluster, bounded), used)| *used > bound(quotas, cluster, *bounded));
    exceeded.map(|(key, _)| key).collect()
}

/// The active exports of a cluster that do not fit; the oldest ones fit first.
fn beyond<'a>(
    snapshot: &'a LeaderSnapshot,
    cluster: &str,
    bounded: Bounded,
    max: usize,
) -> Vec<(&'a NamespacedName, &'a ResourceExport)> {
    let exports = snapshot.exports.iter();
    let exports = exports.filter(|(_, export)| is_active(export) && export.spec.cluster_id == cluster);
    let mut exports: Vec<_> = exports
        .filter_map(|(name, export)| {
            let amount = amount(export, bounded)?;
            Some((name, export.as_ref(), amount))
        })
        .collect();
    exports.sort_by_cached_key(|(name, export, _)| (export.creation_timestamp(), *name));
    let mut used = 0_usize;
    exports.retain(|(_, _, amount)| {
        let total = used.saturating_add(*amount);
        let is_beyond = total > max;
        if !is_beyond {
            used = total;
        }
        is_beyond
    });
    exports
        .into_iter()
        .map(|(name, export, _)| (name, export))
        .collect()
}

/// The part of a bound that an export takes; `None` for kinds that it does not concern.
fn amount(export: &ResourceExport, bounded: Bounded) -> Option<usize> {
    let spec = &export.spec;
    Some(match (bounded, spec.kind.as_str()) {
        (Bounded::Services, kind::SERVICE) | (Bounded::LabelIdentities, kind::LABEL_IDENTITY) => 1,
        (Bounded::Endpoints, kind::ENDPOINTS) => {
            let subsets = spec.endpoints.iter().flat_map(|endpoints| &endpoints.subsets);
            let addresses = subsets.map(|subset| subset.addresses.as_ref().map_or(0, Vec::len));
            addresses.sum()
        }
        (Bounded::Prefixes, kind::CLUSTER_INFO) => {
            let info = spec.cluster_info.as_deref()?;
            info.service_cidrs().len().saturating_add(info.pod_cidrs.len())
        }
        (Bounded::Bytes, kind::SERVICE) => json_length(spec.service.as_ref()?),
        (Bounded::Bytes, kind::ENDPOINTS) => json_length(spec.endpoints.as_ref()?),
        (Bounded::Bytes, kind::LABEL_IDENTITY) => {
            let label = spec.label_identity.as_ref()?.get("normalizedLabel")?;
            label.as_str()?.len()
        }
        _ => return None,
    })
}

/// The length of a value as JSON; without the JSON, because each plan counts all exports.
fn json_length(value: &impl Serialize) -> usize {
    let mut length = Length(0);
    // Neither the writer nor the types fail.
    let _written = serde_json::to_writer(&mut length, value);
    length.0
}

/// Counts the bytes that are written.
struct Length(usize);

// === impl Length ===

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Bounded ===

impl Bounded {
    /// The bound of a member without annotation.
    fn default_max(self) -> usize {
        match self {
            Self::Services => 5_000,
            Self::Endpoints | Self::LabelIdentities => 100_000,
            Self::Prefixes => 1_024,
            Self::Bytes => 64 << 20,
        }
    }

    /// The annotation of a ServiceAccount that replaces it.
    fn annotation(self) -> &'static str {
        match self {
            Self::Services => names::ANNOTATION_MAX_SERVICES,
            Self::Endpoints => names::ANNOTATION_MAX_ENDPOINTS,
            Self::LabelIdentities => names::ANNOTATION_MAX_LABEL_IDENTITIES,
            Self::Prefixes => names::ANNOTATION_MAX_PREFIXES,
            Self::Bytes => names::ANNOTATION_MAX_BYTES,
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Services => "Services",
            Self::Endpoints => "endpoints",
            Self::LabelIdentities => "label identities",
            Self::Prefixes => "prefixes",
            Self::Bytes => "bytes",
        }
    }
}
