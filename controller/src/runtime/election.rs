//! Leader election: acquires, renews and releases the Lease.
//!
//! Hand-written in place of `kube-leader-election` and `kubert`: both compare the Lease's times with the local clock,
//! and neither offers a fence for writes that are in flight when the Lease is lost. [`crate::lease`] decides.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{Api, Client, api::PostParams, core::ObjectMeta};
use mc_api::names::FIELD_MANAGER;
use mc_kube::error_chain;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::{
    fence::Fence,
    lease::{LeaseAction, LeaseObserver, RENEW_DEADLINE, RETRY_PERIOD, released},
    metrics::Metrics,
};

/// Time limit for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// The election of one kind of controller in one cluster.
pub struct Election {
    api: Api<Lease>,
    name: &'static str,
    identity: String,
    base: Instant,
    observer: LeaseObserver,
    fence: Fence,
    metrics: Option<Arc<Metrics>>,
}

// === impl Election ===

impl Election {
    /// The election on the Lease `name` in `namespace`, with `identity` as this replica's holder identity.
    #[must_use]
    pub fn new(client: &Client, namespace: &str, name: &'static str, identity: String) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            name,
            identity,
            base: Instant::now(),
            observer: LeaseObserver::default(),
            fence: Fence::closed(),
            metrics: None,
        }
    }

    /// Counts the election in `metrics`.
    #[must_use]
    pub fn with_metrics(mut self, metrics: &Arc<Metrics>) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// The fence, open while this replica holds the Lease.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Waits until this replica holds the Lease.
    pub async fn acquire(&mut self) {
        let mut logged = None;
        loop {
            let blocker = match self.try_acquire_or_renew().await {
                Ok(None) => break,
                Ok(Some(holder)) => Ok(format!("held by {holder:?}")),
                Err(error) => Err(error),
            };
            if let Some(metrics) = &self.metrics {
                metrics.standby(blocker.as_ref().map(drop).map_err(Clone::clone));
            }
            let blocker = blocker.unwrap_or_else(|error| error);
            if logged.as_ref() != Some(&blocker) {
                info!(lease = self.name, "waiting for the Lease: {blocker}");
                logged = Some(blocker);
            }
            sleep(RETRY_PERIOD).await;
        }
        info!(lease = self.name, identity = self.identity, "holding the Lease");
    }

    /// Renews the Lease until it is lost; returns the reason.
    pub async fn renew_until_lost(&mut self) -> String {
        loop {
            sleep(RETRY_PERIOD).await;
            match self.try_acquire_or_renew().await {
                Ok(None) => {
                    if let Some(metrics) = &self.metrics {
                        metrics.local.contacted();
                    }
                }
                Ok(Some(holder)) => return format!("it is held by {holder:?}"),
                Err(error) => warn!(lease = self.name, "Lease not renewed: {error}"),
            }
            if !self.fence.is_open() {
                return format!("it was not renewed for {} s", RENEW_DEADLINE.as_secs());
            }
        }
    }

    /// Releases the Lease, so that a standby need not wait for its expiry.
    pub async fn release(&self) {
        // Another replica may write from here on.
        self.fence.close();
        if let Err(error) = timeout(REQUEST_TIMEOUT, self.try_release())
            .await
            .unwrap_or_else(|_| Err("no answer".to_owned()))
        {
            debug!(lease = self.name, "Lease not released: {error}");
        }
    }

    async fn try_release(&self) -> Result<(), String> {
        let text = |error: kube::Error| error_chain(&error);
        let Some(mut lease) = self.api.get_opt(self.name).await.map_err(text)? else {
            return Ok(());
        };
        let spec = lease.spec.unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        lease.spec = Some(released(&spec, Timestamp::now()));
        self.write(lease).await.map(|_| ()).map_err(text)
    }

    /// Acquires or renews the Lease; returns its holder if that is another replica.
    async fn try_acquire_or_renew(&mut self) -> Result<Option<String>, String> {
        let begun = Instant::now();
        match timeout(REQUEST_TIMEOUT, self.step()).await {
            Ok(Ok(None)) => {
                self.fence.open_until(begun + RENEW_DEADLINE);
                Ok(None)
            }
            Ok(other) => other,
            Err(_) => Err(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())),
        }
    }

    async fn step(&mut self) -> Result<Option<String>, String> {
        let old = self
            .api
            .get_opt(self.name)
            .await
            .map_err(|error| error_chain(&error))?;
        let now = Instant::now().saturating_duration_since(self.base);
        let spec = old.as_ref().and_then(|lease| lease.spec.as_ref());
        match self
            .observer
            .next_action(&self.identity, spec, now, Timestamp::now())
        {
            LeaseAction::Wait { holder } => Ok(Some(holder)),
            // A conflict does not identify the writer: an earlier write of this replica that timed out may have been
            // executed late. The next step reads the holder.
            LeaseAction::Write(spec) => match self.write(self.lease(old, spec)).await {
                Ok(_) => Ok(None),
                Err(error) => Err(error_chain(&error)),
            },
        }
    }

    fn lease(&self, old: Option<Lease>, spec: LeaseSpec) -> Lease {
        let metadata = old.map_or_else(
            || ObjectMeta {
                name: Some(self.name.to_owned()),
                ..ObjectMeta::default()
            },
            |lease| lease.metadata,
        );
        Lease {
            metadata,
            spec: Some(spec),
        }
    }

    /// Creates the Lease, or replaces the version that was read.
    async fn write(&self, lease: Lease) -> Result<Lease, kube::Error> {
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        if lease.metadata.resource_version.is_some() {
            self.api.replace(self.name, &params, &lease).await
        } else {
            self.api.create(&params, &lease).await
        }
    }
}
