//! Rotary position embedding (`kernels/rope.metal`).

use super::checks::{int, require};
use super::inputs::check_indices;
use crate::device::{Device, Result, Size};
use crate::families::rope::{LIBRARY, RopeArgs};
use crate::pass::{Pass, equal};
use crate::pipelines::{Loader, PipelineId};
use graph::BackendError;
use graph::ops::{Rope, RopeStyle};

/// The pipelines of the family.
pub(crate) struct Kernels {
    rope: PipelineId,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        Ok(Kernels { rope: loader.library(&LIBRARY)?.kernel("rope") })
    }
}

/// Turns every head of every row.
pub(super) fn rope<D: Device>(pass: &mut Pass<'_, D>, op: &Rope) -> std::result::Result<(), BackendError> {
    let (x, positions, y) = (pass.input(0)?, pass.input(1)?, pass.output()?);
    let whole = op.head_dim > 0 && x.shape.cols.is_multiple_of(op.head_dim) && op.rotary_dim() <= op.head_dim;
    let expected = format!("heads of {}, {} of it rotated", op.head_dim, op.rotary_dim());
    require(whole, "columns", expected, x.shape.cols)?;
    equal("positions", positions.shape.elements(), x.shape.rows)?;
    require(y.shape == x.shape, "shape of the result", x.shape, y.shape)?;
    check_indices(pass, 1, "position", i32::MAX as usize)?;
    let heads = x.shape.cols / op.head_dim;
    let args = RopeArgs {
        heads: int("heads", heads)?,
        head_dim: int("head dim", op.head_dim)?,
        pairs: int("pairs", op.table.inv_freq.len())?,
        interleaved: i32::from(op.style == RopeStyle::Interleaved),
        magnitude: op.table.magnitude,
    };
    let turns = pass.rope_table(&op.table)?;
    let pairs = op.head_dim.div_ceil(2);
    let threads = Size::new(pairs.min(32), (256 / pairs.min(32)).min(heads.max(1)), 1);
    let kernel = pass.kernels().rope.rope;
    pass.launch(kernel, "")
        .reads(0, &x)
        .writes(1, &y)
        .bytes(2, &args)
        .reads(3, &turns)
        .reads(4, &positions)
        .threads(Size::new(pairs, heads, x.shape.rows), threads)
}
