//! Blocks of 32 elements whose scale is given by the extreme values.
//!
//! The quants are computed with the scale in single precision, before it is rounded to half precision for
//! storage: that is how the GGUF format's block description defines them. Finite values are expected; a NaN among
//! them makes the block's content unspecified.

use bytemuck::Zeroable;
use half::f16;

use super::{extremes, finite_half, largest, reciprocal};
use crate::{BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0};

/// Quants `-half..half` with the value of largest magnitude at `-half`, the end that has no positive partner.
fn around_zero(values: &[f32; 32], half: i8) -> Option<(f16, [i8; 32])> {
    let d = largest(values).1 / -f32::from(half);
    let inverse = reciprocal(d);
    let round_up = f32::from(half) + 0.5;
    // The conversion to integer truncates.
    let quants = values.map(|value| ((value * inverse + round_up) as i8).min(2 * half - 1) - half);
    Some((finite_half(d)?, quants))
}

/// Quants `0..=top` from the smallest value to the largest.
fn above_minimum(values: &[f32; 32], top: i8) -> Option<(f16, f16, [i8; 32])> {
    let (min, max) = extremes(values);
    let d = (max - min) / f32::from(top);
    let inverse = reciprocal(d);
    let quants = values.map(|value| (((value - min) * inverse + 0.5) as i8).min(top));
    Some((finite_half(d)?, finite_half(min)?, quants))
}

/// Encodes one Q4_0 block; `None` if the scale is too large for half precision.
pub fn encode_block_q4_0(values: &[f32; 32]) -> Option<BlockQ4_0> {
    let (d, quants) = around_zero(values, 8)?;
    let mut block = BlockQ4_0 { d, ..Zeroable::zeroed() };
    block.set_quants(&quants);
    Some(block)
}

/// Encodes one Q4_1 block; `None` if the scale or the minimum is too large for half precision.
pub fn encode_block_q4_1(values: &[f32; 32]) -> Option<BlockQ4_1> {
    let (d, m, quants) = above_minimum(values, 15)?;
    let mut block = BlockQ4_1 { d, m, ..Zeroable::zeroed() };
    block.set_quants(&quants);
    Some(block)
}

/// Encodes one Q5_0 block; `None` if the scale is too large for half precision.
pub fn encode_block_q5_0(values: &[f32; 32]) -> Option<BlockQ5_0> {
    let (d, quants) = around_zero(values, 16)?;
    let mut block = BlockQ5_0 { d, ..Zeroable::zeroed() };
    block.set_quants(&quants);
    Some(block)
}

/// Encodes one Q5_1 block; `None` if the scale or the minimum is too large for half precision.
pub fn encode_block_q5_1(values: &[f32; 32]) -> Option<BlockQ5_1> {
    let (d, m, quants) = above_minimum(values, 31)?;
    let mut block = BlockQ5_1 { d, m, ..Zeroable::zeroed() };
    block.set_quants(&quants);
    Some(block)
}

/// Encodes one Q8_0 block, rounding halves away from zero; `None` if the scale is too large for half precision.
pub fn encode_block_q8_0(values: &[f32; 32]) -> Option<BlockQ8_0> {
    let d = largest(values).1.abs() / 127.0;
    let inverse = reciprocal(d);
    let qs = values.map(|value| (value * inverse).round() as i8);
    Some(BlockQ8_0 { d: finite_half(d)?, qs })
}
