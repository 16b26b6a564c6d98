//! Blocks of 32 elements with one scale, and one minimum for some.

use crate::{BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0};

/// `d * q`.
fn scaled(d: f32, quants: &[i8; 32], out: &mut [f32; 32]) {
    for (out, &q) in out.iter_mut().zip(quants) {
        *out = d * f32::from(q);
    }
}

/// `d * q + m`.
fn scaled_from(d: f32, m: f32, quants: &[i8; 32], out: &mut [f32; 32]) {
    for (out, &q) in out.iter_mut().zip(quants) {
        *out = d * f32::from(q) + m;
    }
}

/// Decodes one Q4_0 block: `d * q`, `q` in -8..=7.
pub fn decode_block_q4_0(block: &BlockQ4_0, out: &mut [f32; 32]) {
    scaled(block.d.to_f32(), &block.quants(), out);
}

/// Decodes one Q4_1 block: `d * q + m`, `q` in 0..=15.
pub fn decode_block_q4_1(block: &BlockQ4_1, out: &mut [f32; 32]) {
    scaled_from(block.d.to_f32(), block.m.to_f32(), &block.quants(), out);
}

/// Decodes one Q5_0 block: `d * q`, `q` in -16..=15.
pub fn decode_block_q5_0(block: &BlockQ5_0, out: &mut [f32; 32]) {
    scaled(block.d.to_f32(), &block.quants(), out);
}

/// Decodes one Q5_1 block: `d * q + m`, `q` in 0..=31.
pub fn decode_block_q5_1(block: &BlockQ5_1, out: &mut [f32; 32]) {
    scaled_from(block.d.to_f32(), block.m.to_f32(), &block.quants(), out);
}

/// Decodes one Q8_0 block: `d * q`, `q` in -128..=127.
pub fn decode_block_q8_0(block: &BlockQ8_0, out: &mut [f32; 32]) {
    scaled(block.d.to_f32(), &block.qs, out);
}
