//! See `mc_fuzz::liveness`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mc_fuzz::liveness(data));
