//! Logs issues, errors and updates when they change.

use std::collections::BTreeMap;

use mc_gateway_common::abi::CONFIG_GATEWAY;
use tracing::{error, info, warn};

use crate::aggregation::Aggregation;
use crate::error_chain;
use crate::objects::FieldError;
use crate::resolved::ResolvedState;
use crate::transit::{TcReason, Transit};

/// State of the last log messages: each issue is logged once, and again only after it changed.
#[derive(Debug, Default)]
pub(super) struct ChangeLogger {
    pub(super) issues: Vec<FieldError>,
    aggregation: BTreeMap<String, Aggregation>,
    transit: BTreeMap<String, Transit>,
    error: Option<String>,
    ready: bool,
    ipv6_forwarding_off: bool,
}

impl ChangeLogger {
    /// Logs new and resolved issues.
    pub(super) fn issues(&mut self, issues: Vec<FieldError>) {
        for issue in &issues {
            if !self.issues.contains(issue) {
                let FieldError {
                    object,
                    field,
                    value,
                    reason,
                } = issue;
                warn!(%object, %field, %value, %reason, "field rejected");
            }
        }
        for issue in &self.issues {
            if !issues.contains(issue) {
                info!(object = %issue.object, field = %issue.field, value = %issue.value, "field no longer rejected");
            }
        }
        self.issues = issues;
    }

    /// Logs changes of the aggregation of tunnel packets by underlay device.
    pub(super) fn aggregation(&mut self, current: &BTreeMap<String, Aggregation>) {
        for (device, aggregation) in current {
            if self.aggregation.get(device) != Some(aggregation) {
                info!(%device, aggregation = %aggregation, "aggregation of tunnel packets");
            }
        }
        self.aggregation.clone_from(current);
    }

    /// Logs changes of the transit by underlay device, except where no XDP program is requested.
    pub(super) fn transit(&mut self, current: &BTreeMap<String, Transit>) {
        for (device, transit) in current {
            let is_requested = !matches!(transit, Transit::Tc(TcReason::Policy | TcReason::NoGateway));
            if self.transit.get(device) != Some(transit) && is_requested {
                info!(%device, transit = %transit, "transit");
            }
        }
        self.transit.clone_from(current);
    }

    /// Logs that IPv6 forwarding is off.
    pub(super) fn ipv6_forwarding(&mut self, on: bool) {
        if !on && !self.ipv6_forwarding_off {
            warn!(
                "net.ipv6.conf.all.forwarding is 0: this node does not forward IPv6 packets of Pods; run \
                 `sysctl -w net.ipv6.conf.all.forwarding=1`"
            );
        }
        self.ipv6_forwarding_off = !on;
    }

    /// Logs a failed reconcile.
    pub(super) fn error(&mut self, error: &(dyn std::error::Error + 'static)) {
        let text = error_chain(error);
        if self.error.as_ref() != Some(&text) {
            error!(error = %text, "reconcile failed; the data path stays unchanged");
        }
        self.error = Some(text);
    }

    /// Logs a successful reconcile that changed the data path or follows a failure.
    pub(super) fn success(&mut self, state: &ResolvedState, changes: usize) {
        if changes == 0 && self.ready && self.error.is_none() {
            return;
        }
        let message = if self.ready {
            "datapath updated"
        } else {
            "datapath ready"
        };
        info!(
            prefixes = state.prefixes.len(),
            next_hops = state.next_hops.len(),
            peers = state.peers.len(),
            gateway = state.flags & CONFIG_GATEWAY != 0,
            changes,
            "{message}"
        );
        self.ready = true;
        self.error = None;
    }
}
