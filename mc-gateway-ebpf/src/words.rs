//! Word access to packet memory.
//!
//! A packet starts at any address, and the compiler emits byte accesses for possibly unaligned words. The kernel
//! permits unaligned packet access if the machine does (x86-64, arm64), hence the explicit instructions.

use core::{arch::asm, array};

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

/// Reads a field of four bytes of the context that the verifier treats as a pointer. The compiler knows four bytes of
/// such a field and copies them as such, which would make a number of the pointer.
///
/// # Safety
/// `context` is the context of the program, and `AT` the offset of such a field.
#[inline(always)]
pub(crate) unsafe fn load_field<const AT: usize>(context: usize) -> usize {
    let value: u64;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{0} = *(u32 *)({1} + {2})",
            out(reg) value,
            in(reg) context,
            const AT,
            options(pure, readonly, nostack)
        );
    }
    value as usize
}

/// Reads `W` words.
///
/// # Safety
/// The words must be readable at `address`.
#[inline(always)]
pub(crate) unsafe fn load<const W: usize>(address: usize) -> [u64; W] {
    // SAFETY: the caller's promise.
    array::from_fn(|i| unsafe { load_u64(address + 8 * i) })
}

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

/// Writes the first `N` bytes of `words`.
///
/// # Safety
/// The bytes must be writable at `address`.
#[inline(always)]
pub(crate) unsafe fn store<const W: usize, const N: usize>(address: usize, words: [u64; W]) {
    const { assert!(N > 8 * (W - 1) && N <= 8 * W && N.is_multiple_of(2)) }
    // SAFETY: the caller's promise.
    unsafe {
        for i in 0..N / 8 {
            store_u64(address + 8 * i, words[i]);
        }
        let (mut at, mut rest) = (address + N / 8 * 8, words[W - 1]);
        if N % 8 >= 4 {
            store_u32(at, rest as u32);
            at += 4;
            rest >>= 32;
        }
        if N % 4 >= 2 {
            store_u16(at, rest as u16);
        }
    }
}
