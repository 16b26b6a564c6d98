//! Copies between strided matrices (`kernels/copy.metal`).

use super::checks::require;
use crate::device::{Device, Result, Size};
use crate::families::copy::{CopyArgs, LIBRARY};
use crate::pass::{Pass, equal};
use crate::pipelines::{Loader, PipelineId};
use graph::BackendError;
use graph::ops::{Permute, View};

/// The pipelines of the family.
pub(crate) struct Kernels {
    copy: PipelineId,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        Ok(Kernels { copy: loader.library(&LIBRARY)?.kernel("copy") })
    }
}

/// The same elements in another shape, where the plan could not make it a range of its input's memory.
pub(super) fn reshape<D: Device>(pass: &mut Pass<'_, D>) -> std::result::Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    equal("elements of the result", y.shape.elements(), x.shape.elements())?;
    let args = CopyArgs { from_first: 0, from_plane: 0, from_row: 0, to_plane: 0, to_row: 0 };
    copy(pass, &args, Size::width(x.shape.elements()))
}

/// A window of a matrix.
pub(super) fn view<D: Device>(pass: &mut Pass<'_, D>, op: &View) -> std::result::Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    let inside =
        |first: usize, count: usize, total: usize| first.checked_add(count).is_some_and(|end| end <= total);
    let fits = inside(op.first_row, op.rows, x.shape.rows) && inside(op.first_col, op.cols, x.shape.cols);
    require(fits, "window", format!("one inside {}", x.shape), format!("{op:?}"))?;
    equal("elements of the result", y.shape.elements(), op.rows * op.cols)?;
    let cols = x.shape.cols;
    let args = CopyArgs {
        from_first: (op.first_row * cols + op.first_col) as u64,
        from_plane: 0,
        from_row: cols as u64,
        to_plane: 0,
        to_row: op.cols as u64,
    };
    copy(pass, &args, Size::new(op.cols, op.rows, 1))
}

/// Tokens by heads to heads by tokens.
pub(super) fn permute<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &Permute,
) -> std::result::Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    let whole = op.heads > 0 && x.shape.cols.is_multiple_of(op.heads);
    require(whole, "columns", format!("a multiple of {} heads", op.heads), x.shape.cols)?;
    equal("elements of the result", y.shape.elements(), x.shape.elements())?;
    let (rows, dim) = (x.shape.rows, x.shape.cols / op.heads);
    let args = CopyArgs {
        from_first: 0,
        from_plane: dim as u64,
        from_row: x.shape.cols as u64,
        to_plane: (rows * dim) as u64,
        to_row: dim as u64,
    };
    copy(pass, &args, Size::new(dim, rows, op.heads))
}

fn copy<D: Device>(
    pass: &mut Pass<'_, D>,
    args: &CopyArgs,
    grid: Size,
) -> std::result::Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    require(x.dtype == y.dtype, "type of the result", x.dtype, y.dtype)?;
    let kernel = pass.kernels().shape.copy;
    pass.launch(kernel, "")
        .reads(0, &x)
        .writes(1, &y)
        .bytes(2, args)
        .threads(grid, Size::width(grid.width.clamp(1, 256)))
}
