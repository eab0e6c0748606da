//! The XDP program, and its links, one pin each.
//!
//! The program saves time only: `from_underlay` forwards the same packets on a device without it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{DevMapHash, MapData};
use aya::programs::Xdp;
use aya::programs::links::FdLink;
use aya::programs::xdp::{XdpLink, XdpLinkId, XdpMode};
use mc_gateway_common::abi::transit::{PROGRAM_TRANSIT, TRANSIT_DEVICES};

use super::Datapath;
use super::error::{DatapathError, remove_pin};
use super::pin_dir;
use super::program::{program_error, replace_pin};
use super::tcx::{observe, open_link};
use crate::plan::Attachment;

/// Directory below the pin directory with the pins of the links, by device.
pub(super) const LINKS: &str = "xdp";

/// Loads and pins the program; returns its kernel ID.
pub(super) fn load(ebpf: &mut Ebpf, dir: &Path) -> Result<u32, DatapathError> {
    let program = program(ebpf)?;
    program.load().map_err(program_error(PROGRAM_TRANSIT, "load"))?;
    replace_pin(dir, PROGRAM_TRANSIT, |path| program.pin(path))?;
    Ok(program
        .info()
        .map_err(program_error(PROGRAM_TRANSIT, "read"))?
        .id())
}

/// Devices and pins of the links.
pub(crate) fn pinned_links(dir: &Path) -> Result<BTreeMap<String, PathBuf>, DatapathError> {
    let entries = pin_dir::entries(&dir.join(LINKS))?.into_iter();
    let links = entries.map(|entry| {
        (
            pin_dir::unescape(&entry.file_name().to_string_lossy()),
            entry.path(),
        )
    });
    Ok(links.collect())
}

/// Path of the link of a device.
fn link_path(dir: &Path, device: &str) -> PathBuf {
    dir.join(LINKS).join(pin_dir::escape(device))
}

impl Datapath {
    /// Devices with the program of this agent or of an earlier one. Only that of this agent is current, on a device
    /// that it may send from.
    pub fn transit_devices(&self) -> Result<BTreeMap<String, Attachment>, DatapathError> {
        let links = pinned_links(&self.dir)?.into_iter();
        let devices = links.map(|(device, path)| Ok((device, self.observe_transit(&path)?)));
        devices.collect()
    }

    fn observe_transit(&self, link: &Path) -> Result<Attachment, DatapathError> {
        let mut attachment = observe(link, Some(self.transit.id))?;
        let map = self.ebpf.map(TRANSIT_DEVICES);
        let devices = DevMapHash::try_from(map.ok_or(DatapathError::NoMap(TRANSIT_DEVICES))?);
        let allowed = devices.map_err(map_error)?.get(attachment.ifindex, 0).is_ok();
        attachment.current &= allowed;
        Ok(attachment)
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
            let id = program
                .attach_to_link(link)
                .map_err(program_error(PROGRAM_TRANSIT, "swap"))?;
            // The pin keeps the link open.
            take_link(program, id).map(drop)?;
        } else {
            remove_pin(&path)?;
            let id = program.attach_to_if_index(ifindex, XdpMode::Driver);
            let link = take_link(program, id.map_err(program_error(PROGRAM_TRANSIT, "attach"))?)?;
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

    /// Whether every link that this agent has attached is current.
    pub(super) fn is_transit_attached(&self) -> bool {
        self.transit.links.iter().all(|(device, ifindex)| {
            let link = self.observe_transit(&link_path(&self.dir, device));
            link.is_ok_and(|link| link.current && link.ifindex == *ifindex)
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

pub(super) fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp, DatapathError> {
    ebpf.program_mut(PROGRAM_TRANSIT)
        .and_then(|found| found.try_into().ok())
        .ok_or(DatapathError::NoProgram(PROGRAM_TRANSIT))
}

fn device_map(ebpf: &mut Ebpf) -> Result<DevMapHash<&mut MapData>, DatapathError> {
    let map = ebpf.map_mut(TRANSIT_DEVICES);
    let map = map.ok_or(DatapathError::NoMap(TRANSIT_DEVICES))?;
    DevMapHash::try_from(map).map_err(map_error)
}

/// Takes the link from aya, which detaches its links when the program is dropped. Every kernel that the agent accepts
/// has links of XDP programs (Linux 5.9).
fn take_link(program: &mut Xdp, id: XdpLinkId) -> Result<FdLink, DatapathError> {
    let link = program
        .take_link(id)
        .map_err(program_error(PROGRAM_TRANSIT, "take link"))?;
    FdLink::try_from(link).map_err(|source| DatapathError::Link {
        path: PathBuf::from(PROGRAM_TRANSIT),
        operation: "use as a link",
        source,
    })
}

fn map_error(source: aya::maps::MapError) -> DatapathError {
    DatapathError::Map {
        name: TRANSIT_DEVICES,
        source,
    }
}
