//! Size of the caches of look-ups.

/// Names of the caches: per-CPU arrays of sets of two entries. They are not pinned: each load of the programs starts
/// with empty ones.
pub const LOOKUP_CACHES: [&str; 3] = ["mc_admit_cache", "mc_egress_cache", "mc_nh_cache"];
/// Name of the variable of the object with the binary logarithm of the sets of each cache, constant once loaded.
pub const CACHE_BITS: &str = "MC_CACHE_BITS";
/// Largest value of [`CACHE_BITS`], that of the object.
pub const MAX_CACHE_BITS: u32 = 13;
/// Smallest value of [`CACHE_BITS`].
pub const MIN_CACHE_BITS: u32 = 11;
/// Bytes of a set in each of the caches together.
pub const CACHE_SET_BYTES: usize = 2 * (72 + 48 + 24);
