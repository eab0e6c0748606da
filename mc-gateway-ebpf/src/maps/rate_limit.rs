//! The ICMP error rate limit map.

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use mc_gateway_common::{
    abi::rate_limit::TokenBucket,
    maps::{liveness::Liveness, rate_limit::RateLimiter},
    rate_limit,
};

use super::kernel::KernelMaps;

#[btf_map(name = "mc_icmp_limit")]
static ICMP_LIMIT: PerCpuArray<TokenBucket, 1> = PerCpuArray::new();

impl RateLimiter for KernelMaps {
    #[inline(always)]
    fn allow_icmp_error(&self) -> bool {
        let Some(bucket) = ICMP_LIMIT.get_ptr_mut(0) else {
            return false;
        };
        // SAFETY: the pointer is this CPU's own slot and programs of one CPU do not interrupt each other.
        unsafe { rate_limit::take_token(&mut *bucket, self.now()) }
    }
}
