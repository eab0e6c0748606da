//! Clients of the API servers of `cargo xtask cluster`.

use std::env;

use anyhow::{Context as _, Result};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// A client of `cluster` with administrator rights, or impersonating a `ServiceAccount` (namespace, name).
pub async fn connect(cluster: &str, account: Option<(&str, &str)>) -> Result<Client> {
    let path = env::var_os("MC_KUBECONFIG").context(
        "MC_KUBECONFIG is not set: run `cargo xtask test --suite e2e` or `cargo xtask bench --suite control`",
    )?;
    let options = KubeConfigOptions {
        context: Some(cluster.to_owned()),
        ..KubeConfigOptions::default()
    };
    let mut config = Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?;
    if let Some((namespace, account)) = account {
        config.auth_info.impersonate = Some(format!("system:serviceaccount:{namespace}:{account}"));
        config.auth_info.impersonate_groups = Some(vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ]);
    }
    Ok(Client::try_from(config)?)
}
