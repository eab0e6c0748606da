//! The state of the maps that results of look-ups and link addresses belong to.

/// Value of `mc_epoch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Epoch {
    /// Number of the current state of prefixes, peers, groups and next hops; 0 disables the caches.
    pub number: u32,
    /// Always 0.
    pub pad: u32,
    /// Nanoseconds of `CLOCK_MONOTONIC` until which programs use [`super::NextHop::link`]. The agent extends it while
    /// the link addresses are current.
    pub links_until: u64,
}

const _: () = assert!(size_of::<Epoch>() == 16 && align_of::<Epoch>() == 8);
