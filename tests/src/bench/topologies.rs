//! The topologies of a bed.

use std::collections::{BTreeMap, btree_map::Entry};

use anyhow::Result;

use super::{Settings, bed::Bed, case::Case, end_to_end::TopologyShape};
use crate::topology::{Links, Topology};

/// Topologies of several shapes. They coexist on a bed of veth pairs. A bed of network devices has one at a time,
/// because there are devices for one.
pub(super) struct Topologies<'a> {
    settings: &'a Settings,
    bed: Bed,
    by_shape: BTreeMap<TopologyShape, Topology>,
}

// === impl Topologies ===

impl<'a> Topologies<'a> {
    /// Creates those of the cases that coexist.
    pub(super) fn create(settings: &'a Settings, bed: Bed, cases: &[Case]) -> Result<Self> {
        let mut topologies = Self {
            settings,
            bed,
            by_shape: BTreeMap::new(),
        };
        if topologies.coexist() {
            for shape in TopologyShape::ALL {
                if cases.iter().any(|case| TopologyShape::for_case(*case) == shape) {
                    topologies.for_shape(shape)?;
                }
            }
        }
        Ok(topologies)
    }

    fn coexist(&self) -> bool {
        self.bed.links() != Links::Nics
    }

    /// The topology of a case, created if there is none.
    pub(super) fn for_case(&mut self, case: Case) -> Result<&mut Topology> {
        self.for_shape(TopologyShape::for_case(case))
    }

    fn for_shape(&mut self, shape: TopologyShape) -> Result<&mut Topology> {
        if !self.coexist() {
            self.by_shape.retain(|other, _| *other == shape);
        }
        Ok(match self.by_shape.entry(shape) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(shape.create(self.settings, self.bed)?),
        })
    }
}
