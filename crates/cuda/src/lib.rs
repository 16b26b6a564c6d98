//! The CUDA backend: the operations of the graph on an NVIDIA GPU.
//!
//! Nothing of CUDA is needed to build: the driver and the compiler NVRTC are loaded when a [`CudaBackend`] is made, and
//! what is missing is told by its error. The kernels (`kernels/*.cu`) are compiled for the GPU that is there and kept in
//! the user's cache folder. Nodes are recorded, made into launches together at the next synchronisation, and from the
//! second run on started as one CUDA graph.
//!
//! `ops` has a file per family of operations, as `graph::ops` does, that says which kernels they are made of.
//!
//! This crate does not know tokens, text, files or models.
//!
//! Environment: `SMELT_CUDA_DEVICE` (number of the GPU), `SMELT_CUDA_TIMEOUT` (seconds until a wait is given up),
//! `SMELT_CUDA_GRAPH=0` (launch one by one), `SMELT_CUDA_CACHE` (folder of compiled kernels; empty: none),
//! `SMELT_NVRTC` (folder of the compiler's library), `SMELT_NCCL` (folder or file of the library by which GPUs exchange
//! values), `SMELT_CUDA_NCCL=0` (the host exchanges them), `SMELT_CUDA_KERNELS` (folder of kernels to compile instead of those
//! in the program, for work on them).

mod backend;
mod buffers;
mod checks;
mod compiler;
mod driver;
mod error;
mod inputs;
mod kernels;
mod largest;
mod nccl;
mod ops;
mod program;
mod scratch;
mod step;
mod symbols;
mod tiled;
mod weights;

pub use backend::CudaBackend;
pub use backend::connect::connect;
pub use error::CudaError;
pub use kernels::compile_all;
