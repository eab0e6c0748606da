//! Numbers of keys, in the order of their first use.

use std::collections::BTreeMap;

/// Keys with their numbers.
#[derive(Debug)]
pub(super) struct Numbers<K> {
    /// By key.
    pub(super) numbers: BTreeMap<K, u32>,
    /// The next number.
    pub(super) next: u32,
}

// === impl Numbers ===

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Self {
            numbers: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<K: Ord> Numbers<K> {
    /// Numbers that begin with that of a key.
    pub(super) fn beginning_with(key: K, number: u32) -> Self {
        Self {
            numbers: [(key, number)].into(),
            next: number + 1,
        }
    }

    /// The number of this key.
    pub(super) fn number(&mut self, key: K) -> u32 {
        let number = *self.numbers.entry(key).or_insert(self.next);
        self.next = self.next.max(number + 1);
        number
    }
}

impl Numbers<Vec<u32>> {
    /// The numbers of the lists that contain a member, by member.
    pub(super) fn by_member(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut by_member: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (members, number) in &self.numbers {
            for member in members {
                by_member.entry(*member).or_default().push(*number);
            }
        }
        by_member
    }
}
