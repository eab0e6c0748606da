//! Typed access to the pinned maps, one file per group of maps.

mod batch;
mod contents;
mod counters;
mod entries;
mod error;
mod flow_state;
mod liveness;
mod pinned;
mod policy;
mod prefix_writes;
mod prefixes;
mod readback;
mod service;

pub use contents::MapContents;
pub(crate) use contents::nexthop_slots;
pub use counters::{CounterMaps, Counters, PeerCounterMap, RuleCounterMap};
pub use error::MapsError;
pub(crate) use error::{map_error, open};
pub use flow_state::{FlowMaps, FlowState};
pub use liveness::{LivenessMaps, NextHopHealth};
pub use pinned::PinnedMaps;
pub use policy::PolicyContents;
pub use prefix_writes::{PrefixChange, PrefixTable, PrefixWrite};
