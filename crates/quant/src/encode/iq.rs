//! Blocks of table indices: scales by [search](super::search) over the table's values.

use bytemuck::Zeroable;

use super::finite_half;
use super::search::{Grid, Scaled, fit_scale, quantise};
use crate::{BlockIQ4_NL, BlockIQ4_XS, IQ4_NL_VALUES};

/// The values of the IQ4 table as the grid of a search.
struct Table;

impl Grid for Table {
    const LARGEST: f32 = IQ4_NL_VALUES[0] as f32;

    fn nearest(x: f32) -> f32 {
        f32::from(IQ4_NL_VALUES[nearest_index(x)])
    }
}

/// The index of the table value nearest to `x`: the number of midpoints between neighbours below it.
fn nearest_index(x: f32) -> usize {
    IQ4_NL_VALUES.windows(2).filter(|pair| x > 0.5 * (f32::from(pair[0]) + f32::from(pair[1]))).count()
}

fn index_of(value: i8) -> u8 {
    nearest_index(f32::from(value)) as u8
}

/// Encodes one IQ4_NL block; `None` if the scale is too large for half precision.
pub fn encode_block_iq4_nl(values: &[f32; 32]) -> Option<BlockIQ4_NL> {
    let d = finite_half(fit_scale::<Table>(values))?;
    let mut quants = [0; 32];
    quantise::<Table>(values, d.to_f32(), 0.0, &mut quants);
    let mut block = BlockIQ4_NL { d, ..Zeroable::zeroed() };
    block.set_indices(&quants.map(index_of));
    Some(block)
}

/// Encodes one IQ4_XS block; `None` if the scale is too large for half precision.
pub fn encode_block_iq4_xs(values: &[f32; 256]) -> Option<BlockIQ4_XS> {
    let fit = Scaled::<8>::fit::<Table>(values, -32, 31)?;
    let mut block = BlockIQ4_XS { d: fit.d, ..Zeroable::zeroed() };
    block.pack_scales(&fit.scales);
    block.set_indices(&fit.quants.map(index_of));
    Some(block)
}
