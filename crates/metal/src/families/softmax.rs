//! Softmax of rows.

use super::args::kernel_args;
use super::{COMMON, Library};

pub(crate) const LIBRARY: Library = Library {
    name: "softmax",
    files: &[
        ("row_args.h", RowArgs::MSL),
        COMMON,
        ("softmax.metal", include_str!("../../kernels/softmax.metal")),
    ],
    constants: &[],
};

kernel_args! {
    struct RowArgs {
        cols: i32,
        scale: f32,
    }
}
