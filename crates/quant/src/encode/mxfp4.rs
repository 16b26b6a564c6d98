//! OCP microscaling blocks: the shared exponent is the largest value's, less that of the largest E2M1 value.

use bytemuck::Zeroable;

use super::largest;
use crate::{BlockMXFP4, E2M1_DOUBLED_VALUES, e8m0_half};

/// Exponent of 6, the largest E2M1 value.
const E2M1_MAX_EXPONENT: u8 = 2;

/// Encodes one MXFP4 block of finite values. Those over 6 times the shared power of two become 6 times it, as the OCP
/// Microscaling Formats description has it.
pub fn encode_block_mxfp4(values: &[f32; 32]) -> BlockMXFP4 {
    // The biased exponents of single precision and of E8M0 are the same.
    let exponent = ((largest(values).1.abs().to_bits() >> 23) & 0xff) as u8;
    let e = exponent.saturating_sub(E2M1_MAX_EXPONENT);
    let mut block = BlockMXFP4 { e, ..Zeroable::zeroed() };
    block.set_indices(&values.map(|value| nearest(value, e8m0_half(e))));
    block
}

/// The index of the E2M1 value nearest to `value`, the first of several.
fn nearest(value: f32, d: f32) -> u8 {
    let (mut index, mut least) = (0, f32::INFINITY);
    for (i, &code) in E2M1_DOUBLED_VALUES.iter().enumerate() {
        let error = (d * f32::from(code) - value).abs();
        if error < least {
            (index, least) = (i as u8, error);
        }
    }
    index
}
