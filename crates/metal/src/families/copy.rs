//! Copies between strided matrices.

use super::args::kernel_args;
use super::{COMMON, Library};

pub(crate) const LIBRARY: Library = Library {
    name: "copy",
    files: &[
        ("copy_args.h", CopyArgs::MSL),
        COMMON,
        ("copy.metal", include_str!("../../kernels/copy.metal")),
    ],
    constants: &[],
};

kernel_args! {
    /// Distances in elements.
    struct CopyArgs {
        from_first: u64,
        from_plane: u64,
        from_row: u64,
        to_plane: u64,
        to_row: u64,
    }
}
