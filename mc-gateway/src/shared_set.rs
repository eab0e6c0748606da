//! A sorted set whose clones share their unchanged parts, as those of a [`SharedMap`].

use std::fmt;
use std::ops::RangeInclusive;

use crate::shared_map::SharedMap;

/// A sorted set in chunks.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedSet<T: Ord>(SharedMap<T, ()>);

impl<T: Ord> Default for SharedSet<T> {
    fn default() -> Self {
        Self(SharedMap::default())
    }
}

impl<T: Ord> SharedSet<T> {
    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All elements in their order.
    #[must_use]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.0.keys()
    }

    /// The smallest element.
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.iter().next()
    }

    /// The largest element.
    #[must_use]
    pub fn last(&self) -> Option<&T> {
        self.iter().next_back()
    }

    /// Whether the element is present.
    #[must_use]
    pub fn contains(&self, element: &T) -> bool {
        self.0.contains_key(element)
    }

    /// The elements in a range, in their order.
    pub fn range(&self, range: RangeInclusive<T>) -> impl Iterator<Item = &T> {
        let elements = self.0.iter_from(range.start()).map(|(element, ())| element);
        elements.take_while(move |element| *element <= range.end())
    }

    /// The elements that are present in one of the two sets only, in their order.
    pub fn changes<'s>(&'s self, other: &'s Self) -> impl Iterator<Item = &'s T> {
        self.0.changes(&other.0)
    }
}

impl<T: Ord + Clone> SharedSet<T> {
    /// Adds an element; false if it is present.
    pub fn insert(&mut self, element: T) -> bool {
        self.0.insert(element, ()).is_none()
    }

    /// Removes an element; false if it is missing.
    pub fn remove(&mut self, element: &T) -> bool {
        self.0.remove(element).is_some()
    }

    /// Keeps the elements for which `keep` is true.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.0.retain(|element, ()| keep(element));
    }
}

impl<T: Ord + Clone> Extend<T> for SharedSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        self.0.extend(elements.into_iter().map(|element| (element, ())));
    }
}

impl<T: Ord + Clone> FromIterator<T> for SharedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut set = Self::default();
        set.extend(elements);
        set
    }
}

impl<T: Ord + Clone, const N: usize> From<[T; N]> for SharedSet<T> {
    fn from(elements: [T; N]) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: Ord + fmt::Debug> fmt::Debug for SharedSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_sorted_and_unique() {
        let mut set: SharedSet<u32> = [3, 1, 2].into();
        assert!(set.insert(5) && !set.insert(3));
        assert!(set.remove(&1) && !set.remove(&7));
        assert!(set.iter().eq(&[2, 3, 5]));
        assert_eq!((set.first(), set.last(), set.len()), (Some(&2), Some(&5), 3));
        assert!(set.range(3..=4).eq(&[3]));
        assert!(set.changes(&[2, 3].into()).eq(&[5]));
        assert_eq!(format!("{set:?}"), "{2, 3, 5}");
        set.retain(|element| *element == 5);
        assert_eq!(set, [5].into());
        assert!(SharedSet::<u32>::default().is_empty());
    }
}
