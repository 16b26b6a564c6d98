//! Attention over the paged cache.

use super::args::kernel_args;
use super::cache::CACHE;
use super::{COMMON, FORMATS, Library};

/// The widest head of the tier that is always valid.
pub(crate) const CLASSIC_MOST_DIM: usize = 512;
/// SIMD-groups of a threadgroup of the one-pass kernel, each with eight keys at a time.
pub(crate) const FLASH_SIMDGROUPS: usize = 4;
/// SIMD-groups of a threadgroup of the tiled kernel.
pub(crate) const PREFILL_SIMDGROUPS: usize = 4;

const CONSTANTS: [(&str, usize); 3] = [
    ("CLASSIC_MOST_DIM", CLASSIC_MOST_DIM),
    ("FLASH_SIMDGROUPS", FLASH_SIMDGROUPS),
    ("PREFILL_SIMDGROUPS", PREFILL_SIMDGROUPS),
];

const ATTENTION: (&str, &str) = ("attention.h", include_str!("../../kernels/attention.h"));

pub(crate) const DECODE: Library = Library {
    name: "attention_decode",
    files: &[
        ("attention_args.h", AttentionArgs::MSL),
        COMMON,
        FORMATS,
        CACHE,
        ATTENTION,
        ("attention_decode.metal", include_str!("../../kernels/attention_decode.metal")),
    ],
    constants: &CONSTANTS,
};

pub(crate) const PREFILL: Library = Library {
    name: "attention_prefill",
    files: &[
        ("attention_args.h", AttentionArgs::MSL),
        COMMON,
        FORMATS,
        CACHE,
        ATTENTION,
        ("attention_prefill.metal", include_str!("../../kernels/attention_prefill.metal")),
    ],
    constants: &CONSTANTS,
};

kernel_args! {
    struct AttentionArgs {
        key_row_bytes: u64,
        value_row_bytes: u64,
        heads: i32,
        kv_heads: i32,
        head_dim: i32,
        value_dim: i32,
        sequences: i32,
        max_pages: i32,
        page_len: i32,
        /// The logarithm of the page length, or -1.
        page_shift: i32,
        cache_rows: i32,
        window: i32,
        splits: i32,
        has_sinks: i32,
        /// The first token or tile of this dispatch, where those of a node are several.
        first: i32,
        reserved: i32,
        scale: f32,
        /// 0 for none.
        soft_cap: f32,
    }
}
