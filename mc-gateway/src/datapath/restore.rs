//! Pins and links that another program removed or changed: noticed, and pinned again from the descriptors of this
//! process.
//!
//! A removed pin of a link detaches its program, so the next plan attaches it again. Maps keep their contents: programs
//! and this process hold them.

use std::fs;
use std::path::PathBuf;

use mc_gateway_common::abi;
use mc_gateway_common::abi::transit::PROGRAM_TRANSIT;

use super::program::{classifier, program_pins, restore_pin};
use super::{Datapath, DatapathError, SUBDIRS, tcx, transit};
use crate::plan::{Attachment, Program};

impl Datapath {
    /// Whether every pin of this agent exists.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        let mut pins = self
            .directories()
            .into_iter()
            .chain(program_pins(&self.dir))
            .chain(self.map_paths());
        pins.all(|path| path.exists()) && self.links.iter().all(|path| path.exists())
    }

    /// Whether every pinned link attaches the program of this agent. The kernel notifies no process of a detached or
    /// updated TCX link; a change of a filter is notified.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        let pins = self.links.iter().map(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            let program = name.and_then(tcx::parse_link_name).map(|(program, _)| program);
            let id = program.and_then(|program| self.ids.get(&program).copied());
            (path.clone(), id)
        });
        let observed = tcx::observe_all(&pins.collect::<Vec<_>>());
        let current = |links: Vec<Attachment>| links.iter().all(|link| link.current && link.ifindex != 0);
        observed.is_ok_and(current) && self.is_transit_attached()
    }

    /// Creates missing directories, and pins maps and programs again. Returns whether anything was missing.
    pub fn restore_pins(&mut self) -> Result<bool, DatapathError> {
        if self.is_pinned() {
            return Ok(false);
        }
        for path in self.directories() {
            fs::create_dir_all(&path).map_err(|source| DatapathError::Io { path, source })?;
        }
        for (name, path) in abi::ALL_MAPS.into_iter().zip(self.map_paths()) {
            if path.exists() {
                continue;
            }
            let map = self.ebpf.map(name).ok_or(DatapathError::NoMap(name))?;
            map.pin(&path)
                .map_err(|source| DatapathError::Pin { path, source })?;
        }
        for program in Program::ALL {
            let classifier = classifier(&mut self.ebpf, program)?;
            restore_pin(&self.dir, program.name(), |path| classifier.pin(path))?;
        }
        let transit = transit::program(&mut self.ebpf)?;
        restore_pin(&self.dir, PROGRAM_TRANSIT, |path| transit.pin(path))?;
        Ok(true)
    }

    fn directories(&self) -> Vec<PathBuf> {
        let subdirs = SUBDIRS.map(|subdir| self.dir.join(subdir));
        subdirs.into_iter().chain([self.maps_dir()]).collect()
    }

    fn map_paths(&self) -> Vec<PathBuf> {
        let dir = self.maps_dir();
        abi::ALL_MAPS.map(|name| dir.join(name)).into()
    }
}
