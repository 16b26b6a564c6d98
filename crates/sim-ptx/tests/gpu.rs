//! The contract of the device trait on an NVIDIA GPU. Ignored without being asked for: scripts/test.sh asks where there is one.

use std::path::PathBuf;

use metal::device::{CompileOptions, MathMode};
use metal_sim::compile::{Clang, Source};
use sim_ptx::{PtxDevice, libraries};

#[path = "../../metal/tests/contract/mod.rs"]
mod contract;

contract!(ptx, sim_ptx::PtxDevice::first().unwrap(), #[ignore = "needs an NVIDIA GPU"]);

/// Where the variable names a folder, this is also what fills it for the tests above on a machine without clang.
#[test]
fn a_library_that_was_compiled_elsewhere_is_found() {
    let clang = Clang::find().expect("these tests need clang");
    let temporary = tempfile::tempdir().unwrap();
    let directory =
        std::env::var_os(libraries::VARIABLE).map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let source =
        Source { name: "device.metal", text: contract::SOURCE, include_directories: &[], only: None };
    let options = CompileOptions::default();
    let path = libraries::add(&directory, &clang, source, &options).unwrap();
    let data = std::fs::read(&path).unwrap();
    assert!(data.starts_with(b"SIMPTX1\n"));
    assert_eq!(
        libraries::find_in(&directory, Source { name: "other.metal", ..source }, &options),
        Some(data)
    );
    assert_eq!(libraries::find_in(&directory, Source { text: "", ..source }, &options), None);
    let strict = CompileOptions { math: MathMode::Safe, ..options };
    assert_eq!(libraries::find_in(&directory, source, &strict), None);
    if let Err(error) = PtxDevice::first() {
        // No GPU here: then it is a sentence.
        assert!(error.to_string().contains("NVIDIA"), "{error}");
    }
}
