//! Kubernetes client parts shared by the controllers and the agent: client construction, one watch driver with
//! back-off, object stores, error texts.
#![forbid(unsafe_code)]

mod backoff;
mod bound_token;
mod client;
mod error;
mod name;
pub mod pod;
mod store;
mod task;
mod transport;
mod watch;

pub use backoff::{Backoff, jitter_seed};
pub use bound_token::TokenAccount;
pub use client::{ClientError, ConfigSource, client, client_with_bound_token, client_with_token};
pub use error::error_chain;
pub use name::NamespacedName;
pub use store::{
    CacheState, FullSnapshot, ObjectMap, OptionalKind, RelistStats, Store, WatchContext, WatchObserver,
};
pub use task::AbortOnDrop;
pub use transport::Multiplexing;
pub use watch::{MAX_BACKOFF, is_expired, is_unknown_kind, watch};
