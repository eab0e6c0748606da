//! What a controller takes from outside of its own cluster: the time of day, and ways to other API servers.

use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;

use super::link::{self, LinkError};
use crate::member::membership::LinkSpec;

/// The world around a controller and its API server; a simulation brings its own.
pub trait Outside: Send + Sync {
    /// The time of day.
    fn now(&self) -> Timestamp;

    /// A client of the leader's API server; that nobody answers there shows later.
    fn connect<'a>(&'a self, spec: &'a LinkSpec) -> BoxFuture<'a, Result<Client, LinkError>>;
}

/// The clock of this machine, and its network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

// === impl Real ===

impl Outside for Real {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn connect<'a>(&'a self, spec: &'a LinkSpec) -> BoxFuture<'a, Result<Client, LinkError>> {
        Box::pin(link::client(spec))
    }
}
