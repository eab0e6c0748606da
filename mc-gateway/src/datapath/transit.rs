//! The XDP program, and its links, one pin each.
//!
//! The program saves time only: `from_underlay` forwards the same packets on a device without it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{DevMapHash, MapData};
use aya::programs::links::FdLink;
use aya::programs::xdp::{XdpLink, XdpLinkId, XdpMode};
use aya::programs::{ProgramError, Xdp};
use mc_gateway_common::abi::transit::{PROGRAM_TRANSIT, TRANSIT_DEVICES};

use super::Datapath;
use super::error::{DatapathError, remove_pin};
use super::program::{pin_path, replace_pin};
use super::tcx::{observe, open_link};
use crate::plan::Attachment;

/// Directory below the pin directory with the pins of the links, by device.
pub(super) const LINKS: &str = "xdp";

/// Loads and pins the program; returns its kernel ID.
pub(super) fn load(ebpf: &mut Ebpf, dir: &Path) -> Result<u32, DatapathError> {
    let program = program(ebpf)?;
    program.load().map_err(program_error("load"))?;
    replace_pin(dir, PROGRAM_TRANSIT, |path| program.pin(path))?;
    Ok(program.info().map_err(program_error("read"))?.id())
}

/// Pins the program again if its pin is missing.
pub(super) fn restore_pin(ebpf: &mut Ebpf, dir: &Path) -> Result<(), DatapathError> {
    let path = pin_path(dir, PROGRAM_TRANSIT);
    if path.exists() {
        return Ok(());
    }
    let pinned = program(ebpf)?.pin(&path);
    pinned.map_err(|source| DatapathError::Pin { path, source })
}

/// Devices and pins of the links.
pub(crate) fn pinned_links(dir: &Path) -> Result<BTreeMap<String, PathBuf>, DatapathError> {
    let path = dir.join(LINKS);
    let failed = |source| DatapathError::Io {
        path: path.clone(),
        source,
    };
    let entries = match fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        result => result.map_err(failed)?,
    };
    let mut links = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let device = entry.file_name().to_string_lossy().replace("%2e", ".");
        links.insert(device, entry.path());
    }
    Ok(links)
}

/// Path of the link of a device, in whose name a bpffs accepts no dot.
fn link_path(dir: &Path, device: &str) -> PathBuf {
    dir.join(LINKS).join(device.replace('.', "%2e"))
}

impl Datapath {
    /// Devices with the program of this agent or of an earlier one.
    pub fn transit_devices(&mut self) -> Result<BTreeMap<String, Attachment>, DatapathError> {
        let devices = device_map(&mut self.ebpf)?;
        let mut found = BTreeMap::new();
        for (device, path) in pinned_links(&self.dir)? {
            let mut attachment = observe(&path, Some(self.transit.id))?;
            attachment.current &= devices.get(attachment.ifindex, 0).is_ok();
            found.insert(device, attachment);
        }
        Ok(found)
    }

    /// Attaches the program in the driver of a device, or replaces the attached one.
    pub fn attach_transit(
        &mut self,
        device: &str,
        ifindex: u32,
        from: Option<Attachment>,
    ) -> Result<(), DatapathError> {
        let path = link_path(&self.dir, device);
        let here = from.is_some_and(|from| from.ifindex == ifindex);
        let program = program(&mut self.ebpf)?;
        if here {
            let link = XdpLink::try_from(open_link(&path)?).map_err(|source| DatapathError::Link {
                path: path.clone(),
                operation: "use as a link of an XDP program",
                source,
            })?;
            let id = program.attach_to_link(link).map_err(program_error("swap"))?;
            // The pin keeps the link open.
            take_link(program, id).map(drop)?;
        } else {
            remove_pin(&path)?;
            let id = program.attach_to_if_index(ifindex, XdpMode::Driver);
            let link = take_link(program, id.map_err(program_error("attach"))?)?;
            let pinned = link.pin(&path).map(drop);
            pinned.map_err(|source| DatapathError::Pin { path, source })?;
        }
        self.transit.links.insert(device.to_owned(), ifindex);
        // From now on the program may send from the device, too: its driver is prepared for XDP.
        let inserted = device_map(&mut self.ebpf)?.insert(ifindex, ifindex, None, 0);
        inserted.map_err(|source| DatapathError::TransitDevice { ifindex, source })
    }

    /// Detaches the program from a device.
    pub fn detach_transit(&mut self, device: &str) -> Result<(), DatapathError> {
        let path = link_path(&self.dir, device);
        if let Ok(Attachment { ifindex, .. }) = observe(&path, None) {
            // The kernel removes the entry of a removed device.
            _ = device_map(&mut self.ebpf)?.remove(ifindex);
        }
        self.transit.links.remove(device);
        remove_pin(&path)
    }

    /// Whether every link attaches the program of this agent, and its device is one that the program may send from.
    pub(super) fn is_transit_attached(&self) -> bool {
        let devices = self.ebpf.map(TRANSIT_DEVICES);
        let devices = devices.and_then(|map| DevMapHash::<&MapData>::try_from(map).ok());
        self.transit.links.iter().all(|(device, ifindex)| {
            let link = observe(&link_path(&self.dir, device), Some(self.transit.id));
            link.is_ok_and(|link| link.current && link.ifindex == *ifindex)
                && devices.as_ref().is_some_and(|map| map.get(*ifindex, 0).is_ok())
        })
    }
}

/// The loaded program and its links.
#[derive(Debug)]
pub(super) struct Transit {
    /// Kernel ID of the program.
    pub(super) id: u32,
    /// Devices by name with their index, as this agent attached the program.
    pub(super) links: BTreeMap<String, u32>,
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp, DatapathError> {
    ebpf.program_mut(PROGRAM_TRANSIT)
        .and_then(|found| found.try_into().ok())
        .ok_or(DatapathError::NoProgram(PROGRAM_TRANSIT))
}

fn device_map(ebpf: &mut Ebpf) -> Result<DevMapHash<&mut MapData>, DatapathError> {
    let map = ebpf.map_mut(TRANSIT_DEVICES);
    let map = map.ok_or(DatapathError::NoMap(TRANSIT_DEVICES))?;
    DevMapHash::try_from(map).map_err(map_error)
}

/// Takes the link from aya, which detaches its links when the program is dropped. A kernel without links of XDP
/// programs has attached the program without one, which ends with this call.
fn take_link(program: &mut Xdp, id: XdpLinkId) -> Result<FdLink, DatapathError> {
    let link = program.take_link(id).map_err(program_error("take link"))?;
    FdLink::try_from(link).map_err(|source| DatapathError::Link {
        path: PathBuf::from(PROGRAM_TRANSIT),
        operation: "use as a link",
        source,
    })
}

fn program_error(operation: &str) -> impl FnOnce(ProgramError) -> DatapathError {
    let operation = operation.to_owned();
    move |source| DatapathError::Program {
        name: PROGRAM_TRANSIT,
        operation,
        source,
    }
}

fn map_error(source: aya::maps::MapError) -> DatapathError {
    DatapathError::Map {
        name: TRANSIT_DEVICES,
        source,
    }
}
