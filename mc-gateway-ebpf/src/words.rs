//! Reads of packet memory in words.
//!
//! A packet starts at any address, and the compiler reads what may be unaligned byte by byte. The kernel
//! allows unaligned reads of packets where the machine does (x86-64, arm64), so the loads are spelled out.

use core::arch::asm;

macro_rules! load {
    ($name:ident, $type:ty, $instruction:literal) => {
        /// Reads one word.
        ///
        /// # Safety
        /// The word must be readable at `address`.
        #[inline(always)]
        unsafe fn $name(address: usize) -> $type {
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
load!(load_u16, u16, "{0} = *(u16 *)({1} + 0)");
load!(load_u8, u8, "{0} = *(u8 *)({1} + 0)");

/// Copies `N` bytes of packet memory to an address aligned to eight bytes.
///
/// # Safety
/// `N` bytes must be readable at `from` and writable at `to`.
#[inline(always)]
pub(crate) unsafe fn copy<const N: usize>(from: usize, to: *mut u8) {
    let mut at = 0;
    // SAFETY: each access lies inside the N bytes of both; `to` is aligned for words at multiples of their
    // size.
    unsafe {
        while at + 8 <= N {
            to.add(at).cast::<u64>().write(load_u64(from + at));
            at += 8;
        }
        if at + 4 <= N {
            to.add(at).cast::<u32>().write(load_u32(from + at));
            at += 4;
        }
        if at + 2 <= N {
            to.add(at).cast::<u16>().write(load_u16(from + at));
            at += 2;
        }
        if at < N {
            to.add(at).write(load_u8(from + at));
        }
    }
}
