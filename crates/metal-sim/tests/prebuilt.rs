//! Libraries that were compiled beforehand.

mod common;

use std::fs;

use metal::device::{CompileOptions, Device, Error, Size};
use metal_sim::compile::{self, Clang, Source};

use common::{Lab, device, read};

const SOURCE: &str = "
    #include <metal_stdlib>
    using namespace metal;
    kernel void doubled(device float* values [[buffer(0)]], uint i [[thread_position_in_grid]]) {
        values[i] *= 2.0f;
    }";

#[test]
fn a_compiled_library_runs_without_its_source() {
    let clang = Clang::find().unwrap();
    let source = Source { name: "doubled.metal", text: SOURCE, include_directories: &[], only: None };
    let path = compile::build(&clang, source, &CompileOptions::default()).unwrap();
    let data = fs::read(path).unwrap();
    let device = device();
    let library = device.new_library_with_data("prebuilt", &data).unwrap();
    assert_eq!(library.kernel_names().collect::<Vec<_>>(), ["doubled"]);
    let queue = device.new_queue("test").unwrap();
    let lab = Lab::of(device, library, queue);
    let values = lab.buffer(&[1.0f32, 2.5, -3.0]);
    lab.launch("doubled").buffer(0, &values).threads(Size::width(3), Size::width(32)).unwrap();
    assert_eq!(read::<f32>(&values), [2.0, 5.0, -6.0]);
}

#[test]
fn other_bytes_are_refused() {
    let device = device();
    for (data, found) in [
        (&b""[..], "found no bytes"),
        (b"MTLB\x01\x80", "found a metallib, code for Apple's GPUs"),
        (b"#include <metal_stdlib>", "found no shared object"),
    ] {
        let Err(Error::Compile { label, diagnostics }) = device.new_library_with_data("w", data) else {
            panic!("{found}");
        };
        assert_eq!(label, "w");
        assert!(diagnostics.ends_with(found), "{diagnostics}");
    }
    // Cut off: the dynamic linker refuses it.
    let refused = device.new_library_with_data("w", b"\x7fELF\x02\x01\x01");
    assert!(matches!(refused, Err(Error::Compile { .. })));
}
