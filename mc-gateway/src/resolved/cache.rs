//! Results that are kept between resolutions.

use super::prefix::PrefixEntries;
use super::supernets::Supernets;

/// Results of the last resolution, which save work in the next one. No resolution depends on them.
#[derive(Clone, Debug, Default)]
pub struct ResolutionCache {
    pub(super) prefixes: PrefixEntries,
    pub(super) supernets: Supernets,
}
