//! What can be tested without a GPU: every kernel of the conformance suite becomes PTX.

use std::fs;
use std::path::Path;

use metal::device::CompileOptions;
use metal_sim::compile::{Clang, Source};

#[test]
fn the_conformance_kernels_become_ptx() {
    let clang = Clang::find().expect("these tests need clang");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../metal-sim/tests/msl");
    for (file, kernels) in
        [("grid.metal", 2), ("language.metal", 21), ("simd.metal", 45), ("matrix.metal", 10)]
    {
        let text = fs::read_to_string(directory.join(file)).unwrap();
        let source = Source { name: file, text: &text, include_directories: &[], only: None };
        let library = sim_ptx::build(&clang, source, &CompileOptions::default()).unwrap();
        let text = String::from_utf8_lossy(&library);
        for number in 0..kernels {
            assert!(text.contains(&format!(".visible .entry metal_kernel_{number}(")), "{file}: {number}");
        }
        assert!(
            !text.contains(&format!("metal_kernel_{kernels}(")),
            "{file} has more than {kernels} kernels"
        );
        // Nothing is left to be linked.
        assert!(!text.contains(".extern .func"), "{file}");
    }
}

#[test]
fn a_barrier_is_not_duplicated() {
    let clang = Clang::find().expect("these tests need clang");
    // Optimisers like to give the branch a barrier of its own, at which the other threads never arrive.
    let text = "
        #include <metal_stdlib>
        using namespace metal;
        kernel void k(device uint* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
            threadgroup uint first;
            if (i == 0) first = out[0];
            threadgroup_barrier(mem_flags::mem_threadgroup);
            out[i] = first + i;
        }";
    let source = Source { name: "k.metal", text, include_directories: &[], only: None };
    let library = sim_ptx::build(&clang, source, &CompileOptions::default()).unwrap();
    assert_eq!(String::from_utf8_lossy(&library).matches("barrier.sync").count(), 1);
}

#[test]
fn a_source_with_an_error_is_told() {
    let clang = Clang::find().expect("these tests need clang");
    let text = "kernel void k(device float* x [[buffer(0)]]) { x[0] = nothing; }";
    let source = Source { name: "k.metal", text, include_directories: &[], only: None };
    let error = sim_ptx::build(&clang, source, &CompileOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("k.metal:1:55: error: use of undeclared identifier 'nothing'"),
        "{error}"
    );
}
