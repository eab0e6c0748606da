//! The eBPF side: programs and maps loaded and pinned, links swapped without a gap.
//!
//! *Guarantees*: whatever is pinned keeps working while no agent runs; a new agent takes over the maps
//! as they are and replaces a program in its link in one step, so that no packet meets a device without
//! one. Links need Linux 6.6 (TCX).

mod pins;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfError, EbpfLoader};
use mc_gateway_common::abi;
use thiserror::Error;
use tracing::warn;

use crate::plan::{Attachment, Program};
use pins::ForeignPin;

/// Why the data path cannot be loaded or attached.
#[derive(Debug, Error)]
pub enum DatapathError {
    /// Somebody else's pins, or another version's.
    #[error(transparent)]
    Foreign(#[from] ForeignPin),
    /// The object cannot be loaded.
    #[error("load the eBPF object")]
    Load(#[source] EbpfError),
    /// The object lacks a program, or it is of another type.
    #[error("program {0}: not in the eBPF object")]
    NoProgram(&'static str),
    /// The kernel refused a program.
    #[error("program {name}: {what}")]
    Program {
        /// Its name.
        name: &'static str,
        /// What was tried.
        what: String,
        /// Why.
        source: ProgramError,
    },
    /// The kernel refused a link.
    #[error("link {}: {what}", .path.display())]
    Link {
        /// The pin.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why.
        source: LinkError,
    },
    /// A pin cannot be made.
    #[error("pin {}", .path.display())]
    Pin {
        /// The pin.
        path: PathBuf,
        /// Why.
        source: aya::pin::PinError,
    },
    /// The file system refused.
    #[error("{}", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Directories below the pin directory.
pub(crate) const SUBDIRS: [&str; 3] = ["links", "programs", "maps"];

/// Programs in the kernel and where they are attached.
#[derive(Debug)]
pub struct Datapath {
    dir: PathBuf,
    ebpf: Ebpf,
    /// Kernel ids of the programs this agent loaded.
    ids: BTreeMap<Program, u32>,
}

impl Datapath {
    /// Loads `object` with the maps pinned in `dir` if there are any, else with new ones, and pins.
    /// Nothing is attached, swapped or written yet.
    pub fn load(dir: &Path, object: &[u8]) -> Result<Self, DatapathError> {
        let maps = dir.join("maps");
        pins::check(&maps)?;
        for subdir in SUBDIRS {
            let path = dir.join(subdir);
            fs::create_dir_all(&path).map_err(|source| DatapathError::Io { path, source })?;
        }
        let mut loader = EbpfLoader::new();
        for name in abi::ALL_MAPS {
            loader.map_pin_path(name, maps.join(name));
        }
        let mut ebpf = loader.load(object).map_err(DatapathError::Load)?;
        // Maps that were just made come from the object: it must agree with us, too.
        pins::check(&maps)?;
        let mut ids = BTreeMap::new();
        for program in Program::ALL {
            ids.insert(program, load_program(&mut ebpf, program, dir)?);
        }
        Ok(Self {
            dir: dir.to_owned(),
            ebpf,
            ids,
        })
    }

    /// Where maps are pinned.
    #[must_use]
    pub fn maps_dir(&self) -> PathBuf {
        self.dir.join("maps")
    }

    /// Every pinned link and where it is.
    pub fn attachments(&self) -> Result<BTreeMap<(Program, String), Attachment>, DatapathError> {
        let mut attachments = BTreeMap::new();
        for (program, device, path) in pinned_links(&self.dir)? {
            let link = open_link(&path)?;
            let info = link.info().map_err(|source| DatapathError::Link {
                path,
                what: "read",
                source,
            })?;
            let attachment = Attachment {
                ifindex: link_ifindex(info.id()),
                current: self.ids.get(&program) == Some(&info.program_id()),
            };
            attachments.insert((program, device), attachment);
        }
        Ok(attachments)
    }

    /// Attaches `program` to `device`, or swaps it into the link that is there.
    pub fn attach(
        &mut self,
        program: Program,
        device: &str,
        ifindex: u32,
        from: Option<Attachment>,
    ) -> Result<(), DatapathError> {
        let path = link_path(&self.dir, program, device);
        if from.is_some_and(|from| from.ifindex == ifindex) {
            return self.swap(program, &path);
        }
        if from.is_some() {
            // The link's device is gone or another one: the link is of no use any more.
            remove(&path)?;
        }
        let (attach_type, order) = match program {
            Program::ToRemote => (TcAttachType::Egress, LinkOrder::default()),
            // First: whatever is not ours goes on to the others untouched, but others may end the chain.
            Program::FromUnderlay => (TcAttachType::Ingress, LinkOrder::first()),
        };
        let classifier = classifier(&mut self.ebpf, program)?;
        let id = classifier
            .attach_with_options(device, attach_type, TcAttachOptions::TcxOrder(order))
            .map_err(|source| DatapathError::Program {
                name: program.name(),
                what: format!("attach to {device}"),
                source,
            })?;
        take(classifier, id, program)?
            .pin(&path)
            .map(|_| ())
            .map_err(|source| DatapathError::Pin { path, source })
    }

    fn swap(&mut self, program: Program, path: &Path) -> Result<(), DatapathError> {
        let link = SchedClassifierLink::try_from(open_link(path)?).map_err(|source| DatapathError::Link {
            path: path.to_owned(),
            what: "use as a link of a classifier",
            source,
        })?;
        let classifier = classifier(&mut self.ebpf, program)?;
        let id = classifier
            .attach_to_link(link)
            .map_err(|source| DatapathError::Program {
                name: program.name(),
                what: format!("swap in {}", path.display()),
                source,
            })?;
        // The pin keeps the link; our descriptor of it may go.
        take(classifier, id, program).map(drop)
    }

    /// Removes `program` from `device`.
    pub fn detach(&mut self, program: Program, device: &str) -> Result<(), DatapathError> {
        remove(&link_path(&self.dir, program, device))
    }
}

fn load_program(ebpf: &mut Ebpf, program: Program, dir: &Path) -> Result<u32, DatapathError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source| DatapathError::Program {
            name: program.name(),
            what,
            source,
        }
    };
    let classifier = classifier(ebpf, program)?;
    classifier.load().map_err(failed("load"))?;
    let path = dir.join("programs").join(program.name());
    // Only for people who look: links hold their programs themselves.
    remove(&path)?;
    classifier
        .pin(&path)
        .map_err(|source| DatapathError::Pin { path, source })?;
    Ok(classifier.info().map_err(failed("read"))?.id())
}

fn classifier(ebpf: &mut Ebpf, program: Program) -> Result<&mut SchedClassifier, DatapathError> {
    ebpf.program_mut(program.name())
        .and_then(|found| found.try_into().ok())
        .ok_or(DatapathError::NoProgram(program.name()))
}

/// Takes the link out of aya's hands, which would detach it when the program is dropped.
fn take(
    classifier: &mut SchedClassifier,
    id: SchedClassifierLinkId,
    program: Program,
) -> Result<FdLink, DatapathError> {
    let failed = |source| DatapathError::Program {
        name: program.name(),
        what: "take link".to_owned(),
        source,
    };
    let link = classifier.take_link(id).map_err(failed)?;
    FdLink::try_from(link).map_err(|source| DatapathError::Link {
        path: PathBuf::from(program.name()),
        what: "use as a TCX link",
        source,
    })
}

fn open_link(path: &Path) -> Result<FdLink, DatapathError> {
    PinnedLink::from_pin(path)
        .map(FdLink::from)
        .map_err(|source| DatapathError::Link {
            path: path.to_owned(),
            what: "open",
            source,
        })
}

fn remove(path: &Path) -> Result<(), DatapathError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(DatapathError::Io {
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

/// Index of the device a link of this process is on; 0 when the device is gone.
///
/// The kernel tells it to everyone who holds the link, through fdinfo; the id-based queries would need
/// `CAP_SYS_ADMIN`.
fn link_ifindex(link_id: u32) -> u32 {
    let Ok(entries) = fs::read_dir("/proc/self/fdinfo") else {
        return 0;
    };
    entries
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok())
        .find_map(|text| fdinfo_ifindex(&text, link_id))
        .unwrap_or(0)
}

fn fdinfo_ifindex(fdinfo: &str, link_id: u32) -> Option<u32> {
    let field = |name: &str| {
        let line = fdinfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    };
    if field("link_id:")? == link_id {
        field("ifindex:")
    } else {
        None
    }
}

/// Path of a link's pin. A dot is reserved on a bpffs but not in a device name; `%` is the other way round.
fn link_path(dir: &Path, program: Program, device: &str) -> PathBuf {
    let device = device.replace('.', "%2e");
    dir.join("links").join(format!("{}-{device}", program.name()))
}

fn parse_link_name(name: &str) -> Option<(Program, String)> {
    let (program, device) = name.split_once('-')?;
    let program = Program::ALL.into_iter().find(|known| known.name() == program)?;
    Some((program, device.replace("%2e", ".")))
}

/// Every link pin of ours in the pin directory.
pub(crate) fn pinned_links(dir: &Path) -> Result<Vec<(Program, String, PathBuf)>, DatapathError> {
    let path = dir.join("links");
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(DatapathError::Io { path, source }),
    };
    let mut links = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| DatapathError::Io {
            path: path.clone(),
            source,
        })?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((program, device)) = parse_link_name(&name) {
            links.push((program, device, entry.path()));
        } else {
            warn!(pin = %entry.path().display(), "not a pin of ours: left alone");
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
        assert_eq!(parse_link_name("somebody-else"), None);
    }

    #[test]
    fn fdinfo_of_a_tcx_link() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1060\nlink_type:\ttcx\nlink_id:\t12\n\
                    prog_tag:\tabcd\nprog_id:\t34\nifindex:\t7\nattach_type:\t46 (tcx_ingress)\n";
        assert_eq!(fdinfo_ifindex(text, 12), Some(7));
        assert_eq!(fdinfo_ifindex(text, 13), None);
        assert_eq!(fdinfo_ifindex("pos:\t0\n", 12), None);
    }
}
