//! Encoding: single precision to blocks.
//!
//! The formats of 32 elements follow the formulas of the GGUF format's block description, so that every
//! implementation that does gives the same bytes. Formats for which it leaves the choice of the scales open are
//! encoded by a search for the least squared error ([`search`]). No weighting: in a matrix product the error of
//! a weight is multiplied by an activation, whose size does not depend on the weight's.

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::decode::{HALVES_RUN, check_lengths};
use crate::{Error, Format};

mod iq;
mod k_quants;
mod legacy;
mod mxfp4;
mod search;

pub use iq::{encode_block_iq4_nl, encode_block_iq4_xs};
pub use k_quants::{
    encode_block_q2_k, encode_block_q3_k, encode_block_q4_k, encode_block_q5_k, encode_block_q6_k,
    encode_block_q8_k,
};
pub use legacy::{
    encode_block_q4_0, encode_block_q4_1, encode_block_q5_0, encode_block_q5_1, encode_block_q8_0,
};
pub use mxfp4::encode_block_mxfp4;

/// Encodes one row, or any number of rows that follow each other: all of `src` into all of `dst`.
///
/// Values that are small beside the rest of their block, or too small for the format's scale, become zero.
///
/// # Errors
///
/// [`Error::PartialBlock`] if `src` is not a whole number of blocks, [`Error::ByteLength`] if `dst` is not the
/// bytes of that many elements, [`Error::NotFinite`] if a value is NaN or infinite, [`Error::OutOfRange`] if a
/// value (or the scale that it asks for) is larger than the format can hold. The content of `dst` is unspecified
/// after an error.
pub fn encode(format: Format, src: &[f32], dst: &mut [u8]) -> Result<(), Error> {
    check_lengths(format, src.len(), dst.len())?;
    if let Some(index) = src.iter().position(|value| !value.is_finite()) {
        return Err(Error::NotFinite { format, index, value: src[index] });
    }
    let encoded = match format {
        Format::F32 => {
            dst.copy_from_slice(bytemuck::cast_slice(src));
            Ok(())
        }
        Format::F16 => encode_halves(src, dst, f16::is_finite),
        Format::BF16 => encode_halves(src, dst, bf16::is_finite),
        Format::Q4_0 => encode_blocks(src, dst, encode_block_q4_0),
        Format::Q4_1 => encode_blocks(src, dst, encode_block_q4_1),
        Format::Q5_0 => encode_blocks(src, dst, encode_block_q5_0),
        Format::Q5_1 => encode_blocks(src, dst, encode_block_q5_1),
        Format::Q8_0 => encode_blocks(src, dst, encode_block_q8_0),
        Format::Q2_K => encode_blocks(src, dst, encode_block_q2_k),
        Format::Q3_K => encode_blocks(src, dst, encode_block_q3_k),
        Format::Q4_K => encode_blocks(src, dst, encode_block_q4_k),
        Format::Q5_K => encode_blocks(src, dst, encode_block_q5_k),
        Format::Q6_K => encode_blocks(src, dst, encode_block_q6_k),
        Format::Q8_K => encode_blocks(src, dst, |values| Some(encode_block_q8_k(values))),
        Format::IQ4_NL => encode_blocks(src, dst, encode_block_iq4_nl),
        Format::IQ4_XS => encode_blocks(src, dst, encode_block_iq4_xs),
        Format::MXFP4 => encode_blocks(src, dst, |values| Some(encode_block_mxfp4(values))),
    };
    encoded.map_err(|index| Error::OutOfRange { format, index, value: src[index] })
}

/// Encodes block after block. If one cannot be encoded, returns the index of its largest value.
fn encode_blocks<B: Pod, const N: usize>(
    src: &[f32],
    dst: &mut [u8],
    encode_block: impl Fn(&[f32; N]) -> Option<B>,
) -> Result<(), usize> {
    let (blocks, _) = src.as_chunks::<N>();
    for (i, (values, out)) in blocks.iter().zip(dst.chunks_exact_mut(size_of::<B>())).enumerate() {
        match encode_block(values) {
            Some(block) => out.copy_from_slice(bytemuck::bytes_of(&block)),
            None => return Err(i * N + largest(values).0),
        }
    }
    Ok(())
}

/// Encodes half precision or bfloat16 (rounding to nearest, ties to even), a run at a time, so that the hardware's
/// conversion of several values is used where there is one. If a value is too large, returns its index.
fn encode_halves<H: Pod>(src: &[f32], dst: &mut [u8], is_finite: fn(H) -> bool) -> Result<(), usize>
where
    [H]: HalfFloatSliceExt,
{
    let runs = src.chunks(HALVES_RUN).zip(dst.chunks_mut(HALVES_RUN * 2));
    for (i, (values, out)) in runs.enumerate() {
        let mut run = [H::zeroed(); HALVES_RUN];
        let run = &mut run[..values.len()];
        run.convert_from_f32_slice(values);
        if let Some(j) = run.iter().position(|&half| !is_finite(half)) {
            return Err(i * HALVES_RUN + j);
        }
        out.copy_from_slice(bytemuck::cast_slice(run));
    }
    Ok(())
}

/// The value of largest magnitude (the first of several) and its index; `(0, 0.0)` if all are zero.
fn largest(values: &[f32]) -> (usize, f32) {
    let mut found = (0, values.first().copied().unwrap_or(0.0));
    for (i, &value) in values.iter().enumerate() {
        if value.abs() > found.1.abs() {
            found = (i, value);
        }
    }
    found
}

/// The smallest and the largest value.
fn extremes(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &v| (low.min(v), high.max(v)))
}

/// The reciprocal of a scale. 0 for a scale of 0, and for one so small that its reciprocal overflows: both are 0
/// once stored, and then any quants will do.
fn reciprocal(scale: f32) -> f32 {
    let reciprocal = 1.0 / scale;
    if reciprocal.is_finite() { reciprocal } else { 0.0 }
}

/// Rounds to half precision (to nearest, ties to even); `None` if the value is too large.
fn finite_half(value: f32) -> Option<f16> {
    Some(f16::from_f32(value)).filter(|half| half.is_finite())
}
