//! The CPU backend: every operation of the graph, with SIMD kernels and a persistent thread pool.
//!
//! Files mirror `graph::ops`: the operations of `graph/src/ops/norm.rs` are in `norm.rs` here, and so on. The kernels
//! that they call are in `simd`, one table of functions for each instruction set.
//!
//! The result for a sequence does not depend on the others in the batch, on how its prompt is cut into forwards, or
//! on the number of threads: the order of every sum is fixed (see `attention.rs` and `simd/scalar.rs`).
//!
//! This crate does not know tokens, text, files or models.
//!
//! ```
//! use cpu::{CpuBackend, CpuOptions};
//! use graph::Backend;
//!
//! let mut backend = CpuBackend::new(CpuOptions { threads: Some(2), ..CpuOptions::default() })?;
//! let buffer = backend.alloc_buffer(16)?;
//! backend.write_host(buffer, 4, &[1, 2, 3])?;
//! let mut bytes = [0; 3];
//! backend.read_host(buffer, 4, &mut bytes)?;
//! assert_eq!(bytes, [1, 2, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attention;
mod backend;
mod bandwidth;
mod buffers;
mod cache;
mod cores;
mod elementwise;
mod error;
mod exec;
mod experts;
mod fused;
mod matmul;
mod norm;
mod pack;
mod pack_cache;
mod pack_group;
mod pool;
mod quantize;
mod rope;
mod rows;
mod shape;
mod simd;
mod topk;
mod weights;

pub use backend::{Activations, CpuBackend, CpuOptions};
pub use bandwidth::read_bandwidth;
pub use cores::default_threads;
pub use error::CpuError;
pub use pack_cache::{PackCache, PackCacheError, checksum};
pub use pool::{Pool, PoolError};
pub use simd::SimdLevel;
