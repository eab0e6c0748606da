//! The rate limit maps.

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use mc_gateway_common::{
    abi::{
        MAX_PEER_STATS,
        rate_limit::{MAX_SENDER_LIMITS, PeerLimits, PeerRates, TokenBucket},
    },
    maps::{
        liveness::Liveness,
        rate_limit::{PeerLimit, RateLimiter},
    },
    rate_limit,
};

use super::kernel::KernelMaps;

#[btf_map(name = "mc_icmp_limit")]
static ICMP_LIMIT: PerCpuArray<TokenBucket, 1> = PerCpuArray::new();

#[btf_map(name = "mc_peer_limits")]
static PEER_LIMITS: PerCpuArray<PeerLimits, { MAX_PEER_STATS as usize }> = PerCpuArray::new();

#[btf_map(name = "mc_sender_limit")]
static SENDER_LIMITS: PerCpuArray<TokenBucket, { MAX_SENDER_LIMITS as usize }> = PerCpuArray::new();

/// The agent replaces the value before it loads the object.
#[unsafe(no_mangle)]
static MC_PEER_RATES: PeerRates = PeerRates::DEFAULT;

impl RateLimiter for KernelMaps {
    #[inline(always)]
    fn allow_icmp_error(&self) -> bool {
        let Some(bucket) = ICMP_LIMIT.get_ptr_mut(0) else {
            return false;
        };
        // SAFETY: this CPU's own value, as the module `maps` describes.
        unsafe { rate_limit::take_token(&mut *bucket, rate_limit::ICMP_ERRORS, self.now()) }
    }

    #[inline(always)]
    fn allow_rejection(&self, sender_slot: u32) -> bool {
        let Some(bucket) = SENDER_LIMITS.get_ptr_mut(sender_slot) else {
            return false;
        };
        // SAFETY: as above.
        if !unsafe { rate_limit::take_token(&mut *bucket, rate_limit::REJECTIONS, self.now()) } {
            return false;
        }
        let Some(bucket) = ICMP_LIMIT.get_ptr_mut(0) else {
            return false;
        };
        // SAFETY: as above.
        unsafe { rate_limit::take_spare_token(&mut *bucket, rate_limit::ICMP_ERRORS, self.now()) }
    }

    #[inline(always)]
    fn take_peer_token(&self, slot: u32, limit: PeerLimit) -> bool {
        let Some(limits) = PEER_LIMITS.get_ptr_mut(slot) else {
            return true;
        };
        // SAFETY: a constant of the object. A volatile read keeps the compiler from using its own value.
        let rates = unsafe { (&raw const MC_PEER_RATES).read_volatile() };
        // SAFETY: as above.
        let (bucket, rate) = rate_limit::of_peer(unsafe { &mut *limits }, &rates, limit);
        rate_limit::take_token(bucket, rate, self.now())
    }
}
