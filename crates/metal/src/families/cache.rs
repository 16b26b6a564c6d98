//! Writing to the KV cache.

use super::args::kernel_args;
use super::rope::ROPE;
use super::{COMMON, FORMATS, Library};

/// The element types of the cache.
pub(crate) const CACHE: (&str, &str) = ("cache.h", include_str!("../../kernels/cache.h"));

pub(crate) const LIBRARY: Library = Library {
    name: "cache",
    files: &[
        ("kv_store_args.h", KvStoreArgs::MSL),
        ("qkv_args.h", QkvArgs::MSL),
        COMMON,
        FORMATS,
        ROPE,
        CACHE,
        ("cache.metal", include_str!("../../kernels/cache.metal")),
    ],
    constants: &[],
};

kernel_args! {
    struct KvStoreArgs {
        key_row_bytes: u64,
        value_row_bytes: u64,
        key_cols: i32,
        value_cols: i32,
        cache_rows: i32,
        reserved: i32,
    }
}

kernel_args! {
    struct QkvArgs {
        key_row_bytes: u64,
        value_row_bytes: u64,
        query_heads: i32,
        kv_heads: i32,
        head_dim: i32,
        value_dim: i32,
        cache_rows: i32,
        /// Floats of a SIMD-group's threadgroup memory.
        scratch_floats: i32,
        pairs: i32,
        interleaved: i32,
        magnitude: f32,
        epsilon: f32,
        has_norm: i32,
        has_bias: i32,
    }
}
