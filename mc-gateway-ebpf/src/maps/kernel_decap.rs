//! The map of tests of the kernel's decapsulation.

use aya_ebpf::{btf_maps::HashMap, macros::btf_map};
use mc_gateway_common::{abi::kernel_decap::MAX_KERNEL_DECAP_TESTS, maps::kernel_decap::KernelDecapTests};

use super::kernel::KernelMaps;

#[btf_map(name = "mc_decap_tests")]
static TESTS: HashMap<u32, u64, { MAX_KERNEL_DECAP_TESTS as usize }> = HashMap::new();

impl KernelDecapTests for KernelMaps {
    #[inline(always)]
    fn kernel_decap_tested_at(&self, key: u32) -> u64 {
        // SAFETY: a word, copied at once. No program removes an entry.
        unsafe { TESTS.get(key) }.copied().unwrap_or_default()
    }

    #[inline(always)]
    fn set_kernel_decap_tested(&self, key: u32, at: u64) {
        // A full map refuses new devices, whose packets are then decapsulated by `from_underlay`.
        let _ = TESTS.insert(key, at, 0);
    }
}
