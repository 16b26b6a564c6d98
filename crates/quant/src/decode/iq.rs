//! Blocks whose quants are indices into a table of values that are not evenly spaced.

use crate::{BlockIQ4_NL, BlockIQ4_XS, IQ4_NL_VALUES};

/// `d * table[index]`.
fn looked_up(d: f32, indices: &[u8], out: &mut [f32]) {
    for (out, &index) in out.iter_mut().zip(indices) {
        *out = d * f32::from(IQ4_NL_VALUES[usize::from(index & 0x0f)]);
    }
}

/// Decodes one IQ4_NL block: `d * table[index]`.
pub fn decode_block_iq4_nl(block: &BlockIQ4_NL, out: &mut [f32; 32]) {
    looked_up(block.d.to_f32(), &block.indices(), out);
}

/// Decodes one IQ4_XS block: `d * scale * table[index]`, sub-blocks of 32.
pub fn decode_block_iq4_xs(block: &BlockIQ4_XS, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    let indices = block.indices();
    let sub_blocks = out.as_chunks_mut::<32>().0.iter_mut().zip(indices.as_chunks::<32>().0);
    for ((out, indices), scale) in sub_blocks.zip(block.unpack_scales()) {
        looked_up(d * f32::from(scale), indices, out);
    }
}
