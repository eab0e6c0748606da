//! Features of a device (`ethtool -k`).

use ethtool::{EthtoolAttr, EthtoolError, EthtoolFeatureAttr, EthtoolFeatureBit};
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

/// The features of a device; none if the kernel does not report them.
pub async fn observe(device: &str) -> Option<Features> {
    match active(device).await {
        // The kernel lists active features only.
        Ok(active) => {
            let has = |name: &str| active.iter().any(|feature| feature.name == name);
            Some(Features {
                gro: has(GRO),
                strips_tags: has(VLAN_PARSE),
            })
        }
        Err(error) => {
            debug!(%device, %error, "features not read");
            None
        }
    }
}

async fn active(device: &str) -> Result<Vec<EthtoolFeatureBit>, EthtoolError> {
    let connection = ethtool::new_connection();
    let (connection, mut handle, _) =
        connection.map_err(|error| EthtoolError::RequestFailed(error.to_string()))?;
    tokio::spawn(connection);
    let mut messages = handle.feature().get(Some(device)).execute().await?;
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
