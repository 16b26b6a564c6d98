//! The reference table: portable code, and the definition of every sum's order.

use super::attention::{scores, weighted_sum};
use super::blocks::{Minimum, for_each_block, minimum};
use super::{DotTile, Kernels, Panel, SimdLevel};
use crate::pack::Layout;
use crate::quantize::QuantRow;
use quant::Format;
use std::ops::Range;

pub(crate) static KERNELS: Kernels = Kernels {
    level: SimdLevel::Scalar,
    packs: false,
    add,
    mul,
    scale,
    soft_cap,
    activation,
    gated,
    clamped_swiglu,
    rms_norm,
    softmax,
    exp_scores,
    axpby,
    rope_split,
    rope_interleaved,
    quantize,
    dot1,
    dot4,
    scores,
    weighted_sum,
    f16_to_f32,
    bf16_to_f32,
    f32_to_f16,
    f32_to_bf16,
    pack_group,
    dot_tile,
};

super::all_float_kernels! { [] }

super::float_kernels! {
    []
    activation(dst: *mut f32, a: *const f32, kind: graph::ops::Activation, n: usize);
    gated(dst: *mut f32, a: *const f32, b: *const f32, kind: graph::ops::Activation, n: usize);
    quantize(x: &[f32], to: crate::quantize::QuantRowMut<'_>);
    exp_scores(scores: &mut [f32]) -> (f32, f32);
    f16_to_f32(dst: &mut [f32], src: &[u8]);
    f32_to_f16(dst: &mut [u8], src: &[f32]);
}

/// # Safety
/// See [`super::float::dot`].
unsafe fn dot1(w: *const f32, x: [*const f32; 1], n: usize) -> [f32; 1] {
    // SAFETY: the caller's.
    unsafe { super::float::dot(w, x, n) }
}

/// # Safety
/// See [`super::float::dot`].
unsafe fn dot4(w: *const f32, x: [*const f32; 4], n: usize) -> [f32; 4] {
    // SAFETY: the caller's.
    unsafe { super::float::dot(w, x, n) }
}

/// The dot product of a row of quantised weights with a row of quantised activations.
///
/// One sum over the blocks in their order: first the scaled products (an exact integer of at most 2^24, times the
/// product of the two float factors), then the minimum times the sum of the activations.
pub(crate) fn dot_row(format: Format, weights: &[u8], x: QuantRow<'_>) -> f32 {
    let minimum = minimum(format);
    let mut sum = 0.0f32;
    for_each_block(format, weights, |b, block| {
        let quants = &x.q[32 * b..][..32];
        let mut products = 0i32;
        for half in 0..2 {
            let pairs = block.q[16 * half..][..16].iter().zip(&quants[16 * half..][..16]);
            products += block.s[half] * pairs.map(|(w, x)| i32::from(*w) * i32::from(*x)).sum::<i32>();
        }
        sum = (block.d * x.d[b]).mul_add(products as f32, sum);
        match minimum {
            Minimum::None => {}
            Minimum::Block => sum = (-(block.dm * block.m[0] as f32)).mul_add(x.s[b], sum),
            Minimum::Half => {
                for half in 0..2 {
                    // Kept with the opposite sign.
                    let [low, high] = [0, 1].map(|i| -i32::from(x.half_sums[4 * b + 2 * half + i]));
                    let total = x.d[b] * (low + high) as f32;
                    sum = (-(block.dm * block.m[half] as f32)).mul_add(total, sum);
                }
            }
        }
    });
    sum
}

/// Packs a group: see [`crate::pack_group::pack_group`].
pub(super) fn pack_group(format: Format, layout: Layout, cols: usize, rows: &[u8], group: &mut [u8]) {
    crate::pack_group::pack_group(format, layout, cols, rows, group);
}

/// Products of some rows with some tokens.
///
/// # Safety
/// `tile.out` is valid for the results of these rows and tokens, and nobody else accesses them meanwhile.
unsafe fn dot_tile(tile: &DotTile<'_>, rows: Range<usize>, tokens: Range<usize>, _: &mut Panel) {
    for row in rows {
        let weights = tile.row(row);
        for token in tokens.clone() {
            let y = dot_row(tile.format, weights, tile.activations.row(token));
            // SAFETY: the caller's.
            unsafe { *tile.out.row(token).wrapping_add(row) = y };
        }
    }
}
