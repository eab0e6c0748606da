//! Changes that other programs make to the data path of a node.

mod host;
mod maps;
mod programs;

use anyhow::Result;
use mc_tests::topology::Place;

use crate::bed::{Attach, Bed};

/// One change of one node.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    /// Name in the table of outages.
    pub(crate) name: &'static str,
    /// The changed node.
    pub(crate) place: Place,
    /// The mode that the change needs.
    pub(crate) attach: Option<Attach>,
    /// Makes the change.
    pub(crate) make: fn(&Bed, Place) -> Result<()>,
}

impl Change {
    const fn new(name: &'static str, place: Place, make: fn(&Bed, Place) -> Result<()>) -> Self {
        Self {
            name,
            place,
            attach: None,
            make,
        }
    }

    const fn with(self, attach: Attach) -> Self {
        Self {
            attach: Some(attach),
            ..self
        }
    }
}

/// Every change. Those that remove the objects of others come last.
pub(crate) fn all() -> Vec<Change> {
    [maps::ALL, host::ALL, programs::ALL].concat()
}
