//! Ports as prefixes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A prefix of port numbers: its first port and its length.
pub(super) type PortPrefix = (u16, u8);

/// The ports that stand for messages of ICMP with this type and code, `type << 8 | code`; `None` for any.
pub(super) fn icmp_ports(kind: Option<u8>, code: Option<u8>) -> RangeInclusive<u16> {
    let port = |any| u16::from_be_bytes([kind.unwrap_or(any), code.unwrap_or(any)]);
    port(0)..=port(u8::MAX)
}

/// The first port of the prefix of this length that contains `port`.
pub(super) fn mask(port: u16, bits: u8) -> u16 {
    let shift = 16_u32.saturating_sub(u32::from(bits));
    u16::MAX.checked_shl(shift).unwrap_or(0) & port
}

/// The fewest prefixes that contain the ports `first..=last` and no others.
pub(super) fn split(first: u16, last: u16) -> Vec<PortPrefix> {
    let (mut next, last) = (u32::from(first), u32::from(last));
    let mut prefixes = Vec::new();
    while next <= last {
        let aligned = if next == 0 { 16 } else { next.trailing_zeros() };
        let fitting = (last - next + 1).ilog2();
        let size = aligned.min(fitting);
        let (Ok(port), Ok(bits)) = (u16::try_from(next), u8::try_from(16 - size)) else {
            break;
        };
        prefixes.push((port, bits));
        next += 1 << size;
    }
    prefixes
}

/// Removes prefixes that a shorter one with a smaller precedence contains: of the remaining ones the longest that
/// contains a port has the smallest precedence.
pub(super) fn flatten<V>(
    entries: BTreeMap<PortPrefix, V>,
    precedence: impl Fn(&V) -> u32,
) -> BTreeMap<PortPrefix, V> {
    if entries.len() <= 1 {
        return entries;
    }
    let smallest_around = |(port, bits): PortPrefix| {
        (0..bits)
            .filter_map(|shorter| entries.get(&(mask(port, shorter), shorter)))
            .map(&precedence)
            .min()
    };
    let shadowed: Vec<PortPrefix> = entries
        .iter()
        .filter(|(prefix, value)| smallest_around(**prefix).is_some_and(|around| around < precedence(value)))
        .map(|(prefix, _)| *prefix)
        .collect();
    let mut entries = entries;
    for prefix in shadowed {
        entries.remove(&prefix);
    }
    entries
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn contains((first, bits): PortPrefix, port: u16) -> bool {
        mask(port, bits) == first
    }

    #[test]
    fn ranges_are_split_into_the_fewest_prefixes() {
        assert_eq!(split(0, u16::MAX), [(0, 0)]);
        assert_eq!(split(80, 80), [(80, 16)]);
        assert_eq!(split(80, 90), [(80, 13), (88, 15), (90, 16)]);
        assert_eq!(split(0x800, 0x8FF), [(0x800, 8)]);
        assert_eq!(split(1, u16::MAX).len(), 16);
        assert_eq!(split(2, 1), []);
    }

    proptest! {
        #[test]
        fn a_range_is_the_union_of_its_prefixes(a: u16, b: u16, port: u16) {
            let (first, last) = (a.min(b), a.max(b));
            let prefixes = split(first, last);
            for port in [port, first, last, first.wrapping_sub(1), last.wrapping_add(1)] {
                let count = prefixes.iter().filter(|prefix| contains(**prefix, port)).count();
                prop_assert_eq!(count, usize::from((first..=last).contains(&port)));
            }
            prop_assert!(prefixes.iter().all(|(first, bits)| mask(*first, *bits) == *first));
        }

        /// The longest prefix that contains a port has the smallest precedence of all prefixes before.
        #[test]
        fn the_longest_prefix_has_the_smallest_precedence(
            entries in proptest::collection::vec((0_u16..64, 10_u8..=16), 0..20), port in 0_u16..64
        ) {
            let all: BTreeMap<PortPrefix, u32> =
                entries.iter().zip(0..).map(|((port, bits), order)| ((mask(*port, *bits), *bits), order)).collect();
            let expected = all.iter().filter(|(prefix, _)| contains(**prefix, port)).map(|(_, order)| *order).min();
            let flat = flatten(all, |order| *order);
            let longest = flat.iter().filter(|(prefix, _)| contains(**prefix, port)).max_by_key(|((_, bits), _)| *bits);
            prop_assert_eq!(longest.map(|(_, order)| *order), expected);
        }
    }
}
