//! Exact reference decoding: blocks to single precision.
//!
//! The formulas and the order of their operations are those of the GGUF format's block description, without
//! fused multiply-add, so that every implementation that follows it gives the same bits. NaN and infinite scales
//! decode to what the formula gives (NaN or infinity; which NaN is unspecified); no bytes make a decoder panic.

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::{Error, Format};

mod iq;
mod k_quants;
mod legacy;
mod mxfp4;

pub use iq::{decode_block_iq4_nl, decode_block_iq4_xs};
pub use k_quants::{
    decode_block_q2_k, decode_block_q3_k, decode_block_q4_k, decode_block_q5_k, decode_block_q6_k,
    decode_block_q8_k,
};
pub use legacy::{
    decode_block_q4_0, decode_block_q4_1, decode_block_q5_0, decode_block_q5_1, decode_block_q8_0,
};
pub use mxfp4::decode_block_mxfp4;

/// Values of two bytes that are converted at a time.
pub(crate) const HALVES_RUN: usize = 64;

/// Decodes one row, or any number of rows that follow each other: `dst.len()` elements from all of `src`, which
/// may start at any address.
///
/// # Errors
///
/// [`Error::PartialBlock`] if `dst` is not a whole number of blocks, [`Error::ByteLength`] if `src` is not the
/// bytes of that many elements.
pub fn decode(format: Format, src: &[u8], dst: &mut [f32]) -> Result<(), Error> {
    check_lengths(format, dst.len(), src.len())?;
    match format {
        Format::F32 => bytemuck::cast_slice_mut::<f32, u8>(dst).copy_from_slice(src),
        Format::F16 => decode_halves::<f16>(src, dst),
        Format::BF16 => decode_halves::<bf16>(src, dst),
        Format::Q4_0 => decode_blocks(src, dst, decode_block_q4_0),
        Format::Q4_1 => decode_blocks(src, dst, decode_block_q4_1),
        Format::Q5_0 => decode_blocks(src, dst, decode_block_q5_0),
        Format::Q5_1 => decode_blocks(src, dst, decode_block_q5_1),
        Format::Q8_0 => decode_blocks(src, dst, decode_block_q8_0),
        Format::Q2_K => decode_blocks(src, dst, decode_block_q2_k),
        Format::Q3_K => decode_blocks(src, dst, decode_block_q3_k),
        Format::Q4_K => decode_blocks(src, dst, decode_block_q4_k),
        Format::Q5_K => decode_blocks(src, dst, decode_block_q5_k),
        Format::Q6_K => decode_blocks(src, dst, decode_block_q6_k),
        Format::Q8_K => decode_blocks(src, dst, decode_block_q8_k),
        Format::IQ4_NL => decode_blocks(src, dst, decode_block_iq4_nl),
        Format::IQ4_XS => decode_blocks(src, dst, decode_block_iq4_xs),
        Format::MXFP4 => decode_blocks(src, dst, decode_block_mxfp4),
    }
    Ok(())
}

/// Checks that `elements` are whole blocks and that `bytes` are their bytes.
pub(crate) fn check_lengths(format: Format, elements: usize, bytes: usize) -> Result<(), Error> {
    let expected = format.row_bytes(elements).ok_or(Error::PartialBlock { format, elements })?;
    if bytes != expected {
        return Err(Error::ByteLength { format, elements, expected, found: bytes });
    }
    Ok(())
}

/// Decodes block after block. Each is copied out first, since `src` may have any alignment.
fn decode_blocks<B: Pod, const N: usize>(src: &[u8], dst: &mut [f32], decode_block: fn(&B, &mut [f32; N])) {
    let (chunks, _) = dst.as_chunks_mut::<N>();
    for (bytes, out) in src.chunks_exact(size_of::<B>()).zip(chunks) {
        decode_block(&bytemuck::pod_read_unaligned(bytes), out);
    }
}

/// Decodes half precision or bfloat16, a run at a time, so that the hardware's conversion of several values is
/// used where there is one.
fn decode_halves<H: Pod>(src: &[u8], dst: &mut [f32])
where
    [H]: HalfFloatSliceExt,
{
    for (bytes, out) in src.chunks(HALVES_RUN * 2).zip(dst.chunks_mut(HALVES_RUN)) {
        let mut run = [H::zeroed(); HALVES_RUN];
        let run = &mut run[..out.len()];
        bytemuck::cast_slice_mut::<H, u8>(run).copy_from_slice(bytes);
        run.convert_to_f32_slice(out);
    }
}
