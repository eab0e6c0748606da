//! Results that are kept between plans.

use super::maglev_tables::MaglevTables;

/// Results of earlier plans, which save work in later ones. No plan depends on them.
#[derive(Clone, Debug, Default)]
pub struct PlanCache {
    pub(super) tables: MaglevTables,
}
