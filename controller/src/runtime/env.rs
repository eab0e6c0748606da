//! The environment of a controller: the time of day, and connections to other API servers.

use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use mc_kube::client_with_token;

use super::leader_connection::LeaderConnectionError;
use crate::member::connection_config::LeaderConnectionConfig;

/// Clock and connector of a controller; a simulation supplies its own.
pub trait Environment: Send + Sync {
    /// The time of day.
    fn now(&self) -> Timestamp;

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

    fn connect<'a>(
        &'a self,
        config: &'a LeaderConnectionConfig,
    ) -> BoxFuture<'a, Result<Client, LeaderConnectionError>> {
        Box::pin(async {
            let client = client_with_token(&config.server, &config.ca, &config.token).await;
            client.map_err(|error| LeaderConnectionError::Client {
                cause: error.to_string(),
            })
        })
    }
}
