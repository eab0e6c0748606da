//! The liveness maps.

use mc_gateway_common::tables::health::Health;

use super::Maps;

impl Health for Maps {}
