//! Element-by-element operations.

use super::args::kernel_args;
use super::{COMMON, Library};

pub(crate) const UNARY_SCALE: i32 = 0;
pub(crate) const UNARY_ACTIVATION: i32 = 1;
pub(crate) const UNARY_SOFT_CAP: i32 = 2;
pub(crate) const BINARY_ADD: i32 = 0;
pub(crate) const BINARY_MUL: i32 = 1;
pub(crate) const BINARY_GATED: i32 = 2;

pub(crate) const LIBRARY: Library = Library {
    name: "elementwise",
    files: &[
        ("elementwise_args.h", ElementwiseArgs::MSL),
        COMMON,
        ("elementwise.metal", include_str!("../../kernels/elementwise.metal")),
    ],
    constants: &[
        ("UNARY_SCALE", UNARY_SCALE as usize),
        ("UNARY_ACTIVATION", UNARY_ACTIVATION as usize),
        ("UNARY_SOFT_CAP", UNARY_SOFT_CAP as usize),
        ("BINARY_ADD", BINARY_ADD as usize),
        ("BINARY_MUL", BINARY_MUL as usize),
        ("BINARY_GATED", BINARY_GATED as usize),
    ],
};

kernel_args! {
    struct ElementwiseArgs {
        elements: u64,
        /// Elements of the second operand, which is repeated.
        period: u64,
        factor: f32,
        /// Of the clamped gate.
        limit: f32,
    }
}
