//! Every kernel compiles, on a machine without a GPU too: `scripts/test.sh` takes the compiler from the Python package
//! index and names its folder in `SMELT_NVRTC`.

#[test]
#[ignore = "needs NVRTC: scripts/test.sh fetches it"]
fn every_kernel_compiles() {
    let count = cuda::compile_all("sm_90").unwrap_or_else(|error| panic!("{error}"));
    assert!(count > 50, "{count} sources");
}

#[test]
fn without_a_gpu_the_error_says_what_is_missing() {
    // On a machine with a GPU there is a backend; whatever the machine, nothing panics.
    match cuda::CudaBackend::new() {
        Ok(backend) => {
            assert!(backend.description().contains("compute capability"), "{}", backend.description())
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
