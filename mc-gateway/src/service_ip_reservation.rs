//! Reservation of an address for a Node that has none other clusters can reply to: the cluster IPs of a Service without
//! Pods, one per Node.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::config::Config;
use crate::reservation_service::{service, service_name};
use crate::source::kubernetes::node_object::NodeObjects;

/// Time a Node must need an address before it is reserved: a starting CNI may still assign one.
const RESERVE_DELAY: Duration = Duration::from_secs(10);

/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// Reserves addresses once `wanted` has been true for `RESERVE_DELAY`; requires an API server.
pub fn start(config: &Config, wanted: watch::Receiver<bool>) {
    if let Some(objects) = NodeObjects::new(config) {
        tokio::spawn(run(objects, wanted));
    }
}

async fn run(objects: NodeObjects, mut wanted: watch::Receiver<bool>) {
    let namespace = &objects.namespace;
    let name = service_name(&objects.node);
    let mut logged = String::new();
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        tokio::select! {
            left = wanted.wait_for(|wanted| !*wanted) => match left {
                Ok(_) => continue,
                Err(_) => return,
            },
            () = sleep(RESERVE_DELAY) => {}
        }
        let result = objects.create(|node, uid| Ok(service(node, uid)?)).await;
        let state = match &result {
            Ok(true) => "created".to_owned(),
            Ok(false) => "exists".to_owned(),
            Err(error) => format!("failed: {}", crate::error_chain(error)),
        };
        if state != logged {
            if result.is_ok() {
                info!(namespace, service = name, %state, "address reserved for this Node");
            } else {
                warn!(namespace, service = name, %state, "no address reserved for this Node");
            }
            logged = state;
        }
        // The watch of Services delivers the addresses.
        sleep(RETRY_DELAY).await;
    }
}
