//! Return of freed memory to the kernel.
#![expect(unsafe_code, reason = "no crate has a safe function for malloc_trim")]

/// Returns the pages that earlier computations have freed. glibc keeps free pages below the end of its heap, where a
/// large compilation of policies leaves them (`malloc_trim(3)`, since glibc 2.8). Other allocators return them by
/// themselves.
pub(super) fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim is thread-safe and changes no allocation.
    unsafe {
        libc::malloc_trim(0);
    }
}
