//! The prefix table of loaded programs, written past an agent. No packet is processed meanwhile.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use aya::{
    Ebpf,
    maps::{Array, HashMap, MapData},
};
use mc_gateway_common::abi::{
    Addr, PREFIXES, Prefix, PrefixKey,
    prefix::{PREFIX_LENS, PrefixLengths, lengths_slot},
};

/// Adds prefixes to an empty table.
pub fn fill(ebpf: &mut Ebpf, prefixes: &BTreeMap<(u32, Addr), Prefix>) -> Result<()> {
    let mut map = entries(ebpf)?;
    for ((len, addr), prefix) in prefixes {
        map.insert(PrefixKey::new(*len, *addr), prefix, 0)?;
    }
    set_lengths(ebpf, prefixes.keys())
}

/// Removes prefixes, the only ones, from the table.
pub fn clear(ebpf: &mut Ebpf, prefixes: &BTreeMap<(u32, Addr), Prefix>) -> Result<()> {
    let mut map = entries(ebpf)?;
    for (len, addr) in prefixes.keys() {
        map.remove(&PrefixKey::new(*len, *addr))?;
    }
    set_lengths(ebpf, std::iter::empty())
}

/// The map of prefixes.
pub fn entries(ebpf: &mut Ebpf) -> Result<HashMap<&mut MapData, PrefixKey, Prefix>> {
    Ok(ebpf.map_mut(PREFIXES).context(PREFIXES)?.try_into()?)
}

/// Writes both lists of each IP version.
fn set_lengths<'k>(ebpf: &mut Ebpf, keys: impl Iterator<Item = &'k (u32, Addr)>) -> Result<()> {
    let keys: Vec<PrefixKey> = keys.map(|(len, addr)| PrefixKey::new(*len, *addr)).collect();
    let map = ebpf.map_mut(PREFIX_LENS).context(PREFIX_LENS)?;
    let mut lists: Array<_, PrefixLengths> = map.try_into()?;
    for generation in [0, 1] {
        for v4 in [false, true] {
            let lengths = PrefixLengths::of(keys.iter(), v4);
            lists.set(lengths_slot(generation, v4), lengths, 0)?;
        }
    }
    Ok(())
}
