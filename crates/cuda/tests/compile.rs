//! Every kernel compiles, on a machine without a GPU too: `scripts/test.sh` takes the compiler from the Python package
//! index and names its folder in `SMELT_NVRTC`.

use cuda::CudaError;

#[test]
fn every_kernel_compiles() {
    match cuda::compile_all("sm_90") {
        Ok(count) => assert!(count > 50, "{count} sources"),
        // Where there is no compiler, scripts/test.sh says in its summary that this was not run.
        Err(CudaError::NoCompiler { message }) if std::env::var_os("SMELT_NVRTC").is_none() => {
            eprintln!("NOT RUN: {message}");
        }
        Err(error) => panic!("{error}"),
    }
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
