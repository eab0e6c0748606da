//! Deletes the `Endpoints` that Antrea's controller left beside imported Services.
//!
//! Kubernetes mirrors them into slices of the imported Service, so that connections would still be sent to their
//! addresses, which nothing keeps up to date. The mirrors, which have the annotations of their `Endpoints`, reveal them
//! without a watch of all `Endpoints`.

use k8s_openapi::api::{core::v1::Endpoints, discovery::v1::EndpointSlice};
use kube::{ResourceExt, core::ObjectMeta};
use mc_api::names;

use super::imported_service::is_imported;
use crate::{
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, get},
};

/// Deletes the `Endpoints` of each mirror.
pub(super) fn plan(snapshot: &MemberSnapshot, plan: &mut Plan) {
    for slice in snapshot.endpoint_slices.values() {
        if let Some(endpoints) = mirrored_endpoints(snapshot, slice) {
            plan.delete(ApiServer::Local, &endpoints);
        }
    }
}

/// The `Endpoints` of Antrea's controller that a slice of an imported Service mirrors.
fn mirrored_endpoints(snapshot: &MemberSnapshot, slice: &EndpointSlice) -> Option<Endpoints> {
    if slice.labels().get(names::LABEL_MANAGED_BY)? != names::MIRRORED_BY
        || !slice
            .annotations()
            .contains_key(names::ANNOTATION_IMPORTED_SERVICE)
    {
        return None;
    }
    let (namespace, name) = (slice.namespace()?, slice.labels().get(names::LABEL_SERVICE_NAME)?);
    get(&snapshot.services, &namespace, name).filter(|service| is_imported(service))?;
    let owner = slice
        .owner_references()
        .iter()
        .find(|owner| owner.kind == "Endpoints")?;
    Some(Endpoints {
        metadata: ObjectMeta {
            name: Some(owner.name.clone()),
            namespace: Some(namespace),
            // Without it, a later object of the same name could be deleted.
            uid: Some(owner.uid.clone()),
            ..ObjectMeta::default()
        },
        subsets: None,
    })
}
