//! The environment of a controller: the time of day, and connections to other API servers.

use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use mc_api::names;
use mc_kube::{TokenAccount, client_with_bound_token, client_with_token};

use super::leader_connection::LeaderConnectionError;
use crate::member::connection_config::{Credentials, LeaderConnectionConfig};

/// Clock and connector of a controller; a simulation supplies its own.
pub trait Environment: Send + Sync {
    /// The time of day.
    fn now(&self) -> Timestamp;

    /// A random name for a run of a controller.
    fn instance(&self) -> String;

    /// Builds a client of the leader's API server; an unreachable server is no error here.
    fn connect<'a>(
        &'a self,
        config: &'a LeaderConnectionConfig,
    ) -> BoxFuture<'a, Result<Client, LeaderConnectionError>>;
}

/// This machine's clock and network.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnvironment;

// === impl SystemEnvironment ===

impl Environment for SystemEnvironment {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn instance(&self) -> String {
        // Without a source of random numbers two runs may share the name, which disables the detection of copies.
        let number = getrandom::u64().unwrap_or_default();
        format!("{number:016x}")
    }

    fn connect<'a>(
        &'a self,
        config: &'a LeaderConnectionConfig,
    ) -> BoxFuture<'a, Result<Client, LeaderConnectionError>> {
        Box::pin(async {
            let (server, ca) = (&config.server, &config.ca);
            let client = match &config.credentials {
                Credentials::Token(token) => client_with_token(server, ca, token).await,
                Credentials::Bootstrap { token, account } => {
                    let bootstrap = names::bootstrap_account(account);
                    let account = TokenAccount {
                        namespace: config.namespace.clone(),
                        name: account.clone(),
                        secret: bootstrap,
                    };
                    client_with_bound_token(server, ca, token, &account).await
                }
            };
            client.map_err(|error| LeaderConnectionError::Client {
                cause: error.to_string(),
            })
        })
    }
}
