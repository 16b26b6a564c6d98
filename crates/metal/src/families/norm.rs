//! Normalisations of rows.

use super::args::kernel_args;
use super::{COMMON, Library};

pub(crate) const LIBRARY: Library = Library {
    name: "norm",
    files: &[
        ("norm_args.h", NormArgs::MSL),
        COMMON,
        ("norm.metal", include_str!("../../kernels/norm.metal")),
    ],
    constants: &[],
};

kernel_args! {
    struct NormArgs {
        rows: i32,
        cols: i32,
        /// Of the norm before the residual is added.
        epsilon1: f32,
        /// Of the norm after.
        epsilon2: f32,
    }
}
