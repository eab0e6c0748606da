//! Changes that an agent cannot repair without harm to another program: `/readyz` names them.

use std::process::Command;

use anyhow::Result;
use mc_tests::{process::run, topology::Place};

use crate::bed::Bed;

/// A change and its end.
pub(crate) struct Unrepairable {
    /// Name of the change.
    pub(crate) name: &'static str,
    /// The changed node.
    pub(crate) place: Place,
    /// Part of the reason in `/readyz`.
    pub(crate) reason: &'static str,
    /// Makes the change.
    pub(crate) make: fn(&Bed, Place) -> Result<()>,
    /// Removes its cause.
    pub(crate) revert: fn(&Bed, Place) -> Result<()>,
}

pub(crate) const ALL: &[Unrepairable] = &[
    Unrepairable {
        name: "a foreign device named mc0",
        place: Place::NodeEast,
        reason: "device mc0",
        make: |bed, place| bed.ip(place, &["link del mc0", "link add mc0 type bridge"]),
        revert: |bed, place| bed.ip(place, &["link del mc0"]),
    },
    Unrepairable {
        name: "a foreign route in place of the agent's",
        place: Place::NodeEast,
        reason: "10.12.0.0/16",
        make: |bed, place| {
            bed.ip(
                place,
                &["route replace 10.12.0.0/16 via 192.168.11.1 proto static"],
            )
        },
        revert: |bed, place| bed.ip(place, &["route del 10.12.0.0/16 proto static"]),
    },
    Unrepairable {
        name: "another file system over the pin directory",
        place: Place::GatewayEast,
        reason: "mc_",
        make: |bed, place| {
            let dir = bed.topology.bpf_dir(place);
            run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(dir)).map(drop)
        },
        revert: |bed, place| {
            let dir = bed.topology.bpf_dir(place);
            run(Command::new("umount").arg(dir)).map(drop)
        },
    },
];
