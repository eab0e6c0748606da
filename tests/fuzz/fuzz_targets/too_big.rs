//! See `mc_fuzz::too_big`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mc_fuzz::too_big(data));
