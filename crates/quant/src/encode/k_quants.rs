//! Blocks of 256 elements: scales by [search](super::search), then packed.
//!
//! Finite values are expected; a NaN among them makes the block's content unspecified.

use bytemuck::Zeroable;

use super::search::{Scaled, ScaledLessMin, Uniform};
use super::{largest, reciprocal};
use crate::{
    BlockQ2_K, BlockQ3_K, BlockQ4_K, BlockQ5_K, BlockQ6_K, BlockQ8_K, pack_scales_mins_k, pack_scales_q3_k,
};

/// Encodes one Q2_K block; `None` if a scale is too large for half precision.
pub fn encode_block_q2_k(values: &[f32; 256]) -> Option<BlockQ2_K> {
    let fit = ScaledLessMin::<16>::fit::<Uniform<0, 3>>(values, 15)?;
    let scales = std::array::from_fn(|j| fit.scales[j] | (fit.mins[j] << 4));
    let mut block = BlockQ2_K { d: fit.d, dmin: fit.dmin, scales, ..Zeroable::zeroed() };
    block.set_quants(&fit.quants);
    Some(block)
}

/// Encodes one Q3_K block; `None` if the scale is too large for half precision.
pub fn encode_block_q3_k(values: &[f32; 256]) -> Option<BlockQ3_K> {
    let fit = Scaled::<16>::fit::<Uniform<-4, 3>>(values, -32, 31)?;
    let mut block = BlockQ3_K { d: fit.d, scales: pack_scales_q3_k(&fit.scales), ..Zeroable::zeroed() };
    block.set_quants(&fit.quants);
    Some(block)
}

/// Encodes one Q4_K block; `None` if a scale is too large for half precision.
pub fn encode_block_q4_k(values: &[f32; 256]) -> Option<BlockQ4_K> {
    let fit = ScaledLessMin::<8>::fit::<Uniform<0, 15>>(values, 63)?;
    let scales = pack_scales_mins_k(&fit.scales, &fit.mins);
    let mut block = BlockQ4_K { d: fit.d, dmin: fit.dmin, scales, ..Zeroable::zeroed() };
    block.set_quants(&fit.quants);
    Some(block)
}

/// Encodes one Q5_K block; `None` if a scale is too large for half precision.
pub fn encode_block_q5_k(values: &[f32; 256]) -> Option<BlockQ5_K> {
    let fit = ScaledLessMin::<8>::fit::<Uniform<0, 31>>(values, 63)?;
    let scales = pack_scales_mins_k(&fit.scales, &fit.mins);
    let mut block = BlockQ5_K { d: fit.d, dmin: fit.dmin, scales, ..Zeroable::zeroed() };
    block.set_quants(&fit.quants);
    Some(block)
}

/// Encodes one Q6_K block; `None` if the scale is too large for half precision.
pub fn encode_block_q6_k(values: &[f32; 256]) -> Option<BlockQ6_K> {
    let fit = Scaled::<16>::fit::<Uniform<-32, 31>>(values, -128, 127)?;
    let mut block = BlockQ6_K { d: fit.d, scales: fit.scales, ..Zeroable::zeroed() };
    block.set_quants(&fit.quants);
    Some(block)
}

/// Encodes one Q8_K block: the largest magnitude is 127, halves are rounded away from zero.
pub fn encode_block_q8_k(values: &[f32; 256]) -> BlockQ8_K {
    let d = largest(values).1.abs() / 127.0;
    // Near the largest single-precision value, a quotient that was rounded up decodes to infinity.
    let d = if (d * 127.0).is_finite() { d } else { d.next_down() };
    let inverse = reciprocal(d);
    let qs = values.map(|value| (value * inverse).round() as i8);
    let sums = qs.as_chunks::<16>().0.iter().map(|run| run.iter().map(|&q| i16::from(q)).sum());
    let mut bsums = [0; 16];
    for (bsum, sum) in bsums.iter_mut().zip(sums) {
        *bsum = sum;
    }
    BlockQ8_K { d, qs, bsums }
}
