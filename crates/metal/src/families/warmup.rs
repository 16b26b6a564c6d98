//! The first touch of mapped weights.

use super::Library;

/// Bytes between reads: the page of an Apple GPU.
pub(crate) const STRIDE: usize = 16 << 10;

pub(crate) const LIBRARY: Library = Library {
    name: "warmup",
    files: &[("warmup.metal", include_str!("../../kernels/warmup.metal"))],
    constants: &[("WARMUP_STRIDE", STRIDE)],
};
