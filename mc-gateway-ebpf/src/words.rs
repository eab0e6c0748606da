//! Word access to packet memory.
//!
//! A packet starts at any address, and the compiler emits byte accesses for possibly unaligned words. The kernel
//! permits unaligned packet access if the machine does (x86-64, arm64), hence the explicit instructions.

use core::arch::asm;

macro_rules! load {
    ($name:ident, $type:ty, $instruction:literal) => {
        /// Reads one word.
        ///
        /// # Safety
        /// The word must be readable at `address`.
        #[inline(always)]
        pub(crate) unsafe fn $name(address: usize) -> $type {
            let value: u64;
            // SAFETY: the caller's promise.
            unsafe {
                asm!($instruction, out(reg) value, in(reg) address, options(pure, readonly, nostack));
            }
            value as $type
        }
    };
}

load!(load_u64, u64, "{0} = *(u64 *)({1} + 0)");
load!(load_u32, u32, "{0} = *(u32 *)({1} + 0)");

macro_rules! store {
    ($name:ident, $type:ty, $instruction:literal) => {
        /// Writes one word.
        ///
        /// # Safety
        /// The word must be writable at `address`.
        #[inline(always)]
        pub(crate) unsafe fn $name(address: usize, value: $type) {
            let value = value as u64;
            // SAFETY: the caller's promise.
            unsafe {
                asm!($instruction, in(reg) address, in(reg) value, options(nostack));
            }
        }
    };
}

store!(store_u64, u64, "*(u64 *)({0} + 0) = {1}");
store!(store_u32, u32, "*(u32 *)({0} + 0) = {1}");
store!(store_u16, u16, "*(u16 *)({0} + 0) = {1}");
