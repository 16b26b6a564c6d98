//! Any bytes: they are refused with one line, or what was read keeps its promises and survives a rewrite.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/support/promises.rs"]
mod promises;

fuzz_target!(|bytes: &[u8]| promises::check(bytes));
