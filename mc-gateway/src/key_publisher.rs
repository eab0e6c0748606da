//! Publication of this Node's public key.

use std::time::Duration;

use mc_api::node_key::NodeKey;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::config::Config;
use crate::peer_secret::PublicKey;
use crate::source::kubernetes::node_object::NodeObjects;

/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Publishes the key whenever `wanted` is true; requires an API server.
pub fn start(config: &Config, key: PublicKey, wanted: watch::Receiver<bool>) {
    if let Some(objects) = NodeObjects::new(config) {
        tokio::spawn(run(objects, key, wanted));
    }
}

async fn run(objects: NodeObjects, key: PublicKey, mut wanted: watch::Receiver<bool>) {
    let NodeObjects { namespace, node, .. } = &objects;
    let mut logged = String::new();
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        let nodekey = |node: &str, uid: &str| Ok(NodeKey::of_node(node, uid, key.to_string()));
        let result = objects.create(nodekey).await;
        let state = result.map_or_else(
            |error| crate::error_chain(&error),
            |created| {
                if created {
                    String::new()
                } else {
                    "exists".to_owned()
                }
            },
        );
        if state.is_empty() {
            info!(namespace, nodekey = node, %key, "public key published");
        } else if state != logged {
            warn!(namespace, nodekey = node, %key, %state, "public key not published");
        }
        logged = state;
        // The watch of NodeKeys delivers the object.
        tokio::select! {
            done = wanted.wait_for(|wanted| !*wanted) => if done.is_err() {
                return;
            },
            () = sleep(RETRY_DELAY) => {}
        }
    }
}
