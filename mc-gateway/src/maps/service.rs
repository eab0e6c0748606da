//! The Service maps that the agent writes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use aya::maps::{HashMap, MapData};
use mc_gateway_common::abi::service::{self as abi, Backend, Maglev, Service, ServiceKey};

use super::batch;
use super::entries::same_entries;
use super::error::{MapsError, ignore_missing, map_error, open};
use crate::plan::{ServiceAction, ServiceMaps};

/// `mc_services`, `mc_maglev` and `mc_backends`.
pub(super) struct PinnedServiceMaps {
    services: HashMap<MapData, ServiceKey, Service>,
    tables: HashMap<MapData, ServiceKey, Maglev>,
    backends: HashMap<MapData, u64, Backend>,
}

impl PinnedServiceMaps {
    /// Opens the maps pinned in `dir`.
    pub(super) fn open(dir: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            services: open(dir, abi::SERVICES)?,
            tables: open(dir, abi::MAGLEV)?,
            backends: open(dir, abi::BACKENDS)?,
        })
    }

    /// Reads every entry.
    pub(super) fn read(&self) -> Result<ServiceMaps, MapsError> {
        let mut maps = ServiceMaps::default();
        for entry in batch::entries(&self.services) {
            let (key, service) = entry.map_err(map_error(abi::SERVICES, "read"))?;
            maps.services.insert(key, service);
        }
        for entry in batch::entries(&self.tables) {
            let (key, table) = entry.map_err(map_error(abi::MAGLEV, "read"))?;
            maps.tables.insert(key, Arc::new(table));
        }
        for entry in batch::entries(&self.backends) {
            let (id, backend) = entry.map_err(map_error(abi::BACKENDS, "read"))?;
            maps.backends.insert(id, backend);
        }
        Ok(maps)
    }

    /// Whether the maps hold exactly the expected entries.
    pub(super) fn is_unchanged(&self, expected: &ServiceMaps) -> Result<bool, MapsError> {
        Ok(
            same_entries(batch::entries(&self.services), &expected.services, abi::SERVICES)?
                && self.has_tables(&expected.tables)?
                && same_entries(batch::entries(&self.backends), &expected.backends, abi::BACKENDS)?,
        )
    }

    /// Whether `mc_maglev` holds exactly the expected tables.
    fn has_tables(&self, expected: &BTreeMap<ServiceKey, Arc<Maglev>>) -> Result<bool, MapsError> {
        let tables =
            batch::entries(&self.tables).map(|entry| entry.map(|(key, table)| (key, Arc::new(table))));
        same_entries(tables, expected, abi::MAGLEV)
    }

    /// Writes or removes one entry.
    pub(super) fn apply(&mut self, action: &ServiceAction) -> Result<(), MapsError> {
        match action {
            ServiceAction::Backend { id, to, .. } => match to {
                Some(backend) => self.backends.insert(id, backend, 0),
                None => ignore_missing(self.backends.remove(id)),
            }
            .map_err(map_error(abi::BACKENDS, "write")),
            ServiceAction::Table { key, to, .. } => match to {
                Some(table) => self.tables.insert(key, table.as_ref(), 0),
                None => ignore_missing(self.tables.remove(key)),
            }
            .map_err(map_error(abi::MAGLEV, "write")),
            ServiceAction::Service { key, to, .. } => match to {
                Some(service) => self.services.insert(key, service, 0),
                None => ignore_missing(self.services.remove(key)),
            }
            .map_err(map_error(abi::SERVICES, "write")),
        }
    }
}
