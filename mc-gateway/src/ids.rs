//! Stable numbers for names: what the maps hold instead of strings.

/// A number for `name` that is the same on every node and after every restart, and never 0.
///
/// 32-bit FNV-1a; whoever needs the number to be unique checks for collisions.
#[must_use]
pub fn stable_id(name: &str) -> u32 {
    const OFFSET: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    let hash = name
        .bytes()
        .fold(OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME));
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::stable_id;

    #[test]
    fn published_vectors_of_fnv_1a() {
        assert_eq!(stable_id(""), 0x811c_9dc5);
        assert_eq!(stable_id("a"), 0xe40c_292c);
        assert_eq!(stable_id("foobar"), 0xbf9c_f968);
    }

    #[test]
    fn names_differ() {
        assert_ne!(stable_id("cluster/east"), stable_id("cluster/west"));
    }
}
