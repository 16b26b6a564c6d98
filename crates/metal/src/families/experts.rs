//! Products with the matrices of chosen experts.

use super::args::kernel_args;
use super::matmul::{GEMM_CONSTANTS, GEMM_TILE, GEMM_TOKENS, MATVEC_SUMS};
use super::{COMMON, FORMATS, Library};

/// SIMD-groups of a threadgroup of the matrix-vector kernel.
pub(crate) const EXPERT_SIMDGROUPS: usize = 2;
/// Weight rows of a SIMD-group.
pub(crate) const EXPERT_ROWS: usize = 4;
/// Most experts that choices can be grouped by: a counter each in threadgroup memory.
pub(crate) const ROUTE_MOST_EXPERTS: usize = 512;

pub(crate) const LIBRARY: Library = Library {
    name: "experts",
    files: &[
        ("expert_args.h", ExpertArgs::MSL),
        ("combine_args.h", CombineArgs::MSL),
        COMMON,
        FORMATS,
        MATVEC_SUMS,
        ("experts.metal", include_str!("../../kernels/experts.metal")),
    ],
    constants: &[
        ("EXPERT_SIMDGROUPS", EXPERT_SIMDGROUPS),
        ("EXPERT_ROWS", EXPERT_ROWS),
        ("ROUTE_MOST_EXPERTS", ROUTE_MOST_EXPERTS),
        ("GEMM_TOKENS", GEMM_TOKENS),
    ],
};

pub(crate) const GEMM: Library = Library {
    name: "experts_gemm",
    files: &[
        ("expert_args.h", ExpertArgs::MSL),
        COMMON,
        FORMATS,
        GEMM_TILE,
        ("experts_gemm.metal", include_str!("../../kernels/experts_gemm.metal")),
    ],
    constants: &GEMM_CONSTANTS,
};

kernel_args! {
    struct ExpertArgs {
        row_bytes: u64,
        cols: i32,
        /// Rows of an expert's matrix.
        rows: i32,
        experts: i32,
        /// Rows of the result.
        choices: i32,
        /// Choices that share a row of activations.
        choices_per_row: i32,
        has_bias: i32,
        /// Tiles that there may be.
        tiles: i32,
        /// Number of the gate, or 0.
        gate: i32,
        alpha: f32,
        limit: f32,
    }
}

kernel_args! {
    struct CombineArgs {
        cols: i32,
        /// Choices of a token.
        used: i32,
    }
}
