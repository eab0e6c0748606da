//! Access to the pinned maps and links of a node past its agent.

use std::{fs, path::PathBuf};

use aya::{
    Pod,
    maps::{Array, HashMap, Map, MapData, MapError},
    programs::links::{FdLink, PinnedLink},
};
use mc_gateway_common::abi::MAPS_DIR;
use mc_tests::topology::{Place, Topology};

/// Slots of the array maps that the tests read and write: the first ones are assigned first.
const SLOTS: u32 = 64;

fn open<M: TryFrom<Map, Error = MapError>>(bed: &Topology, place: Place, name: &str) -> Result<M, MapError> {
    let pin = bed.bpf_dir(place).join(MAPS_DIR).join(name);
    M::try_from(Map::from_map_data(MapData::from_pin(pin)?)?)
}

/// A hash map.
pub(crate) fn hash<K: Pod, V: Pod>(
    bed: &Topology,
    place: Place,
    name: &str,
) -> Result<HashMap<MapData, K, V>, MapError> {
    open(bed, place, name)
}

/// An array.
pub(crate) fn array<V: Pod>(bed: &Topology, place: Place, name: &str) -> Result<Array<MapData, V>, MapError> {
    open(bed, place, name)
}

/// The entries of a hash map.
pub(crate) fn entries<K: Pod, V: Pod>(
    bed: &Topology,
    place: Place,
    name: &str,
) -> Result<Vec<(K, V)>, MapError> {
    hash::<K, V>(bed, place, name)?.iter().collect()
}

/// The slots of an array that are not all zero.
pub(crate) fn used_slots<V: Pod + Default + PartialEq>(
    bed: &Topology,
    place: Place,
    name: &str,
) -> Result<Vec<(u32, V)>, MapError> {
    let map = array::<V>(bed, place, name)?;
    let mut used = Vec::new();
    for slot in 0..SLOTS.min(map.len()) {
        let value = map.get(&slot, 0)?;
        if value != V::default() {
            used.push((slot, value));
        }
    }
    Ok(used)
}

/// The pins of links, each with the kernel ID of its program.
pub(crate) fn links(bed: &Topology, place: Place) -> Vec<(PathBuf, Option<u32>)> {
    let Ok(pins) = fs::read_dir(bed.bpf_dir(place).join("links")) else {
        return Vec::new();
    };
    let pins = pins.filter_map(|pin| Some(pin.ok()?.path()));
    pins.map(|pin| {
        let info = PinnedLink::from_pin(&pin).ok().map(FdLink::from);
        let program = info.and_then(|link| Some(link.info().ok()?.program_id()));
        (pin, program)
    })
    .collect()
}
