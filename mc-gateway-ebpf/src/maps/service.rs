//! The Service translation maps.

use mc_gateway_common::tables::service::Services;

use super::Maps;

impl Services for Maps {}
