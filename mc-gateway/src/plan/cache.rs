//! Results that are kept between plans.

use super::maglev_tables::MaglevTables;
use super::prefixes::UnchangedPrefixes;
use super::routes::UnchangedRoutes;

/// Results of earlier plans, which save work in later ones. No plan depends on them.
#[derive(Clone, Debug, Default)]
pub struct PlanCache {
    pub(super) tables: MaglevTables,
    pub(super) prefixes: UnchangedPrefixes,
    pub(super) routes: UnchangedRoutes,
}
