//! See `mc_fuzz::to_remote`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mc_fuzz::to_remote(data));
