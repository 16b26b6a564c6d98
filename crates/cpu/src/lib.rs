//! The CPU backend: SIMD kernels and a persistent thread pool.
