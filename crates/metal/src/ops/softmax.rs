//! Softmax of rows (`kernels/softmax.metal`).

use super::checks::int;
use crate::device::{Device, Result, Size};
use crate::families::softmax::{LIBRARY, RowArgs};
use crate::pass::{Pass, equal};
use crate::pipelines::{Loader, PipelineId};
use graph::BackendError;
use graph::ops::Softmax;

/// Most threads of a row.
const MOST_THREADS: usize = 256;

/// The pipelines of the family.
pub(crate) struct Kernels {
    softmax: PipelineId,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        Ok(Kernels { softmax: loader.library(&LIBRARY)?.kernel("softmax") })
    }
}

/// Softmax of rows.
pub(super) fn softmax<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &Softmax,
) -> std::result::Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    equal("elements of the result", y.shape.elements(), x.shape.elements())?;
    let args = RowArgs { cols: int("columns", x.shape.cols)?, scale: op.scale };
    let rows = if x.shape.cols == 0 { 0 } else { x.shape.rows };
    let kernel = pass.kernels().softmax.softmax;
    let threads = pass.whole_simdgroups(kernel, x.shape.cols.min(MOST_THREADS));
    pass.launch(kernel, "")
        .reads(0, &x)
        .writes(1, &y)
        .bytes(2, &args)
        .threadgroups(Size::width(rows), Size::width(threads))
}
