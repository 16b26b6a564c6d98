//! The errors of this crate.

use std::fmt;

/// Why there is no CUDA backend, or why it stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaError {
    /// The driver's library (`libcuda`, `nvcuda`) cannot be loaded.
    NoDriver,
    /// The driver is there, and no GPU.
    NoDevice,
    /// There are fewer GPUs.
    NoSuchDevice {
        /// The number asked for, from 0 on.
        ordinal: usize,
        /// GPUs that the driver shows.
        count: usize,
    },
    /// The driver is older than what is needed.
    OldDriver {
        /// Its version, as `major * 1000 + minor * 10`.
        found: i32,
        /// The oldest that works.
        expected: i32,
    },
    /// The driver lacks a function.
    MissingFunction {
        /// Its name.
        function: &'static str,
        /// The oldest driver that has all of them, as `major * 1000 + minor * 10`.
        expected: i32,
    },
    /// The GPU is older than what the kernels are written for.
    OldDevice {
        /// The GPU's name.
        name: String,
        /// Its compute capability.
        found: (i32, i32),
        /// The oldest that works.
        expected: (i32, i32),
    },
    /// The compiler's library (`libnvrtc`) cannot be loaded.
    NoCompiler {
        /// Where else it was looked for.
        message: String,
    },
    /// The library by which GPUs exchange values (`libnccl`) cannot be loaded.
    NoNccl {
        /// Where it was looked for, or what is wrong with it.
        message: String,
    },
    /// A kernel was not compiled.
    Compile {
        /// The kernel.
        kernel: String,
        /// What the compiler said.
        log: String,
    },
    /// A call of the driver failed.
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's text.
        message: String,
    },
    /// Memory for something could not be had.
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that are free.
        free: usize,
    },
    /// The device did not finish before the deadline.
    Deadline {
        /// Seconds waited.
        seconds: u64,
    },
    /// Another GPU that shares every layer failed, or did not come to an exchange.
    Partner,
    /// A variable of the environment means nothing.
    Environment {
        /// Its name.
        variable: &'static str,
        /// What it can be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
        match self {
            CudaError::NoDriver => f.write_str("no NVIDIA driver: its library (libcuda) cannot be loaded"),
            CudaError::NoDevice => f.write_str(
                "the NVIDIA driver finds no GPU (CUDA_VISIBLE_DEVICES can hide those that there are)",
            ),
            CudaError::NoSuchDevice { ordinal, count } => write!(
                f,
                "no GPU has the number {ordinal}: the NVIDIA driver shows {count}, counted from 0 \
                 (CUDA_VISIBLE_DEVICES can hide some)"
            ),
            CudaError::OldDriver { found, expected } => write!(
                f,
                "the NVIDIA driver is for CUDA {}, needed is one for CUDA {} or later",
                version(*found),
                version(*expected)
            ),
            CudaError::MissingFunction { function, expected } => write!(
                f,
                "the NVIDIA driver's library (libcuda) has no function {function}: needed is a driver for CUDA {} or later",
                version(*expected)
            ),
            CudaError::OldDevice { name, found, expected } => write!(
                f,
                "{name} has compute capability {}.{}, needed is {}.{} or later",
                found.0, found.1, expected.0, expected.1
            ),
            CudaError::NoCompiler { message } => {
                write!(f, "the CUDA run-time compiler (libnvrtc) cannot be loaded: {message}")
            }
            CudaError::NoNccl { message } => write!(
                f,
                "NCCL (libnccl), by which GPUs that share every layer exchange values, cannot be loaded: {message}"
            ),
            CudaError::Compile { kernel, log } => write!(f, "kernel {kernel} does not compile: {log}"),
            CudaError::Driver { call, message } => write!(f, "{call}: {message}"),
            CudaError::OutOfMemory { bytes, free } => {
                write!(f, "no {bytes} bytes of GPU memory, {free} are free")
            }
            CudaError::Deadline { seconds } => write!(f, "the GPU did not finish within {seconds} seconds"),
            CudaError::Partner => {
                f.write_str("it failed, so that this GPU does not wait for it in an exchange of values")
            }
            CudaError::Environment { variable, expected, found } => {
                write!(f, "{variable}: expected {expected}, found '{found}'")
            }
        }
    }
}

impl std::error::Error for CudaError {}
