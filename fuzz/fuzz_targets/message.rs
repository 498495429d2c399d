#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (xway_fuzz::target("message").run)(data));
