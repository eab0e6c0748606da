//! TCX links (Linux 6.6), one pin each: a pin keeps its link, and a link keeps its program attached.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier};
use tracing::warn;

use super::error::DatapathError;
use super::pin_dir;
use super::program::{attach_type, program_error};
use crate::config::TcxOrder;
use crate::plan::{Attachment, Program};

/// Creates a link to `device` and pins it at `path`.
pub(super) fn attach(
    classifier: &mut SchedClassifier,
    program: Program,
    device: &str,
    order: TcxOrder,
    path: &Path,
) -> Result<(), DatapathError> {
    let order = match order {
        TcxOrder::First => LinkOrder::first(),
        TcxOrder::Last => LinkOrder::last(),
    };
    let id = classifier
        .attach_with_options(device, attach_type(program), TcAttachOptions::TcxOrder(order))
        .map_err(program_error(program.name(), format!("attach to {device}")))?;
    let pinned = take_link(classifier, id, program)?.pin(path).map(drop);
    pinned.map_err(|source| DatapathError::Pin {
        path: path.to_owned(),
        source,
    })
}

/// Replaces the program of the link pinned at `path`.
pub(super) fn swap(
    classifier: &mut SchedClassifier,
    program: Program,
    path: &Path,
) -> Result<(), DatapathError> {
    let link = SchedClassifierLink::try_from(open_link(path)?).map_err(|source| DatapathError::Link {
        path: path.to_owned(),
        operation: "use as a link of a classifier",
        source,
    })?;
    let id = classifier.attach_to_link(link).map_err(program_error(
        program.name(),
        format!("swap in {}", path.display()),
    ))?;
    // The pin keeps the link open.
    take_link(classifier, id, program).map(drop)
}

/// Most links that are open at the same time: each has a descriptor.
const OPEN_LINKS: usize = 64;

/// Device of the link pinned at `path`, and whether it runs the program `current`.
pub(super) fn observe(path: &Path, current: Option<u32>) -> Result<Attachment, DatapathError> {
    let found = observe_all(&[(path.to_owned(), current)])?;
    Ok(found.into_iter().next().unwrap_or(Attachment {
        ifindex: 0,
        current: false,
    }))
}

/// [`observe`] for several links, in their order: a node with many Pods has hundreds, and each search for a device
/// reads all descriptors of the process.
pub(super) fn observe_all(links: &[(PathBuf, Option<u32>)]) -> Result<Vec<Attachment>, DatapathError> {
    let mut attachments = Vec::with_capacity(links.len());
    for links in links.chunks(OPEN_LINKS) {
        let opened: Vec<FdLink> = links
            .iter()
            .map(|(path, _)| open_link(path))
            .collect::<Result<_, _>>()?;
        let ifindexes = link_ifindexes();
        for (link, (path, current)) in opened.iter().zip(links) {
            let info = link.info().map_err(|source| DatapathError::Link {
                path: path.clone(),
                operation: "read",
                source,
            })?;
            attachments.push(Attachment {
                ifindex: ifindexes.get(&info.id()).copied().unwrap_or_default(),
                current: *current == Some(info.program_id()),
            });
        }
    }
    Ok(attachments)
}

/// Takes the link from aya, which detaches its links when the program is dropped.
fn take_link(
    classifier: &mut SchedClassifier,
    id: SchedClassifierLinkId,
    program: Program,
) -> Result<FdLink, DatapathError> {
    let link = classifier
        .take_link(id)
        .map_err(program_error(program.name(), "take link"))?;
    FdLink::try_from(link).map_err(|source| DatapathError::Link {
        path: PathBuf::from(program.name()),
        operation: "use as a TCX link",
        source,
    })
}

pub(super) fn open_link(path: &Path) -> Result<FdLink, DatapathError> {
    PinnedLink::from_pin(path)
        .map(FdLink::from)
        .map_err(|source| DatapathError::Link {
            path: path.to_owned(),
            operation: "open",
            source,
        })
}

/// Indexes of the devices of all open links by the ID of the link; 0 after the device is removed.
///
/// Read from fdinfo, which needs no capability; the id-based queries require `CAP_SYS_ADMIN`.
fn link_ifindexes() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc/self/fdinfo").into_iter().flatten();
    entries
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok())
        .filter_map(|text| fdinfo_link(&text))
        .collect()
}

/// ID and device of a link.
fn fdinfo_link(fdinfo: &str) -> Option<(u32, u32)> {
    let field = |name: &str| {
        let line = fdinfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    };
    Some((field("link_id:")?, field("ifindex:")?))
}

/// Path of a link's pin.
pub(super) fn link_path(dir: &Path, program: Program, device: &str) -> PathBuf {
    let device = pin_dir::escape(device);
    dir.join("links").join(format!("{}-{device}", program.name()))
}

/// Program and device of the name of a link's pin.
pub(super) fn parse_link_name(name: &str) -> Option<(Program, String)> {
    let (program, device) = name.split_once('-')?;
    let program = Program::ALL.into_iter().find(|known| known.name() == program)?;
    Some((program, pin_dir::unescape(device)))
}

/// The link pins of the agent in the pin directory.
pub(crate) fn pinned_links(dir: &Path) -> Result<Vec<(Program, String, PathBuf)>, DatapathError> {
    let mut links = Vec::new();
    for entry in pin_dir::entries(&dir.join("links"))? {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((program, device)) = parse_link_name(&name) {
            links.push((program, device, entry.path()));
        } else {
            warn!(pin = %entry.path().display(), "foreign pin ignored");
        }
    }
    links.sort();
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_survive_dots_and_dashes() {
        for device in ["eth0", "eth0.100", "br-1a.2-b"] {
            let path = link_path(Path::new("/d"), Program::FromUnderlay, device);
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(!name.contains('.'), "{name}");
            assert_eq!(
                parse_link_name(name),
                Some((Program::FromUnderlay, device.to_owned()))
            );
        }
        assert_eq!(parse_link_name("foreign-link"), None);
    }

    #[test]
    fn fdinfo_of_a_tcx_link() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1060\nlink_type:\ttcx\nlink_id:\t12\n\
                    prog_tag:\tabcd\nprog_id:\t34\nifindex:\t7\nattach_type:\t46 (tcx_ingress)\n";
        assert_eq!(fdinfo_link(text), Some((12, 7)));
        assert_eq!(fdinfo_link("pos:\t0\n"), None);
    }
}
