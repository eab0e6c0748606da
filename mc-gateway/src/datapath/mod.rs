//! The eBPF side: loads and pins programs and maps, attaches programs and replaces them without a gap.
//!
//! *Guarantees*: pinned programs keep working without an agent; a new agent adopts the maps, or migrates to new ones if
//! their layout version differs (`map_migration`), and replaces each attached program in one step, so that every
//! packet on the device meets a program.

pub(crate) mod clsact;
mod error;
mod flow_tables;
mod kernel_flags;
mod lookup_cache;
pub(crate) mod map_migration;
mod pin_dir;
mod pins;
mod program;
mod restore;
mod tcx;
mod transit;
mod version;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use aya::{Ebpf, EbpfLoader};
use mc_gateway_common::abi;
use mc_gateway_common::abi::kernel_decap::HAS_DECAP_FLAG;
use mc_gateway_common::abi::lookup_cache::{CACHE_BITS, LOOKUP_CACHES};
use mc_gateway_common::abi::rate_limit::PEER_RATES;

use crate::config::{Limits, TcxOrder};
use crate::host::tc_filter::Filter;
use crate::plan::{AttachMode, Attachment, Hook, Program};
use crate::program_log::{self, ProgramLogError};
pub use error::DatapathError;
use error::remove_pin;
use flow_tables::OldTables;
use map_migration::MapDir;
use pins::FLOW_TABLES;
pub(crate) use program::program_pins;
use program::{classifier, load_program};
pub(crate) use tcx::pinned_links;
use transit::Transit;
pub(crate) use transit::pinned_links as transit_links;

/// Directories below the pin directory.
pub(crate) const SUBDIRS: [&str; 4] = ["links", "programs", clsact::QDISCS, transit::LINKS];

/// The loaded programs and their attachments.
#[derive(Debug)]
pub struct Datapath {
    dir: PathBuf,
    map_dir: MapDir,
    /// Flow tables of the programs that are attached until the first plan is applied.
    old_tables: OldTables,
    ebpf: Ebpf,
    /// Kernel IDs of the programs that this agent loaded.
    ids: BTreeMap<Program, u32>,
    transit: Transit,
    clears_tunnel_state: bool,
    order: TcxOrder,
    /// Pins of links when they were last observed or created.
    links: BTreeSet<PathBuf>,
}

impl Datapath {
    /// Loads `object` with the maps pinned in `dir`, or with new maps, and pins both. Attaches and writes nothing.
    /// `order` is the position of programs that are not attached yet.
    pub fn load(dir: &Path, object: &[u8], order: TcxOrder, limits: &Limits) -> Result<Self, DatapathError> {
        version::check(object)?;
        let generation = MapDir::select(dir)?;
        let maps = generation.path();
        for path in SUBDIRS.map(|subdir| dir.join(subdir)).iter().chain([&maps]) {
            fs::create_dir_all(path).map_err(|source| DatapathError::Io {
                path: path.clone(),
                source,
            })?;
        }
        let size = limits.flow_table_size;
        let mut old_tables = generation.share_flow_tables(size)?;
        let mut loader = EbpfLoader::new();
        loader.override_global(PEER_RATES, &limits.peer_rates, true);
        let cpus = aya::util::nr_cpus().map_err(|(_, source)| DatapathError::Io {
            path: "/sys/devices/system/cpu/possible".into(),
            source,
        })?;
        let cache_bits = lookup_cache::bits(cpus);
        loader.override_global(CACHE_BITS, &cache_bits, true);
        let clears_tunnel_state = kernel_flags::has_decap_flag()?;
        let has_decap_flag = u32::from(clears_tunnel_state);
        loader.override_global(HAS_DECAP_FLAG, &has_decap_flag, true);
        for name in LOOKUP_CACHES {
            loader.map_max_entries(name, 1 << cache_bits);
        }
        for name in abi::ALL_MAPS {
            let pin = maps.join(name);
            loader.map_pin_path(name, old_tables.provisional(&pin).to_owned());
        }
        for name in FLOW_TABLES {
            loader.map_max_entries(name, size.capacity(name));
        }
        let mut ebpf = loader.load(object).map_err(DatapathError::Load)?;
        old_tables.fill(&maps)?;
        // New maps have the properties that the object declares; they must match this version, too.
        pins::check_maps(&maps, Some(size))?;
        let mut ids = BTreeMap::new();
        for program in Program::ALL {
            ids.insert(program, load_program(&mut ebpf, program, dir)?);
        }
        let transit = Transit {
            id: transit::load(&mut ebpf, dir)?,
            links: BTreeMap::new(),
        };
        Ok(Self {
            dir: dir.to_owned(),
            map_dir: generation,
            old_tables,
            ebpf,
            ids,
            transit,
            clears_tunnel_state,
            order,
            links: BTreeSet::new(),
        })
    }

    /// Forwards the log records of the programs, if the object writes any.
    pub fn start_program_log(&mut self) -> Result<(), ProgramLogError> {
        program_log::start(&mut self.ebpf)
    }

    /// Whether the programs clear the tunnel state of the super-packets that they decapsulate, so that no tunnel device
    /// has to decapsulate those to Pods on a bridge.
    #[must_use]
    pub fn clears_tunnel_state(&self) -> bool {
        self.clears_tunnel_state
    }

    /// Directory of the pinned maps.
    #[must_use]
    pub fn maps_dir(&self) -> PathBuf {
        self.map_dir.path()
    }

    /// Completes a migration after every attached program uses the new maps: removes the maps of other versions.
    pub fn commit(&mut self) -> Result<(), DatapathError> {
        self.old_tables.finish()?;
        self.map_dir.commit()
    }

    /// The agent's attachments: pinned links, and the filters found on the host's devices.
    pub fn attachments(&mut self, filters: &[Filter]) -> Result<BTreeMap<Hook, Attachment>, DatapathError> {
        let mut attachments = BTreeMap::new();
        let links = pinned_links(&self.dir)?;
        self.links = links.iter().map(|(_, _, path)| path.clone()).collect();
        let ids = |program| self.ids.get(&program).copied();
        let pins: Vec<_> = links
            .iter()
            .map(|(program, _, path)| (path.clone(), ids(*program)))
            .collect();
        let observed = tcx::observe_all(&pins)?;
        for ((program, device, _), attachment) in links.into_iter().zip(observed) {
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
            // An agent killed while it changed the order leaves two filters; the current one counts.
            let known = attachments.entry(hook).or_insert(attachment);
            known.current |= attachment.current;
        }
        Ok(attachments)
    }

    /// Attaches a program, or replaces the attached one.
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
                // The link of a removed or replaced device is useless.
                remove_pin(&path)?;
                tcx::attach(classifier, *program, device, order, &path)?;
                self.links.insert(path);
                Ok(())
            }
            AttachMode::Clsact => {
                clsact::ensure_qdisc(&dir, device, ifindex)?;
                clsact::attach(classifier, *program, device, order)
            }
        }
    }

    /// Detaches a program from a device.
    pub fn detach(&mut self, hook: &Hook) -> Result<(), DatapathError> {
        match hook.mode {
            AttachMode::Tcx => {
                let path = tcx::link_path(&self.dir, hook.program, &hook.device);
                self.links.remove(&path);
                remove_pin(&path)
            }
            AttachMode::Clsact => clsact::detach(hook.program, &hook.device),
        }
    }
}
