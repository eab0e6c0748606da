//! The map that limits ICMP errors.

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use mc_gateway_common::{
    abi::limit::Bucket,
    limit,
    tables::{health::Health, limit::Limits},
};

use super::Maps;

#[btf_map(name = "mc_icmp_limit")]
static ICMP_LIMIT: PerCpuArray<Bucket, 1> = PerCpuArray::new();

impl Limits for Maps {
    #[inline(always)]
    fn may_send_error(&self) -> bool {
        let Some(bucket) = ICMP_LIMIT.get_ptr_mut(0) else {
            return false;
        };
        // SAFETY: the pointer is this CPU's own slot and programs of one CPU do not interrupt each other.
        unsafe { limit::take(&mut *bucket, self.now()) }
    }
}
