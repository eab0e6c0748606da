//! The eBPF side: programs and maps loaded and pinned, links swapped without a gap.
//!
//! *Guarantees*: whatever is pinned keeps working while no agent runs; a new agent takes over the maps
//! as they are, or makes new ones if their layout is another version's ([`generation`]), and replaces a program where it is attached in one step, so that no packet meets a device
//! without one.

pub(crate) mod clsact;
pub(crate) mod map_migration;
mod pins;
mod tcx;
mod version;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::programs::links::LinkError;
use aya::programs::tc::TcError;
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfError, EbpfLoader};
use mc_gateway_common::abi;
use thiserror::Error;

use crate::config::TcxOrder;
use crate::host::tc_filter::Filter;
use crate::plan::{AttachMode, Attachment, Hook, Program};
use map_migration::MapDir;
use pins::PinMismatch;
pub(crate) use tcx::pinned_links;
use version::ObjectError;

/// Why the data path cannot be loaded or attached.
#[derive(Debug, Error)]
pub enum DatapathError {
    /// Somebody else's pins, or another version's.
    #[error(transparent)]
    Foreign(#[from] PinMismatch),
    /// The object is another version's.
    #[error(transparent)]
    Object(#[from] ObjectError),
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
        operation: String,
        /// Why.
        source: ProgramError,
    },
    /// The kernel refused a link.
    #[error("link {}: {what}", .path.display())]
    Link {
        /// The pin.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// Why.
        source: LinkError,
    },
    /// The kernel refused a qdisc.
    #[error("clsact qdisc of {device}")]
    Qdisc {
        /// The device.
        device: String,
        /// Why.
        source: TcError,
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
pub(crate) const SUBDIRS: [&str; 3] = ["links", "programs", clsact::QDISCS];

/// Programs in the kernel and where they are attached.
#[derive(Debug)]
pub struct Datapath {
    dir: PathBuf,
    map_dir: MapDir,
    ebpf: Ebpf,
    /// Kernel ids of the programs this agent loaded.
    ids: BTreeMap<Program, u32>,
    order: TcxOrder,
}

impl Datapath {
    /// Loads `object` with the maps pinned in `dir` if there are any, else with new ones, and pins.
    /// Nothing is attached, swapped or written yet. `order` is where programs are attached that are not
    /// attached yet.
    pub fn load(dir: &Path, object: &[u8], order: TcxOrder) -> Result<Self, DatapathError> {
        version::check(object)?;
        let generation = MapDir::select(dir)?;
        let maps = generation.path();
        for path in SUBDIRS.map(|subdir| dir.join(subdir)).iter().chain([&maps]) {
            fs::create_dir_all(path).map_err(|source| DatapathError::Io {
                path: path.clone(),
                source,
            })?;
        }
        let mut loader = EbpfLoader::new();
        for name in abi::ALL_MAPS {
            loader.map_pin_path(name, maps.join(name));
        }
        let mut ebpf = loader.load(object).map_err(DatapathError::Load)?;
        // Maps that were just made come from the object: it must agree with us, too.
        pins::check_maps(&maps)?;
        let mut ids = BTreeMap::new();
        for program in Program::ALL {
            ids.insert(program, load_program(&mut ebpf, program, dir)?);
        }
        Ok(Self {
            dir: dir.to_owned(),
            map_dir: generation,
            ebpf,
            ids,
            order,
        })
    }

    /// Where maps are pinned.
    #[must_use]
    pub fn maps_dir(&self) -> PathBuf {
        self.map_dir.path()
    }

    /// Everything that is attached runs on our maps: those of other versions can go.
    pub fn commit(&mut self) -> Result<(), DatapathError> {
        self.map_dir.commit()
    }

    /// Every attachment of ours: pinned links, and the filters that were found on the host's devices.
    pub fn attachments(&self, filters: &[Filter]) -> Result<BTreeMap<Hook, Attachment>, DatapathError> {
        let mut attachments = BTreeMap::new();
        for (program, device, path) in pinned_links(&self.dir)? {
            let attachment = tcx::observe(&path, self.ids.get(&program).copied())?;
            let mode = AttachMode::Tcx;
            attachments.insert(
                Hook {
                    program,
                    device,
                    mode,
                },
                attachment,
            );
        }
        for filter in filters {
            let hook = Hook {
                program: filter.program,
                device: filter.device.clone(),
                mode: AttachMode::Clsact,
            };
            let attachment = Attachment {
                ifindex: filter.ifindex,
                current: self.ids.get(&filter.program) == Some(&filter.program_id)
                    && filter.priority == clsact::priority(self.order),
            };
            // Of two filters (an agent that changed the order was killed) the one that is as wanted counts.
            let known = attachments.entry(hook).or_insert(attachment);
            known.current |= attachment.current;
        }
        Ok(attachments)
    }

    /// Attaches a program, or swaps it into what is there.
    pub fn attach(
        &mut self,
        hook: &Hook,
        ifindex: u32,
        from: Option<Attachment>,
    ) -> Result<(), DatapathError> {
        let Hook {
            program,
            device,
            mode,
        } = hook;
        let here = from.is_some_and(|from| from.ifindex == ifindex);
        let path = tcx::link_path(&self.dir, *program, device);
        let (dir, order) = (self.dir.clone(), self.order);
        let classifier = classifier(&mut self.ebpf, *program)?;
        match mode {
            AttachMode::Tcx if here => tcx::swap(classifier, *program, &path),
            AttachMode::Tcx => {
                // A link whose device is gone or another one is of no use any more.
                remove(&path)?;
                tcx::attach(classifier, *program, device, order, &path)
            }
            AttachMode::Clsact => {
                clsact::ensure_qdisc(&dir, device, ifindex)?;
                clsact::attach(classifier, *program, device, order)
            }
        }
    }

    /// Removes a program from a device.
    pub fn detach(&mut self, hook: &Hook) -> Result<(), DatapathError> {
        match hook.mode {
            AttachMode::Tcx => remove(&tcx::link_path(&self.dir, hook.program, &hook.device)),
            AttachMode::Clsact => clsact::detach(hook.program, &hook.device),
        }
    }
}

fn load_program(ebpf: &mut Ebpf, program: Program, dir: &Path) -> Result<u32, DatapathError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source| DatapathError::Program {
            name: program.name(),
            operation: what,
            source,
        }
    };
    let classifier = classifier(ebpf, program)?;
    classifier.load().map_err(failed("load"))?;
    let path = dir.join("programs").join(program.name());
    // Only for people who look: links hold their programs themselves.
    if path.exists() {
        pins::check_program(&path, program.name())?;
    }
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

fn attach_type(program: Program) -> TcAttachType {
    match program {
        Program::ToRemote => TcAttachType::Egress,
        Program::FromUnderlay => TcAttachType::Ingress,
    }
}

fn program_error(program: Program, what: impl Into<String>) -> impl FnOnce(ProgramError) -> DatapathError {
    let (name, what) = (program.name(), what.into());
    move |source| DatapathError::Program {
        name,
        operation: what,
        source,
    }
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
