//! The `ResourceExport`s that members read from each other, one of a kind for each cluster. The leader does not read
//! them.

use std::collections::BTreeMap;

use kube::ResourceExt;
use mc_api::{
    raw_payload::RawPayloadError,
    resource_export::{ResourceExport, ResourceExportSpec},
};
use serde_json::Value;

use super::{
    ActiveMembership,
    resource_exports::{apply_labelled_export, existing_export},
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::ObjectMap,
};

/// A kind of such exports, with a payload `T` in the field `raw`.
pub(super) struct MemberExport<T> {
    /// The kind.
    pub(super) kind: &'static str,
    /// The name of a cluster's export.
    pub(super) name: fn(&str) -> String,
    /// The noun for its content in issues.
    pub(super) content: &'static str,
    /// The payload of a field `raw`.
    pub(super) decode: fn(Option<&Value>) -> Result<T, RawPayloadError>,
}

// === impl MemberExport ===

impl<T> MemberExport<T> {
    /// Keeps the export of this cluster with that field `raw` and those labels, or deletes it where there is none.
    pub(super) fn keep(
        &self,
        membership: &ActiveMembership<'_>,
        raw: Option<Value>,
        labels: BTreeMap<String, String>,
        plan: &mut Plan,
    ) {
        let name = (self.name)(membership.cluster_id);
        if raw.is_some() {
            let spec = ResourceExportSpec {
                cluster_id: membership.cluster_id.to_owned(),
                kind: self.kind.to_owned(),
                raw,
                ..ResourceExportSpec::default()
            };
            apply_labelled_export(membership, &name, spec, labels, plan);
        } else if let Some(old) = existing_export(membership, &name) {
            plan.delete(ApiServer::Leader, old);
        }
    }

    /// The payloads of the other clusters, with their IDs; reports those that cannot be read.
    pub(super) fn of_others<'a>(
        &self,
        membership: &ActiveMembership<'_>,
        exports: &'a ObjectMap<ResourceExport>,
        plan: &mut Plan,
    ) -> Vec<(&'a str, T)> {
        let (mut payloads, mut bad) = (vec![], vec![]);
        let active = exports.values().filter(|export| {
            export.metadata.deletion_timestamp.is_none()
                && export.spec.kind == self.kind
                && export.spec.cluster_id != membership.cluster_id
        });
        for export in active {
            match self.payload(export) {
                Ok(payload) => payloads.push((export.spec.cluster_id.as_str(), payload)),
                Err(why) => bad.push((
                    format!("ResourceExport {}", export.name_any()),
                    format!("its {} are ignored: {why}", self.content),
                )),
            }
        }
        let subject = format!("ResourceExports of kind {}", self.kind);
        plan.issues(IssueCode::InvalidReport, &subject, bad);
        payloads
    }

    /// The payload of an export, or the reason to ignore it.
    fn payload(&self, export: &ResourceExport) -> Result<T, String> {
        let wanted = (self.name)(&export.spec.cluster_id);
        if export.name_any() != wanted {
            return Err(format!(
                "spec.clusterID {:?}: the name of its export is {wanted:?}",
                export.spec.cluster_id
            ));
        }
        (self.decode)(export.spec.raw.as_ref()).map_err(|error| error.to_string())
    }
}
