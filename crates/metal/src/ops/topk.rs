//! The largest elements of rows, and elements by their columns (`kernels/topk.metal`).

use super::checks::{int, require};
use super::inputs::check_indices;
use crate::device::{Device, Result, Size};
use crate::families::topk::{LIBRARY, ROUTER_MOST, RouterArgs, TOPK_NARROW, TOPK_ROWS, TopKArgs};
use crate::fusion::Held;
use crate::pass::{Pass, equal, invariant};
use crate::pipelines::{Loader, PipelineId};
use graph::ops::TopK;
use graph::{BackendError, DType, Op};

/// Elements of a thread of a wide row, before there are the most threads.
const PER_THREAD: usize = 8;

/// The pipelines of the family.
pub(crate) struct Kernels {
    narrow: PipelineId,
    wide: PipelineId,
    gather_cols: PipelineId,
    router: PipelineId,
    /// Of no operation: what [`largest`](graph::Backend::largest) takes.
    pub(crate) largest: PipelineId,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        let mut library = loader.library(&LIBRARY)?;
        Ok(Kernels {
            narrow: library.kernel("top_k_1sg"),
            wide: library.kernel("top_k_row"),
            gather_cols: library.kernel("gather_cols"),
            router: library.kernel("router_1sg"),
            largest: library.kernel("largest_of_chunks"),
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
        (kernels.wide, rows, pass.whole_simdgroups(kernels.wide, cols.div_ceil(PER_THREAD)))
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

/// Whether a kernel makes a router's choice among so many columns in one dispatch.
pub(crate) fn routes(cols: usize, k: usize) -> bool {
    cols <= TOPK_NARROW && (1..=cols.min(ROUTER_MOST)).contains(&k)
}

/// A router's choice and its weights: nodes that were held, and the pass's own node, which gives the weights.
pub(super) fn router_chain<D: Device>(
    pass: &mut Pass<'_, D>,
    held: &[Held],
) -> std::result::Result<(), BackendError> {
    let graph = pass.call().graph;
    let [top, second] = held else { return Err(invariant("held nodes", 2, held.len())) };
    let (of_all, scale) = match (&graph.node(second.id).op, &pass.call().node.op) {
        (Op::Softmax(op), Op::GatherCols) => (true, op.scale),
        (Op::GatherCols, Op::Softmax(op)) => (false, op.scale),
        (op, _) => return Err(invariant("held node", "a softmax or elements by their columns", op.name())),
    };
    let (x, columns, weights) = (pass.operand(&top.inputs[0])?, pass.operand(&top.output)?, pass.output()?);
    let (rows, cols, k) = (x.shape.rows, x.shape.cols, columns.shape.cols);
    let expected = format!("at most {ROUTER_MOST} of {TOPK_NARROW} columns");
    require(routes(cols, k), "choices", expected, format!("{k} of {cols}"))?;
    require(columns.dtype == DType::I32, "type of the columns", DType::I32, columns.dtype)?;
    equal("rows of the columns", columns.shape.rows, rows)?;
    require(weights.shape == columns.shape, "shape of the result", columns.shape, weights.shape)?;
    let args = RouterArgs {
        rows: int("rows", rows)?,
        cols: int("columns", cols)?,
        k: int("choices", k)?,
        of_all: i32::from(of_all),
        scale,
    };
    let kernel = pass.kernels().topk.router;
    pass.launch(kernel, "router")
        .reads(0, &x)
        .writes(1, &columns)
        .writes(2, &weights)
        .bytes(3, &args)
        .threadgroups(Size::width(rows.div_ceil(TOPK_ROWS)), Size::width(TOPK_ROWS * 32))
}
