//! Features of devices (`ethtool -k`).

use std::collections::BTreeMap;

use ethtool::{EthtoolAttr, EthtoolError, EthtoolFeatureAttr, EthtoolFeatureBit, EthtoolHandle};
use futures::TryStreamExt as _;
use tracing::debug;

/// Names of the features in the kernel (`netdev_features_strings`, `net/ethtool/common.c`).
const GRO: &str = "rx-gro";
const VLAN_PARSE: &str = "rx-vlan-hw-parse";

/// Features of a device that decide about super-packets and XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Generic receive offload.
    pub gro: bool,
    /// The driver removes the VLAN tag of a frame.
    pub strips_tags: bool,
}

/// The features of devices; those of a device are missing if the kernel does not report them.
pub async fn observe(devices: impl IntoIterator<Item = &String>) -> BTreeMap<String, Features> {
    let mut found = BTreeMap::new();
    let (connection, handle, _) = match ethtool::new_connection() {
        Ok(connection) => connection,
        Err(error) => {
            debug!(%error, "features not read");
            return found;
        }
    };
    let connection = tokio::spawn(connection);
    for device in devices {
        match active(&handle, device).await {
            Ok(active) => {
                let has = |name: &str| active.iter().any(|feature| feature.name == name);
                let features = Features {
                    gro: has(GRO),
                    strips_tags: has(VLAN_PARSE),
                };
                found.insert(device.clone(), features);
            }
            Err(error) => debug!(%device, %error, "features not read"),
        }
    }
    connection.abort();
    found
}

/// The active features of a device.
async fn active(handle: &EthtoolHandle, device: &str) -> Result<Vec<EthtoolFeatureBit>, EthtoolError> {
    let mut messages = handle.clone().feature().get(Some(device)).execute().await?;
    let mut active = Vec::new();
    while let Some(message) = messages.try_next().await? {
        for attribute in message.payload.nlas {
            if let EthtoolAttr::Feature(EthtoolFeatureAttr::Active(features)) = attribute {
                active.extend(features);
            }
        }
    }
    Ok(active)
}
