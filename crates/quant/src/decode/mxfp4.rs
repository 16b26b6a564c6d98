//! OCP microscaling blocks: 4-bit floats with a shared power of two.

use crate::{BlockMXFP4, E2M1_DOUBLED_VALUES, e8m0_half};

/// Decodes one MXFP4 block: the E2M1 value times the block's power of two.
pub fn decode_block_mxfp4(block: &BlockMXFP4, out: &mut [f32; 32]) {
    let d = e8m0_half(block.e);
    for (out, index) in out.iter_mut().zip(block.indices()) {
        *out = d * f32::from(E2M1_DOUBLED_VALUES[usize::from(index)]);
    }
}
