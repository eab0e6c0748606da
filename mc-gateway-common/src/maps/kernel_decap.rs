//! Access to the tests of the kernel's decapsulation.

/// Times of the last test packets.
pub trait KernelDecapTests {
    /// Time of the last test packet with this [`crate::abi::kernel_decap::test_key`] that came through the tunnel
    /// device, in nanoseconds of `CLOCK_MONOTONIC`; 0 for never.
    fn kernel_decap_tested_at(&self, key: u32) -> u64;
    /// Records a test packet. Without effect if the map is full.
    fn set_kernel_decap_tested(&self, key: u32, at: u64);
}

#[cfg(any(test, feature = "std"))]
mod host {
    use super::KernelDecapTests;
    use crate::maps::MemoryMaps;

    impl KernelDecapTests for MemoryMaps {
        fn kernel_decap_tested_at(&self, key: u32) -> u64 {
            self.decap_tests.borrow().get(&key).copied().unwrap_or_default()
        }

        fn set_kernel_decap_tested(&self, key: u32, at: u64) {
            self.decap_tests.borrow_mut().insert(key, at);
        }
    }
}
