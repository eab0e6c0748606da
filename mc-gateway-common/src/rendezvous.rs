//! Weighted rendezvous hashing in integers. Pure.
//!
//! *Guarantees*: a total order on candidates with different hashes, so the best of a set does not depend on
//! its order, and the removal of a candidate only moves its own flows. Shares follow the weights. A candidate of
//! weight 0 only wins against another of weight 0.

/// A next hop as a candidate for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Hash of the flow and the next hop's ID.
    pub hash: u32,
    /// Relative share.
    pub weight: u32,
}

/// Whether `a` wins against `b`; of equal candidates, either wins.
///
/// The winner has the smallest `-log2(hash / 2^32) / weight` (weighted rendezvous hashing, Schindelhauer
/// and Schomaker 2005), compared by cross multiplication. With equal weights that is the larger hash.
#[inline(always)]
#[must_use]
pub fn hrw_better(a: Candidate, b: Candidate) -> bool {
    if a.weight == b.weight {
        return a.hash >= b.hash;
    }
    // Below 2^22 × 2^32.
    let of_a = cost(a.hash).wrapping_mul(u64::from(b.weight));
    let of_b = cost(b.hash).wrapping_mul(u64::from(a.weight));
    if of_a == of_b {
        a.hash >= b.hash
    } else {
        of_a < of_b
    }
}

/// `-log2(hash / 2^32)` in units of 2^-16, at least 1; never increases with `hash`.
///
/// The logarithm between two powers of two is a polynomial that agrees with it at both ends and in the
/// middle, and in its slopes at the ends: the error is below 0.0005.
#[inline(always)]
fn cost(hash: u32) -> u64 {
    const ONE: u64 = 1 << 16;
    // 1/ln 2 - 1 = A + B and 1 - 1/(2 ln 2) = A are the slopes, D the middle.
    const A: u64 = 18_261;
    const B: u64 = 10_754;
    const D: u64 = 5_478;
    let hash = hash | 1;
    let zeros = hash.leading_zeros();
    let fraction = u64::from(hash.wrapping_shl(zeros) >> 15) & 0xffff;
    let rest = ONE.wrapping_sub(fraction);
    let product = fraction.wrapping_mul(rest) >> 16;
    let bend = A
        .wrapping_add(B.wrapping_mul(rest) >> 16)
        .wrapping_sub(D.wrapping_mul(product) >> 16);
    let log = fraction.wrapping_add(product.wrapping_mul(bend) >> 16);
    let whole = u64::from(zeros.wrapping_add(1)) << 16;
    // The logarithm is rounded down: one more makes the largest hash cost something.
    whole.wrapping_sub(log).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate() -> impl Strategy<Value = Candidate> {
        (any::<u32>(), prop_oneof![0..5_u32, any::<u32>()])
            .prop_map(|(hash, weight)| Candidate { hash, weight })
    }

    #[test]
    fn cost_is_the_logarithm() {
        for step in 0..200_000_u32 {
            let hash = step.wrapping_mul(0x9e37_79b1) | 1;
            let exact = -(f64::from(hash) / 4_294_967_296.0).log2();
            #[expect(clippy::cast_precision_loss, reason = "below 2^22")]
            let ours = cost(hash) as f64 / 65_536.0;
            assert!((exact - ours).abs() < 0.0005, "{hash}: {exact} {ours}");
        }
    }

    #[test]
    fn cost_at_the_ends() {
        assert_eq!(cost(0), (32 << 16) + 1);
        assert_eq!(cost(u32::MAX), 2);
        assert_eq!(cost(1 << 31), (1 << 16) + 1);
    }

    #[test]
    fn weight_0_loses_to_any_weight() {
        let drained = Candidate {
            hash: u32::MAX,
            weight: 0,
        };
        let other = Candidate { hash: 0, weight: 1 };
        assert!(hrw_better(other, drained) && !hrw_better(drained, other));
    }

    proptest! {
        #[test]
        fn cost_never_increases_with_the_hash(a: u32, b: u32) {
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(cost(low) >= cost(high));
        }

        #[test]
        fn cost_does_not_increase_from_one_hash_to_the_next(hash in 0..u32::MAX) {
            prop_assert!(cost(hash) >= cost(hash + 1));
        }

        #[test]
        fn exactly_one_of_two_is_preferred(a in candidate(), b in candidate()) {
            prop_assume!(a.hash != b.hash);
            prop_assert_ne!(hrw_better(a, b), hrw_better(b, a));
        }

        #[test]
        fn preference_is_transitive(a in candidate(), b in candidate(), c in candidate()) {
            if hrw_better(a, b) && hrw_better(b, c) {
                prop_assert!(hrw_better(a, c));
            }
        }
    }
}
