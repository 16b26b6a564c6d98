//! Products with weights.

use super::args::kernel_args;
use super::{COMMON, FORMATS, Library};

/// SIMD-groups of a threadgroup of the matrix-vector kernels.
pub(crate) const MATVEC_SIMDGROUPS: usize = 2;
/// Weight rows of a SIMD-group for one token, and for several.
pub(crate) const MATVEC_ROWS: [usize; 2] = [4, 2];
/// Weight rows of a threadgroup's tile.
pub(crate) const GEMM_ROWS: usize = 64;
/// Tokens of a threadgroup's tile.
pub(crate) const GEMM_TOKENS: usize = 32;
/// Terms of the sums that a step adds.
pub(crate) const GEMM_STEP: usize = 32;
/// Threads of a threadgroup.
pub(crate) const GEMM_THREADS: usize = 128;

/// Sums of products by a SIMD-group.
pub(super) const MATVEC_SUMS: (&str, &str) = ("matvec.h", include_str!("../../kernels/matvec.h"));
/// The tile on the matrix units.
pub(super) const GEMM_TILE: (&str, &str) = ("gemm.h", include_str!("../../kernels/gemm.h"));

pub(crate) const MATVEC: Library = Library {
    name: "matvec",
    files: &[
        ("matvec_args.h", MatvecArgs::MSL),
        COMMON,
        FORMATS,
        MATVEC_SUMS,
        ("matvec.metal", include_str!("../../kernels/matvec.metal")),
    ],
    constants: &[
        ("MATVEC_SIMDGROUPS", MATVEC_SIMDGROUPS),
        ("MATVEC_ROWS_1", MATVEC_ROWS[0]),
        ("MATVEC_ROWS_N", MATVEC_ROWS[1]),
    ],
};

pub(crate) const GEMM: Library = Library {
    name: "gemm",
    files: &[
        ("gemm_args.h", GemmArgs::MSL),
        COMMON,
        FORMATS,
        GEMM_TILE,
        ("gemm.metal", include_str!("../../kernels/gemm.metal")),
    ],
    constants: &GEMM_CONSTANTS,
};

/// What the tile is compiled with.
pub(super) const GEMM_CONSTANTS: [(&str, usize); 4] = [
    ("GEMM_ROWS", GEMM_ROWS),
    ("GEMM_TOKENS", GEMM_TOKENS),
    ("GEMM_STEP", GEMM_STEP),
    ("GEMM_THREADS", GEMM_THREADS),
];

kernel_args! {
    struct MatvecArgs {
        row_bytes: u64,
        /// Elements from one row of the result to the next.
        y_stride: u64,
        cols: i32,
        rows0: i32,
        rows1: i32,
        rows2: i32,
        tokens: i32,
        /// The activation of the gate, or 0.
        gate: i32,
        has_bias: i32,
        reserved: i32,
    }
}

kernel_args! {
    struct GemmArgs {
        row_bytes: u64,
        y_stride: u64,
        cols: i32,
        rows: i32,
        tokens: i32,
        has_bias: i32,
    }
}
