//! x86-64 with AVX2, FMA and F16C.
//!
//! The float kernels are the portable bodies compiled with these instructions; integer dot products, half float
//! conversion and the inner loops of attention are written with intrinsics.

mod attention;
mod dot;
mod float;
mod math;
pub(super) mod unpack;

pub(crate) use dot::PanelMemory;

use super::{Kernels, SimdLevel};
use crate::pack::Layout;
use quant::Format;

/// The table. To be used only where [`SimdLevel::Avx2`] is available.
pub(crate) static KERNELS: Kernels = Kernels {
    level: SimdLevel::Avx2,
    packs: true,
    add: float::add,
    mul: float::mul,
    scale: float::scale,
    soft_cap: float::soft_cap,
    activation: float::activation,
    gated: float::gated,
    clamped_swiglu: float::clamped_swiglu,
    rms_norm: float::rms_norm,
    softmax: float::softmax,
    exp_scores: attention::exp_scores,
    axpby: float::axpby,
    rope_split: float::rope_split,
    rope_interleaved: float::rope_interleaved,
    quantize: float::quantize,
    dot1: float::dot1,
    dot4: float::dot4,
    scores: attention::scores,
    weighted_sum: attention::weighted_sum,
    f16_to_f32: float::f16_to_f32,
    bf16_to_f32: float::bf16_to_f32,
    f32_to_f16: float::f32_to_f16,
    f32_to_bf16: float::f32_to_bf16,
    pack_group,
    dot_tile: dot::dot_tile,
};

/// See [`crate::pack_group::pack_group`].
///
/// # Safety
/// None but the instructions.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn pack_group(format: Format, layout: Layout, cols: usize, rows: &[u8], group: &mut [u8]) {
    crate::pack_group::pack_group(format, layout, cols, rows, group);
}
