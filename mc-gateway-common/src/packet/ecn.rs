//! Congestion marks across a tunnel: RFC 6040, normal mode.

/// The ECN bits of a type of service or traffic class byte (RFC 3168).
const MASK: u8 = 0b11;
const NOT_ECT: u8 = 0b00;
const ECT_1: u8 = 0b01;
const CE: u8 = 0b11;

/// DSCP and ECN of the outer header: the DSCP is the inner packet's or `fixed`, the ECN always the inner packet's
/// (RFC 6040 section 4.1).
#[inline(always)]
#[must_use]
pub const fn outer(inner: u8, fixed: Option<u8>) -> u8 {
    match fixed {
        Some(tos) => (tos & !MASK) | (inner & MASK),
        None => inner,
    }
}

/// DSCP and ECN of the inner header after decapsulation (RFC 6040 figure 4). `None` if the packet must be
/// dropped: congestion is marked and the sender does not support ECN.
#[inline(always)]
#[must_use]
pub const fn decapsulated(outer: u8, inner: u8) -> Option<u8> {
    match (inner & MASK, outer & MASK) {
        (NOT_ECT, CE) => None,
        (NOT_ECT | CE, _) => Some(inner),
        (_, CE) => Some(inner | CE),
        (_, ECT_1) => Some((inner & !MASK) | ECT_1),
        _ => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6040 figure 4, row by row: inner Not-ECT, ECT(0), ECT(1), CE; columns are the outer mark.
    #[test]
    fn all_sixteen_combinations() {
        let (not, zero, one, ce) = (0b00, 0b10, 0b01, 0b11);
        let table = [
            (not, [Some(not), Some(not), Some(not), None]),
            (zero, [Some(zero), Some(zero), Some(one), Some(ce)]),
            (one, [Some(one), Some(one), Some(one), Some(ce)]),
            (ce, [Some(ce), Some(ce), Some(ce), Some(ce)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in [not, zero, one, ce].into_iter().zip(row) {
                let got = decapsulated(0x40 | outer, 0xb8 | inner);
                assert_eq!(
                    got,
                    expected.map(|ecn| 0xb8 | ecn),
                    "inner {inner:02b} outer {outer:02b}"
                );
            }
        }
    }

    #[test]
    fn dscp_is_copied_or_fixed_and_ecn_always_copied() {
        assert_eq!(outer(0xb9, None), 0xb9);
        assert_eq!(outer(0xb9, Some(0x28)), 0x29);
    }
}
