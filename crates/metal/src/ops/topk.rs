//! The largest elements of rows, and elements by their columns (`kernels/topk.metal`).

use super::checks::{int, require};
use super::inputs::check_indices;
use crate::device::{Device, Result, Size};
use crate::families::topk::{LIBRARY, TOPK_NARROW, TOPK_ROWS, TopKArgs};
use crate::pass::{Pass, equal};
use crate::pipelines::{Loader, PipelineId};
use graph::ops::TopK;
use graph::{BackendError, DType};

/// Most threads of a wide row.
const MOST_THREADS: usize = 1024;
/// Elements of a thread of a wide row, before there are the most threads.
const PER_THREAD: usize = 8;

/// The pipelines of the family.
pub(crate) struct Kernels {
    narrow: PipelineId,
    wide: PipelineId,
    gather_cols: PipelineId,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        let mut library = loader.library(&LIBRARY)?;
        Ok(Kernels {
            narrow: library.kernel("top_k_1sg")?,
            wide: library.kernel("top_k_row")?,
            gather_cols: library.kernel("gather_cols")?,
        })
    }
}

/// The columns of the largest elements of each row: rows as wide as a router's by a SIMD-group each, others by a threadgroup.
pub(super) fn top_k<D: Device>(pass: &mut Pass<'_, D>, op: &TopK) -> std::result::Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    let (rows, cols) = (x.shape.rows, x.shape.cols);
    require((1..=cols).contains(&op.k), "k", format!("1 to {cols} columns"), op.k)?;
    require(y.dtype == DType::I32, "type of the result", DType::I32, y.dtype)?;
    equal("rows of the result", y.shape.rows, rows)?;
    equal("columns of the result", y.shape.cols, op.k)?;
    let args = TopKArgs { rows: int("rows", rows)?, cols: int("columns", cols)?, k: int("k", op.k)? };
    let kernels = &pass.kernels().topk;
    let (kernel, groups, threads) = if cols <= TOPK_NARROW {
        (kernels.narrow, rows.div_ceil(TOPK_ROWS), TOPK_ROWS * 32)
    } else {
        let threads = cols.div_ceil(PER_THREAD).next_multiple_of(32).min(MOST_THREADS);
        (kernels.wide, rows, threads)
    };
    pass.launch(kernel, "")
        .reads(0, &x)
        .writes(1, &y)
        .bytes(2, &args)
        .threadgroups(Size::width(groups), Size::width(threads))
}

/// Elements of rows by their columns.
pub(super) fn gather_cols<D: Device>(pass: &mut Pass<'_, D>) -> std::result::Result<(), BackendError> {
    let (x, columns, y) = (pass.input(0)?, pass.input(1)?, pass.output()?);
    require(columns.dtype == DType::I32, "type of the columns", DType::I32, columns.dtype)?;
    equal("rows of the columns", columns.shape.rows, x.shape.rows)?;
    require(y.shape == columns.shape, "shape of the result", columns.shape, y.shape)?;
    check_indices(pass, 1, "column", x.shape.cols)?;
    let args = TopKArgs {
        rows: int("rows", x.shape.rows)?,
        cols: int("columns", x.shape.cols)?,
        k: int("columns of the result", y.shape.cols)?,
    };
    let kernel = pass.kernels().topk.gather_cols;
    let grid = Size::new(y.shape.cols, y.shape.rows, 1);
    pass.launch(kernel, "")
        .reads_some(0, &x, y.slice.length)
        .reads(1, &columns)
        .writes(2, &y)
        .bytes(3, &args)
        .threads(grid, Size::new(grid.width.clamp(1, 32), grid.height.clamp(1, 8), 1))
}
