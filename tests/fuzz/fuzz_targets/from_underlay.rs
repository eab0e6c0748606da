//! See `mc_fuzz::from_underlay`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mc_fuzz::from_underlay(data));
