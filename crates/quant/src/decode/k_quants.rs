//! Blocks of 256 elements with a scale (and minimum) for each sub-block, themselves scaled by the block's.
//!
//! The product of the two scales is rounded to single precision before it multiplies a quant.

use crate::{
    BlockQ2_K, BlockQ3_K, BlockQ4_K, BlockQ5_K, BlockQ6_K, BlockQ8_K, unpack_scales_mins_k,
    unpack_scales_q3_k,
};

/// Sub-blocks of `SUB` elements: `(d * scale) * q`.
fn scaled<const SUB: usize>(d: f32, scales: &[i8], quants: &[i8; 256], out: &mut [f32; 256]) {
    let sub_blocks = out.as_chunks_mut::<SUB>().0.iter_mut().zip(quants.as_chunks::<SUB>().0);
    for ((out, quants), &scale) in sub_blocks.zip(scales) {
        let scale = d * f32::from(scale);
        for (out, &q) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(q);
        }
    }
}

/// Sub-blocks of `SUB` elements: `(d * scale) * q - (dmin * min)`. `d` and `dmin` are given as a pair, and so are
/// each sub-block's scale and minimum.
fn scaled_less_min<const SUB: usize>(
    (d, dmin): (f32, f32),
    scales_mins: impl Iterator<Item = (u8, u8)>,
    quants: &[i8; 256],
    out: &mut [f32; 256],
) {
    let sub_blocks = out.as_chunks_mut::<SUB>().0.iter_mut().zip(quants.as_chunks::<SUB>().0);
    for ((out, quants), (scale, min)) in sub_blocks.zip(scales_mins) {
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (out, &q) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(q) - min;
        }
    }
}

/// Decodes one Q2_K block: `d * scale * q - dmin * min`, `q` in 0..=3, sub-blocks of 16.
pub fn decode_block_q2_k(block: &BlockQ2_K, out: &mut [f32; 256]) {
    let scales_mins = block.scales.iter().map(|&packed| (packed & 0x0f, packed >> 4));
    scaled_less_min::<16>((block.d.to_f32(), block.dmin.to_f32()), scales_mins, &block.quants(), out);
}

/// Decodes one Q3_K block: `d * scale * q`, `q` in -4..=3, sub-blocks of 16.
pub fn decode_block_q3_k(block: &BlockQ3_K, out: &mut [f32; 256]) {
    scaled::<16>(block.d.to_f32(), &unpack_scales_q3_k(&block.scales), &block.quants(), out);
}

/// Decodes one Q4_K block: `d * scale * q - dmin * min`, `q` in 0..=15, sub-blocks of 32.
pub fn decode_block_q4_k(block: &BlockQ4_K, out: &mut [f32; 256]) {
    let (scales, mins) = unpack_scales_mins_k(&block.scales);
    let scales_mins = scales.into_iter().zip(mins);
    scaled_less_min::<32>((block.d.to_f32(), block.dmin.to_f32()), scales_mins, &block.quants(), out);
}

/// Decodes one Q5_K block: `d * scale * q - dmin * min`, `q` in 0..=31, sub-blocks of 32.
pub fn decode_block_q5_k(block: &BlockQ5_K, out: &mut [f32; 256]) {
    let (scales, mins) = unpack_scales_mins_k(&block.scales);
    let scales_mins = scales.into_iter().zip(mins);
    scaled_less_min::<32>((block.d.to_f32(), block.dmin.to_f32()), scales_mins, &block.quants(), out);
}

/// Decodes one Q6_K block: `d * scale * q`, `q` in -32..=31, sub-blocks of 16.
pub fn decode_block_q6_k(block: &BlockQ6_K, out: &mut [f32; 256]) {
    scaled::<16>(block.d.to_f32(), &block.scales, &block.quants(), out);
}

/// Decodes one Q8_K block: `d * q`, `q` in -128..=127.
pub fn decode_block_q8_k(block: &BlockQ8_K, out: &mut [f32; 256]) {
    for (out, &q) in out.iter_mut().zip(&block.qs) {
        *out = block.d * f32::from(q);
    }
}
