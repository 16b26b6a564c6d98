//! The largest elements of rows.

use super::args::kernel_args;
use super::{COMMON, Library};

/// The widest row that one SIMD-group keeps in its registers.
pub(crate) const TOPK_NARROW: usize = 512;
/// Most choices of a router: a lane each.
pub(crate) const ROUTER_MOST: usize = 32;
/// Rows of a threadgroup, or chunks of a row, a SIMD-group each.
pub(crate) const TOPK_ROWS: usize = 4;
/// Elements among which a SIMD-group finds the largest.
pub(crate) const LARGEST_CHUNK: usize = 256;

pub(crate) const LIBRARY: Library = Library {
    name: "topk",
    files: &[
        ("topk_args.h", TopKArgs::MSL),
        ("router_args.h", RouterArgs::MSL),
        ("largest_args.h", LargestArgs::MSL),
        COMMON,
        ("topk.metal", include_str!("../../kernels/topk.metal")),
    ],
    constants: &[("TOPK_NARROW", TOPK_NARROW), ("TOPK_ROWS", TOPK_ROWS), ("LARGEST_CHUNK", LARGEST_CHUNK)],
};

kernel_args! {
    struct TopKArgs {
        rows: i32,
        cols: i32,
        /// Columns of the result.
        k: i32,
    }
}

kernel_args! {
    struct RouterArgs {
        rows: i32,
        cols: i32,
        /// Choices.
        k: i32,
        /// Whether the softmax is of all elements.
        of_all: i32,
        /// What scores are multiplied with.
        scale: f32,
    }
}

kernel_args! {
    struct LargestArgs {
        cols: i32,
        /// Chunks of a row.
        chunks: i32,
    }
}
