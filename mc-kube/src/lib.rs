//! Kubernetes client parts shared by the controllers and the agent: client construction, one watch driver with
//! back-off, object stores, error texts.
#![forbid(unsafe_code)]

mod backoff;
mod client;
mod error;
mod name;
pub mod pod;
mod session_token;
mod store;
mod task;
mod transport;
mod watch;

pub use backoff::{Backoff, jitter_seed};
pub use client::{ClientError, ConfigSource, client, client_with_session_token, client_with_token};
pub use error::error_chain;
pub use name::NamespacedName;
pub use session_token::SessionAccount;
pub use store::{
    CacheState, FullSnapshot, ObjectMap, OptionalKind, RelistStats, Store, WatchContext, WatchObserver,
};
pub use task::AbortOnDrop;
pub use transport::Multiplexing;
pub use watch::{MAX_BACKOFF, is_expired, is_unknown_kind, watch};
