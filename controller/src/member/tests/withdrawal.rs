//! Exported Services that lose their last ready endpoint.

use std::time::Duration;

use jiff::Timestamp;
use mc_api::config::EndpointIpType;

use super::*;
use crate::snapshot::fake::delete;

const SERVICE: &str = "east-shop-web-service";
const ENDPOINTS: &str = "east-shop-web-endpoints";

/// Seconds of the default.
const WITHDRAW_AFTER: i64 = 300;

/// An exported Service; its only Pod becomes unready.
fn without_endpoints() -> MemberSnapshot {
    let mut snapshot = exporting();
    settle(&mut snapshot);
    lose_endpoints(&mut snapshot);
    snapshot
}

fn lose_endpoints(snapshot: &mut MemberSnapshot) {
    insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", false)]));
}

/// Addresses in the export of the endpoints, unless that is absent or being deleted.
fn exported_addresses(snapshot: &MemberSnapshot) -> Option<Vec<String>> {
    let export = export(snapshot, ENDPOINTS).filter(|e| e.metadata.deletion_timestamp.is_none())?;
    let subsets = export.spec.endpoints.iter().flat_map(|e| &e.subsets);
    let addresses = subsets.flat_map(|s| s.addresses.iter().flatten());
    Some(addresses.map(|a| a.ip.clone()).collect())
}

fn is_exported(snapshot: &MemberSnapshot) -> bool {
    let exports = [SERVICE, ENDPOINTS].map(|name| export(snapshot, name));
    exports
        .iter()
        .all(|e| e.is_some_and(|e| e.metadata.deletion_timestamp.is_none()))
}

fn end(snapshot: &MemberSnapshot) -> Timestamp {
    let end = SignedDuration::from_secs(WITHDRAW_AFTER);
    snapshot.now.checked_add(end).unwrap()
}

#[test]
fn a_restart_of_the_only_pod_keeps_the_exports() {
    for (kind, address) in [
        (EndpointIpType::ClusterIp, "10.20.0.5"),
        (EndpointIpType::PodIp, "10.11.0.6"),
    ] {
        let mut snapshot = exporting();
        snapshot.config.endpoint_ip_type = kind;
        settle(&mut snapshot);
        lose_endpoints(&mut snapshot);
        let end = end(&snapshot);
        settle(&mut snapshot);
        assert_eq!(exported_addresses(&snapshot), Some(vec![]));
        let failed = ("False".to_owned(), "ServiceWithoutEndpoints".to_owned());
        assert_eq!(valid(&snapshot), failed);
        let message = format!("Service has no Endpoints and remains exported until {end}");
        assert_eq!(conditions(&snapshot)[0].message, message);

        advance(&mut snapshot, WITHDRAW_AFTER - 1);
        settle(&mut snapshot);
        assert!(is_exported(&snapshot));
        insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.6", true)]));
        let to_leader: Vec<_> = plan(&snapshot)
            .writes
            .iter()
            .filter(|w| w.target.side == ApiServer::Leader)
            .map(|w| w.target.name.clone())
            .collect();
        assert_eq!(to_leader, [ENDPOINTS]);
        settle(&mut snapshot);
        assert_eq!(exported_addresses(&snapshot), Some(vec![address.to_owned()]));
        assert_eq!(valid(&snapshot), ("True".to_owned(), "Succeed".to_owned()));
    }
}

#[test]
fn a_headless_service_remains_headless_without_endpoints() {
    let mut snapshot = exporting();
    let headless = service(
        "web",
        &json!({ "clusterIP": "None", "clusterIPs": ["None"], "ports": [{ "port": 80 }] }),
    );
    insert(&mut snapshot.services, headless);
    settle(&mut snapshot);
    lose_endpoints(&mut snapshot);
    settle(&mut snapshot);
    let payload = export(&snapshot, SERVICE).unwrap().spec.service.clone().unwrap();
    assert_eq!(payload.service_spec.cluster_ip.as_deref(), Some("None"));
    assert_eq!(exported_addresses(&snapshot), Some(vec![]));
}

#[test]
fn a_service_without_endpoints_is_withdrawn_at_the_announced_time() {
    let mut snapshot = without_endpoints();
    let end = end(&snapshot);
    settle(&mut snapshot);
    assert_eq!(plan(&snapshot).next_requeue.map(|at| at <= end), Some(true));
    // In steps: the controller plans again at any time.
    for _ in 0..WITHDRAW_AFTER / 60 {
        assert!(is_exported(&snapshot));
        advance(&mut snapshot, 60);
        settle(&mut snapshot);
    }
    assert_eq!(exported_addresses(&snapshot), None);
    assert_eq!(conditions(&snapshot)[0].message, "Service has no Endpoints");
    leader(&mut snapshot).exports = ObjectMap::default();
    settle(&mut snapshot);
    assert!(export(&snapshot, SERVICE).is_none(), "not exported again");
}

#[test]
fn without_a_delay_the_service_is_withdrawn_at_once() {
    let mut snapshot = without_endpoints();
    snapshot.config.withdraw_after = SignedDuration::ZERO;
    reconcile(&mut snapshot);
    assert_eq!(exported_addresses(&snapshot), None);
}

#[test]
fn a_delay_without_end_keeps_nothing() {
    let mut snapshot = without_endpoints();
    snapshot.config.withdraw_after = SignedDuration::MAX;
    reconcile(&mut snapshot);
    assert_eq!(exported_addresses(&snapshot), None);
}

#[test]
fn the_delay_does_not_apply_to_a_deleted_export_or_service() {
    let kept = {
        let mut snapshot = without_endpoints();
        settle(&mut snapshot);
        assert!(is_exported(&snapshot));
        snapshot
    };
    let mut unexported = kept.clone();
    unexported.service_exports = ObjectMap::default();
    let mut deleted = kept.clone();
    deleted.services = ObjectMap::default();
    let mut external = kept;
    insert(
        &mut external.services,
        service(
            "web",
            &json!({ "type": "ExternalName", "externalName": "example.com" }),
        ),
    );
    for mut snapshot in [unexported, deleted, external] {
        reconcile(&mut snapshot);
        assert_eq!(exported_addresses(&snapshot), None);
    }
}

#[test]
fn a_service_without_endpoints_is_not_exported_anew() {
    let mut snapshot = exporting();
    lose_endpoints(&mut snapshot);
    settle(&mut snapshot);
    assert!(export(&snapshot, SERVICE).is_none());
    assert_eq!(conditions(&snapshot)[0].message, "Service has no Endpoints");
    // Nor while its former export is being deleted.
    let mut withdrawn = without_endpoints();
    let name = NamespacedName::new(LEADER_NS, SERVICE);
    delete(&mut leader(&mut withdrawn).exports, &name);
    let deletes = plan(&withdrawn).writes;
    assert!(
        deletes
            .iter()
            .all(|w| w.target.side == ApiServer::Local || w.target.name == ENDPOINTS),
        "{deletes:#?}"
    );
    reconcile(&mut withdrawn);
    assert_eq!(exported_addresses(&withdrawn), None);
}

#[test]
fn a_clock_set_back_does_not_prolong_the_delay() {
    let mut snapshot = without_endpoints();
    settle(&mut snapshot);
    let set_back = Duration::from_hours(48);
    snapshot.now = snapshot.now.checked_sub(set_back).unwrap();
    assert_eq!(
        plan(&snapshot).next_requeue.map(|at| at <= end(&snapshot)),
        Some(true)
    );
}

#[test]
fn an_unreachable_leader_withdraws_nothing() {
    let mut snapshot = without_endpoints();
    settle(&mut snapshot);
    let connected = snapshot.leader.take();
    settle(&mut snapshot);
    snapshot.leader = connected;
    advance(&mut snapshot, 60);
    settle(&mut snapshot);
    assert!(is_exported(&snapshot));
}

#[test]
fn another_services_export_of_the_same_name_is_not_kept() {
    let mut snapshot = without_endpoints();
    let mut other = export(&snapshot, SERVICE).unwrap().as_ref().clone();
    // Both are exported as `east-shop-web-service`.
    "web".clone_into(&mut other.spec.namespace);
    "shop".clone_into(&mut other.spec.name);
    insert(&mut leader(&mut snapshot).exports, other);
    reconcile(&mut snapshot);
    assert_eq!(conditions(&snapshot)[0].message, "Service has no Endpoints");
}
