//! Slots of an array map, by stable ID.

use std::collections::{BTreeMap, BTreeSet};

use super::PlanError;

/// Slots of one array map. Slot 0 is never assigned: it means "none".
#[derive(Debug, Default)]
pub(super) struct Slots {
    by_id: BTreeMap<u32, u32>,
    freed: BTreeSet<u32>,
    exhausted: bool,
}

impl Slots {
    /// Keeps the slot of every ID that has one and assigns free slots to the others. `used` are the slots that are
    /// not all zero; those no longer wanted are freed but not reused. An ID gets no slot if only freed slots remain.
    pub(super) fn assign(
        map: &'static str,
        size: u32,
        used: impl Iterator<Item = (u32, u32)>,
        wanted: impl Iterator<Item = u32>,
    ) -> Result<Self, PlanError> {
        let used: BTreeMap<u32, u32> = used.collect();
        let wanted: BTreeSet<u32> = wanted.collect();
        let mut slots = Self::default();
        for (slot, id) in &used {
            // Of two slots with the same ID (after an interrupted plan) the first is kept.
            if *slot != 0 && wanted.contains(id) && !slots.by_id.contains_key(id) {
                slots.by_id.insert(*id, *slot);
            } else {
                slots.freed.insert(*slot);
            }
        }
        let mut free = (1..size).filter(|slot| !used.contains_key(slot));
        for id in &wanted {
            if slots.by_id.contains_key(id) {
                continue;
            }
            if let Some(slot) = free.next() {
                slots.by_id.insert(*id, slot);
                continue;
            }
            let capacity = usize::try_from(size).unwrap_or(usize::MAX).saturating_sub(1);
            let needed = wanted.len();
            if needed > capacity {
                return Err(PlanError::Full {
                    map,
                    needed,
                    capacity,
                });
            }
            slots.exhausted = true;
        }
        Ok(slots)
    }

    /// The slot of `id`; 0 for ID 0 and unknown IDs.
    pub(super) fn slot(&self, id: u32) -> u32 {
        self.by_id.get(&id).copied().unwrap_or_default()
    }

    /// The slots of all IDs that have one.
    pub(super) fn by_id(&self) -> &BTreeMap<u32, u32> {
        &self.by_id
    }

    /// Whether IDs have no slot until the next plan, which uses the slots freed by this one.
    pub(super) fn exhausted(&self) -> bool {
        self.exhausted
    }

    /// Slots no longer wanted.
    pub(super) fn freed(&self) -> &BTreeSet<u32> {
        &self.freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assign(used: &[(u32, u32)], wanted: &[u32]) -> Result<Slots, PlanError> {
        Slots::assign("mc_nh_groups", 4, used.iter().copied(), wanted.iter().copied())
    }

    #[test]
    fn keeps_slots_and_never_reuses_a_freed_one() {
        let slots = assign(&[(1, 10), (2, 20)], &[20, 30]).unwrap();
        assert_eq!(slots.slot(20), 2);
        assert_eq!(slots.slot(30), 3, "slot 1 is freed by this very plan");
        assert_eq!(slots.freed(), &[1].into());
    }

    #[test]
    fn a_full_map_is_an_error() {
        let error = assign(&[(1, 10), (2, 20)], &[30, 40, 50, 60]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "map mc_nh_groups is full: 4 entries are needed, 3 fit"
        );
    }

    #[test]
    fn ids_without_an_unused_slot_are_deferred_to_the_next_plan() {
        let slots = assign(&[(1, 10), (2, 20)], &[30, 40]).unwrap();
        assert_eq!((slots.slot(30), slots.slot(40), slots.exhausted()), (3, 0, true));
        assert_eq!(slots.freed(), &[1, 2].into());
        let slots = assign(&[(3, 30)], &[30, 40]).unwrap();
        assert_eq!((slots.slot(30), slots.slot(40), slots.exhausted()), (3, 1, false));
    }

    #[test]
    fn duplicate_of_an_interrupted_plan_is_freed() {
        let slots = assign(&[(1, 10), (3, 10)], &[10]).unwrap();
        assert_eq!(slots.slot(10), 1);
        assert_eq!(slots.freed(), &[3].into());
    }
}
