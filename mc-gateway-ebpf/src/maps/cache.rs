//! Per-CPU caches of lookups: an LPM lookup or a selection among 16 next hops costs as much as the rest of the
//! pipeline.
//!
//! *Guarantees*: an entry is only valid in its epoch. A new epoch after a change of prefixes, peers, groups or next
//! hops invalidates all entries at once.

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use mc_gateway_common::{
    abi::Prefix,
    maps::{AdmissionKey, EgressKey, PackedAdmission, PackedEgressRoute},
    packet::Address,
};

use super::epoch::epoch;

/// Entries of each map per CPU: a power of two.
const ENTRIES: u32 = 1 << BITS;
const BITS: u32 = 9;

/// Index of the entry for a hash.
#[inline(always)]
const fn index(hash: u32) -> u32 {
    hash.wrapping_mul(0x9e37_79b1) >> (32 - BITS)
}

/// An address and its prefix.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct CachedPrefix {
    address: Address,
    prefix: Prefix,
    epoch: u32,
    pad: u32,
}

#[btf_map(name = "mc_prefix_cache")]
static PREFIX_CACHE: PerCpuArray<CachedPrefix, { ENTRIES as usize }> = PerCpuArray::new();

/// The prefix of `address` cached in this epoch, else the result of `find`. Epoch 0 disables the cache.
#[inline(always)]
pub(super) fn cached_prefix(
    address: Address,
    epoch: u32,
    find: impl FnOnce() -> Option<Prefix>,
) -> Option<Prefix> {
    let Some(entry) = PREFIX_CACHE.get_ptr_mut(index(address.fold())) else {
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

/// An admission and the addresses it is for.
#[derive(Clone, Copy)]
#[repr(C)]
struct CachedAdmission {
    key: AdmissionKey,
    admission: PackedAdmission,
    epoch: u64,
}

#[btf_map(name = "mc_admit_cache")]
static ADMISSION_CACHE: PerCpuArray<CachedAdmission, { ENTRIES as usize }> = PerCpuArray::new();

/// The admission cached in this epoch, else the result of `find`. Drop reasons are not cached, so that a sender without
/// admission cannot evict entries.
#[inline(always)]
pub(crate) fn cached_admission(
    key: &AdmissionKey,
    find: impl Fn(&AdmissionKey) -> PackedAdmission,
) -> PackedAdmission {
    let epoch = u64::from(epoch());
    let hash = key.dst.fold().wrapping_mul(0x85eb_ca6b) ^ key.src.fold() ^ key.peer.fold().rotate_left(16);
    let Some(entry) = ADMISSION_CACHE.get_ptr_mut(index(hash)) else {
        return find(key);
    };
    // SAFETY: the entry is this CPU's own, and programs of one CPU do not interrupt each other.
    let entry = unsafe { &mut *entry };
    if epoch != 0 && entry.epoch == epoch && entry.key == *key {
        return entry.admission;
    }
    let admission = find(key);
    if !admission.is_rejected() {
        *entry = CachedAdmission {
            key: *key,
            admission,
            epoch,
        };
    }
    admission
}

/// An egress route and the addresses it is for.
#[derive(Clone, Copy)]
#[repr(C)]
struct CachedEgressRoute {
    key: EgressKey,
    route: PackedEgressRoute,
    epoch: u64,
}

#[btf_map(name = "mc_egress_cache")]
static EGRESS_CACHE: PerCpuArray<CachedEgressRoute, { ENTRIES as usize }> = PerCpuArray::new();

/// The route cached in this epoch, else the result of `find`. Only routes with a source of this node are cached, as
/// only admissions are.
#[inline(always)]
pub(crate) fn cached_egress_route(
    key: &EgressKey,
    find: impl Fn(&EgressKey) -> PackedEgressRoute,
) -> PackedEgressRoute {
    let epoch = u64::from(epoch());
    let hash = key.dst.fold().wrapping_mul(0x85eb_ca6b) ^ key.src.fold();
    let Some(entry) = EGRESS_CACHE.get_ptr_mut(index(hash)) else {
        return find(key);
    };
    // SAFETY: the entry is this CPU's own, and programs of one CPU do not interrupt each other.
    let entry = unsafe { &mut *entry };
    if epoch != 0 && entry.epoch == epoch && entry.key == *key {
        return entry.route;
    }
    let route = find(key);
    if route.has_own_source() {
        *entry = CachedEgressRoute {
            key: *key,
            route,
            epoch,
        };
    }
    route
}

/// The winner of rendezvous hashing among all next hops of a group, live or not.
#[derive(Clone, Copy)]
#[repr(C)]
struct CachedNextHop {
    group: u32,
    hash: u32,
    slot: u32,
    epoch: u32,
}

#[btf_map(name = "mc_nh_cache")]
static NEXT_HOP_CACHE: PerCpuArray<CachedNextHop, { ENTRIES as usize }> = PerCpuArray::new();

/// The slot of the winner cached in this epoch, else the result of `find`. The winner among the live next hops is not
/// cached, since liveness changes without a new epoch.
#[inline(always)]
pub(crate) fn cached_hrw_winner(group: u32, hash: u32, find: impl FnOnce() -> u32) -> u32 {
    let epoch = epoch();
    let Some(entry) = NEXT_HOP_CACHE.get_ptr_mut(index(hash ^ group)) else {
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
