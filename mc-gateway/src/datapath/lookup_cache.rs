//! Size of the caches of look-ups by number of CPUs. Pure.

use mc_gateway_common::abi::lookup_cache::{CACHE_SET_BYTES, MAX_CACHE_BITS, MIN_CACHE_BITS};

/// Memory of the caches of all CPUs together, unless they are smaller than the smallest caches.
const MEMORY: usize = 64 << 20;

/// Binary logarithm of the sets of each cache on a host with this number of CPUs.
#[must_use]
pub(super) fn bits(cpus: usize) -> u32 {
    let mut sizes = (MIN_CACHE_BITS..=MAX_CACHE_BITS).rev();
    let fitting = sizes.find(|bits| memory(*bits, cpus) <= MEMORY);
    fitting.unwrap_or(MIN_CACHE_BITS)
}

/// Bytes of the caches of all CPUs.
fn memory(bits: u32, cpus: usize) -> usize {
    CACHE_SET_BYTES.saturating_mul(1 << bits).saturating_mul(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_shrink_with_the_number_of_cpus() {
        for (cpus, expected) in [
            (1, 13),
            (2, 13),
            (28, 13),
            (29, 12),
            (56, 12),
            (57, 11),
            (113, 11),
            (4096, 11),
        ] {
            assert_eq!(bits(cpus), expected, "{cpus} CPUs");
        }
    }

    #[test]
    fn a_cpu_has_at_most_a_few_megabytes() {
        assert_eq!(memory(MAX_CACHE_BITS, 1), 2_359_296);
        assert_eq!(memory(MIN_CACHE_BITS, 1), 589_824);
    }
}
