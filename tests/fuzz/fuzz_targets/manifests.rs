//! See `mc_fuzz::manifests`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mc_fuzz::manifests(data));
