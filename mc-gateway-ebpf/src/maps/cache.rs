//! What was found of recent addresses and flows, per CPU: a lookup in the LPM trie, or the choice among 16
//! next hops, costs as much as all else a gateway decides about a packet.
//!
//! *Guarantees*: an entry is believed only in the epoch it was made in, so that a change of prefixes, peers,
//! groups or next hops followed by a new epoch forgets all of them at once.

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use mc_gateway_common::{
    abi::Prefix,
    maps::{Admission, AdmissionKey},
    packet::Address,
};

use crate::subprograms::mc_admission;

/// Entries of each map per CPU: a power of two.
const ENTRIES: u32 = 1 << BITS;
const BITS: u32 = 9;

/// Place of the entry for a hash.
#[inline(always)]
const fn index(hash: u32) -> u32 {
    hash.wrapping_mul(0x9e37_79b1) >> (32 - BITS)
}

/// An address and the prefix it was found in.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct CachedPrefix {
    address: Address,
    prefix: Prefix,
    epoch: u32,
    pad: u32,
}

#[btf_map(name = "mc_prefix_cache")]
static CACHE: PerCpuArray<CachedPrefix, { ENTRIES as usize }> = PerCpuArray::new();

/// The prefix of `address` as found in this epoch, else what `find` says. Epoch 0 remembers nothing.
#[inline(always)]
pub(super) fn cached_prefix(
    address: Address,
    epoch: u32,
    find: impl FnOnce() -> Option<Prefix>,
) -> Option<Prefix> {
    let Some(entry) = CACHE.get_ptr_mut(index(address.fold())) else {
        return find();
    };
    // SAFETY: the entry is this CPU's own, and programs of one CPU do not interrupt each other.
    let entry = unsafe { &mut *entry };
    if epoch != 0 && entry.epoch == epoch && entry.address == address {
        return Some(entry.prefix);
    }
    let prefix = find()?;
    *entry = CachedPrefix {
        address,
        prefix,
        epoch,
        pad: 0,
    };
    Some(prefix)
}

/// A way and what was found of packets that come along it.
#[derive(Clone, Copy)]
#[repr(C)]
struct CachedAdmission {
    way: AdmissionKey,
    /// Packed.
    admission: u64,
    epoch: u64,
}

#[btf_map(name = "mc_admit_cache")]
static WAYS: PerCpuArray<CachedAdmission, { ENTRIES as usize }> = PerCpuArray::new();

/// What was found of packets that come this way in this epoch, else what the tables say. Refusals are not
/// remembered: nobody shall fill the memory with them.
#[inline(always)]
pub(super) fn cached_admission(way: &AdmissionKey, epoch: u32) -> u64 {
    let hash = way.dst.fold().wrapping_mul(0x85eb_ca6b) ^ way.src.fold() ^ way.peer.fold().rotate_left(16);
    let Some(entry) = WAYS.get_ptr_mut(index(hash)) else {
        return mc_admission(way);
    };
    // SAFETY: the entry is this CPU's own, and programs of one CPU do not interrupt each other.
    let entry = unsafe { &mut *entry };
    let epoch = u64::from(epoch);
    if epoch != 0 && entry.epoch == epoch && entry.way == *way {
        return entry.admission;
    }
    let admission = mc_admission(way);
    if !Admission::is_refusal(admission) {
        *entry = CachedAdmission {
            way: *way,
            admission,
            epoch,
        };
    }
    admission
}

/// The next hop a flow prefers, whether it is alive or not.
#[derive(Clone, Copy)]
#[repr(C)]
struct CachedNextHop {
    group: u32,
    hash: u32,
    slot: u32,
    epoch: u32,
}

#[btf_map(name = "mc_nh_cache")]
static PREFERENCES: PerCpuArray<CachedNextHop, { ENTRIES as usize }> = PerCpuArray::new();

/// The slot of the next hop a flow prefers as found in this epoch, else what `find` says. That it is alive is no
/// part of it: the choice among those that are is made anew for every packet.
#[inline(always)]
pub(super) fn cached_hrw_winner(group: u32, hash: u32, epoch: u32, find: impl FnOnce() -> u32) -> u32 {
    let Some(entry) = PREFERENCES.get_ptr_mut(index(hash ^ group)) else {
        return find();
    };
    // SAFETY: the entry is this CPU's own, and programs of one CPU do not interrupt each other.
    let entry = unsafe { &mut *entry };
    if epoch != 0 && entry.epoch == epoch && entry.hash == hash && entry.group == group {
        return entry.slot;
    }
    let slot = find();
    *entry = CachedNextHop {
        group,
        hash,
        slot,
        epoch,
    };
    slot
}
