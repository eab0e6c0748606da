//! Alignment of byte arrays on the stack.

/// Bytes that the compiler can access as words. Without the alignment, every field of a header or key becomes
/// byte loads, shifts and ors in a BPF program.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Aligned<T>(pub T);
