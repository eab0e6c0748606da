//! See `mc_fuzz::cidr`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mc_fuzz::cidr(data));
