//! See `mc_fuzz::sample`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mc_fuzz::sample(data));
