//! The largest elements of rows.

use super::args::kernel_args;
use super::{COMMON, Library};

/// The widest row that one SIMD-group keeps in its registers.
pub(crate) const TOPK_NARROW: usize = 512;
/// Rows of a threadgroup, a SIMD-group each.
pub(crate) const TOPK_ROWS: usize = 4;

pub(crate) const LIBRARY: Library = Library {
    name: "topk",
    files: &[
        ("topk_args.h", TopKArgs::MSL),
        COMMON,
        ("topk.metal", include_str!("../../kernels/topk.metal")),
    ],
    constants: &[("TOPK_NARROW", TOPK_NARROW), ("TOPK_ROWS", TOPK_ROWS)],
};

kernel_args! {
    struct TopKArgs {
        rows: i32,
        cols: i32,
        /// Columns of the result.
        k: i32,
    }
}
