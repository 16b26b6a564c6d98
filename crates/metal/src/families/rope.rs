//! Rotary position embedding.

use super::args::kernel_args;
use super::{COMMON, Library};

/// The angles.
pub(crate) const ROPE: (&str, &str) = ("rope.h", include_str!("../../kernels/rope.h"));

pub(crate) const LIBRARY: Library = Library {
    name: "rope",
    files: &[
        ("rope_args.h", RopeArgs::MSL),
        COMMON,
        ROPE,
        ("rope.metal", include_str!("../../kernels/rope.metal")),
    ],
    constants: &[],
};

kernel_args! {
    struct RopeArgs {
        heads: i32,
        head_dim: i32,
        /// Pairs of a head that turn.
        pairs: i32,
        /// Whether pairs are neighbours.
        interleaved: i32,
        magnitude: f32,
    }
}
