//! Every error says what was found and what was expected.

use cuda::CudaError;

#[test]
fn messages() {
    let driver = CudaError::Driver { call: "cuInit", message: "broken".into() };
    let environment = CudaError::Environment {
        variable: "SMELT_CUDA_GRAPH",
        expected: "a whole number",
        found: "yes".into(),
    };
    let old = CudaError::OldDevice { name: "GTX 970".into(), found: (5, 2), expected: (8, 0) };
    for (error, expected) in [
        (CudaError::NoDriver, "no NVIDIA driver: its library (libcuda) cannot be loaded"),
        (
            CudaError::NoDevice,
            "the NVIDIA driver finds no GPU (CUDA_VISIBLE_DEVICES can hide those that there are)",
        ),
        (
            CudaError::NoSuchDevice { ordinal: 2, count: 2 },
            "no GPU has the number 2: the NVIDIA driver shows 2, counted from 0 (CUDA_VISIBLE_DEVICES can hide some)",
        ),
        (
            CudaError::OldDriver { found: 11_080, expected: 12_000 },
            "the NVIDIA driver is for CUDA 11.8, needed is one for CUDA 12.0 or later",
        ),
        (
            CudaError::MissingFunction { function: "cuInit", expected: 12_000 },
            "the NVIDIA driver's library (libcuda) has no function cuInit: needed is a driver for CUDA 12.0 or later",
        ),
        (old, "GTX 970 has compute capability 5.2, needed is 8.0 or later"),
        (
            CudaError::NoCompiler { message: "none".into() },
            "the CUDA run-time compiler (libnvrtc) cannot be loaded: none",
        ),
        (
            CudaError::NoNccl { message: "none".into() },
            "NCCL (libnccl), by which GPUs that share every layer exchange values, cannot be loaded: none",
        ),
        (
            CudaError::Compile { kernel: "gemm.cu".into(), log: "line 3".into() },
            "kernel gemm.cu does not compile: line 3",
        ),
        (driver, "cuInit: broken"),
        (CudaError::OutOfMemory { bytes: 7, free: 5 }, "no 7 bytes of GPU memory, 5 are free"),
        (CudaError::Deadline { seconds: 120 }, "the GPU did not finish within 120 seconds"),
        (CudaError::Partner, "it failed, so that this GPU does not wait for it in an exchange of values"),
        (environment, "SMELT_CUDA_GRAPH: expected a whole number, found 'yes'"),
    ] {
        assert_eq!(error.to_string(), expected);
    }
}
