//! `labelIdentityExport: Selected`: a cluster exports the identities that policies of other clusters select.

use std::collections::BTreeSet;

use crate::{
    clusters::{EAST, LEADER, LEADER_NAMESPACE, LONG_TIMEOUT, SHORT_TIMEOUT},
    workload::{Client, Namespace},
};

const EXPORT_MODE: &str = "labelIdentityExport";

/// The labels that east exports.
fn exported() -> BTreeSet<String> {
    let selector = "sourceKind=LabelIdentity,sourceClusterID=test-cluster-east";
    let exports = LEADER.list(LEADER_NAMESPACE, "resourceexports", selector);
    let labels = exports
        .iter()
        .filter_map(|export| export["spec"]["labelIdentity"]["normalizedLabel"].as_str());
    labels.map(str::to_owned).collect()
}

fn wait_exported(what: &str, wanted: &[&str]) {
    let wanted: BTreeSet<String> = wanted.iter().map(|label| (*label).to_owned()).collect();
    LEADER.wait_for(what, LONG_TIMEOUT, || {
        let found = exported();
        if found == wanted {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
}

/// With a policy of west that selects the client by label in its Namespace, east exports this identity alone, without
/// an interruption for the client; `remove` and `apply` delete the policy and create it again.
pub(crate) fn check_selected_identities(
    ns: &Namespace,
    client: Client,
    url: &str,
    remove: impl FnOnce(),
    apply: impl FnOnce(),
) {
    let label = format!("ns:kubernetes.io/metadata.name={}&pod:app=client", ns.0);
    let mut stream = client.stream_from(url, "db");
    EAST.configure(EXPORT_MODE, "Selected");
    wait_exported("east exports the selected identity alone", &[&label]);
    stream.assert_running();
    stream.finish();
    remove();
    wait_exported("east exports no identity without a policy", &[]);
    apply();
    wait_exported("east exports the identity for a new policy", &[&label]);
    EAST.wait_for("the client passes with the new policy", SHORT_TIMEOUT, || {
        client.run(&["get", "--timeout", "1", url])
    });
    EAST.configure(EXPORT_MODE, "All");
    EAST.wait_for("east exports all identities", SHORT_TIMEOUT, || {
        let found = exported();
        if found.len() > 1 {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
}
