//! Being the one replica that works, for as long as the Lease is ours.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{Api, Client, api::PostParams, core::ObjectMeta};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::watch::chain;
use crate::{
    api::names::FIELD_MANAGER,
    lease::{DEADLINE, PERIOD, Seen, Step, released},
    metrics::Metrics,
};

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Whether this replica may still write: closes by itself when the Lease is not renewed in time, also in a process
/// that was stopped meanwhile.
#[derive(Clone, Debug)]
pub struct Fence {
    base: Instant,
    /// Milliseconds after `base` until which it is open.
    until: Arc<AtomicU64>,
}

/// The election of one kind of controller in one cluster.
pub struct Election {
    api: Api<Lease>,
    name: &'static str,
    identity: String,
    base: Instant,
    seen: Seen,
    fence: Fence,
    metrics: Option<Arc<Metrics>>,
}

// === impl Fence ===

impl Fence {
    /// One that never closes: for a controller that is alone.
    #[must_use]
    pub fn open() -> Self {
        Self {
            base: Instant::now(),
            until: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }

    pub(crate) fn closed() -> Self {
        Self {
            until: Arc::new(AtomicU64::new(0)),
            ..Self::open()
        }
    }

    /// Whether writing is still allowed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let now = Instant::now().saturating_duration_since(self.base).as_millis();
        now < u128::from(self.until.load(Ordering::Acquire))
    }

    fn open_until(&self, at: Instant) {
        let millis = at.saturating_duration_since(self.base).as_millis();
        self.until
            .store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Release);
    }
}

// === impl Election ===

impl Election {
    /// The election by the Lease `name` in `namespace`, in which this replica is called `identity`.
    #[must_use]
    pub fn new(client: &Client, namespace: &str, name: &'static str, identity: String) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            name,
            identity,
            base: Instant::now(),
            seen: Seen::default(),
            fence: Fence::closed(),
            metrics: None,
        }
    }

    /// Lets `metrics` know how it goes.
    #[must_use]
    pub fn seen_by(mut self, metrics: &Arc<Metrics>) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// What is open while this replica may write.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Waits until this replica is the one.
    pub async fn win(&mut self) {
        let mut told = None;
        loop {
            let waits_for = match self.attempt().await {
                Ok(None) => break,
                Ok(Some(holder)) => Ok(format!("held by {holder:?}")),
                Err(error) => Err(error),
            };
            if let Some(metrics) = &self.metrics {
                metrics.waits(waits_for.as_ref().map(drop).map_err(Clone::clone));
            }
            let waits_for = waits_for.unwrap_or_else(|error| error);
            if told.as_ref() != Some(&waits_for) {
                info!(lease = self.name, "waiting for the Lease: {waits_for}");
                told = Some(waits_for);
            }
            sleep(PERIOD).await;
        }
        info!(lease = self.name, identity = self.identity, "holding the Lease");
    }

    /// Renews the Lease until it is lost; says how.
    pub async fn keep(&mut self) -> String {
        loop {
            sleep(PERIOD).await;
            match self.attempt().await {
                Ok(None) => {
                    if let Some(metrics) = &self.metrics {
                        metrics.local.answered();
                    }
                }
                Ok(Some(holder)) => return format!("it is held by {holder:?}"),
                Err(error) => warn!(lease = self.name, "not renewed: {error}"),
            }
            if !self.fence.is_open() {
                return format!("it was not renewed for {} s", DEADLINE.as_secs());
            }
        }
    }

    /// Gives the Lease back, so that nobody has to wait for its end.
    pub async fn release(&self) {
        // From here on nothing may be written.
        self.fence.open_until(self.base);
        if let Err(error) = timeout(TIMEOUT, self.give_back())
            .await
            .unwrap_or_else(|_| Err("no answer".to_owned()))
        {
            debug!(lease = self.name, "not given back: {error}");
        }
    }

    async fn give_back(&self) -> Result<(), String> {
        let said = |error: kube::Error| chain(&error);
        let Some(mut lease) = self.api.get_opt(self.name).await.map_err(said)? else {
            return Ok(());
        };
        let spec = lease.spec.unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        lease.spec = Some(released(&spec, Timestamp::now()));
        self.write(lease).await.map(|_| ()).map_err(said)
    }

    /// One step; `None`: the Lease is ours, else who holds it.
    async fn attempt(&mut self) -> Result<Option<String>, String> {
        let begun = Instant::now();
        match timeout(TIMEOUT, self.step()).await {
            Ok(Ok(None)) => {
                self.fence.open_until(begun + DEADLINE);
                Ok(None)
            }
            Ok(other) => other,
            Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
        }
    }

    async fn step(&mut self) -> Result<Option<String>, String> {
        let old = self.api.get_opt(self.name).await.map_err(|error| chain(&error))?;
        let now = Instant::now().saturating_duration_since(self.base);
        let spec = old.as_ref().and_then(|lease| lease.spec.as_ref());
        match self.seen.step(&self.identity, spec, now, Timestamp::now()) {
            Step::Wait { holder } => Ok(Some(holder)),
            // A conflict says that it was written meanwhile, not by whom: an earlier write of ours that was given up
            // may have come late. Who holds it is read in the next step.
            Step::Write(spec) => match self.write(self.lease(old, spec)).await {
                Ok(_) => Ok(None),
                Err(error) => Err(chain(&error)),
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

    /// Creates it, or replaces the version it was made from.
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
