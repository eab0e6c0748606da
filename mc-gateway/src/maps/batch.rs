//! Reading of whole maps with `BPF_MAP_LOOKUP_BATCH`: hundreds of entries in one system call.
//!
//! Replaces the iterators of aya 0.14, which has no such call: an iterator makes two system calls for each entry. Every
//! supported kernel has the operation for arrays and hash maps (Linux 5.6) and for LPM tries (5.13). Like all reading
//! of an open map it needs no capability since Linux 5.19; on older kernels the agent keeps `CAP_BPF`.
#![expect(unsafe_code, reason = "aya 0.14 has no BPF_MAP_LOOKUP_BATCH")]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::ptr;

use aya::Pod;
use aya::maps::{Array, IterableMap, MapData, MapError};
use aya::sys::SyscallError;
use rustix::io::Errno;

/// `BPF_MAP_LOOKUP_BATCH` of linux/bpf.h.
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;

/// Memory for the entries of one call: far more than the entries of one bucket of a hash map, which the kernel returns
/// together.
const BATCH_BYTES: usize = 256 * 1024;

/// The member `batch` of `union bpf_attr` in linux/bpf.h.
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// All entries of a map in the kernel's order, at most as many as its capacity: while another program changes the map,
/// an entry may be missing or occur twice.
pub(super) fn entries<K: Pod, V: Pod>(map: &impl IterableMap<K, V>) -> Entries<'_, K, V> {
    let map = map.map();
    let fd = map.fd().as_fd();
    match map.info() {
        Ok(info) => Entries::new(fd, info.max_entries()),
        Err(error) => Entries {
            failed: Some(error),
            ..Entries::new(fd, 0)
        },
    }
}

/// The first `slots` entries of an array.
pub(super) fn slots<V: Pod>(
    map: &Array<MapData, V>,
    slots: u32,
) -> impl Iterator<Item = Result<(u32, V), MapError>> {
    let slots = slots.min(map.len());
    Entries::new(map.map().fd().as_fd(), slots)
}

/// Iterator over the entries of a map. Ends after the first error.
pub(super) struct Entries<'map, K, V> {
    fd: BorrowedFd<'map>,
    /// Entries left to return.
    wanted: usize,
    /// Largest number of entries of one call.
    batch: usize,
    /// Where the last call ended, empty before the first: its last key, or for hash maps the number of a bucket.
    position: Vec<u8>,
    keys: Vec<K>,
    values: Vec<V>,
    /// Entries of the last call that are returned.
    returned: usize,
    /// No entry follows those of the last call.
    complete: bool,
    /// The error to return next.
    failed: Option<MapError>,
}

impl<'map, K: Pod, V: Pod> Entries<'map, K, V> {
    fn new(fd: BorrowedFd<'map>, wanted: u32) -> Self {
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let size = size_of::<K>().saturating_add(size_of::<V>()).max(1);
        Self {
            fd,
            wanted,
            batch: BATCH_BYTES.div_euclid(size).clamp(1, wanted.max(1)),
            position: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            returned: 0,
            complete: false,
            failed: None,
        }
    }

    /// Reads the next batch, which may be empty.
    fn read(&mut self) -> io::Result<()> {
        self.returned = 0;
        self.keys.clear();
        self.values.clear();
        self.keys.reserve_exact(self.batch);
        self.values.reserve_exact(self.batch);
        let first = self.position.is_empty();
        if first {
            self.position.resize(size_of::<K>().max(size_of::<u32>()), 0);
        }
        let position = self.position.as_mut_ptr() as u64;
        let mut attr = BatchAttr {
            in_batch: if first { 0 } else { position },
            out_batch: position,
            keys: self.keys.as_mut_ptr() as u64,
            values: self.values.as_mut_ptr() as u64,
            count: u32::try_from(self.batch).unwrap_or(u32::MAX),
            map_fd: self.fd.as_raw_fd().cast_unsigned(),
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: `attr` and the memory that it refers to outlive the call. The kernel writes a position, which is a
        // key or a `u32`, at most `count` keys and as many values. The sizes of `K` and `V` are those of the map: aya
        // compares them when a map is opened.
        let ret = unsafe {
            let attr = ptr::from_mut(&mut attr);
            libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_BATCH, attr, size_of::<BatchAttr>())
        };
        if ret != 0 {
            let error = io::Error::last_os_error();
            // These errors come with the number of entries read before.
            match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => self.complete = true,
                // An entry was removed meanwhile.
                Some(Errno::INTR) => {}
                _ => return Err(error),
            }
        }
        let count = usize::try_from(attr.count).unwrap_or(usize::MAX);
        let count = count.min(self.keys.capacity()).min(self.values.capacity());
        if first && count == 0 {
            // The kernel has written no position.
            self.position.clear();
        }
        // SAFETY: the kernel has written `count` keys and values, and any bytes are a valid `Pod`.
        unsafe {
            self.keys.set_len(count);
            self.values.set_len(count);
        }
        Ok(())
    }
}

impl<K: Pod, V: Pod> Iterator for Entries<'_, K, V> {
    type Item = Result<(K, V), MapError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        while self.wanted > 0 {
            let entry = self.keys.get(self.returned).zip(self.values.get(self.returned));
            if let Some((key, value)) = entry {
                self.returned = self.returned.saturating_add(1);
                self.wanted = self.wanted.saturating_sub(1);
                return Some(Ok((*key, *value)));
            }
            if self.complete {
                return None;
            }
            if let Err(io_error) = self.read() {
                self.wanted = 0;
                let call = "bpf_map_lookup_batch";
                return Some(Err(SyscallError { call, io_error }.into()));
            }
        }
        None
    }
}
