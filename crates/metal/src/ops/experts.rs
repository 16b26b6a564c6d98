//! Products with the matrices of chosen experts (`kernels/experts.metal`, `kernels/experts_gemm.metal`): which kernel serves how
//! many choices, and its geometry.

use super::checks::{int, require, share};
use super::elementwise::{Gate, gated_step};
use super::formats::ByFormat;
use super::inputs::{check_indices, check_operand};
use super::matmul::{GEMM_LEAST_TOKENS, gemm_threadgroup_bytes, nothing, row_bytes, rows};
use crate::device::{Device, Result, Size};
use crate::families::experts::{
    CombineArgs, EXPERT_ROWS, EXPERT_SIMDGROUPS, ExpertArgs, GEMM, LIBRARY, ROUTE_MOST_EXPERTS,
};
use crate::families::matmul::{GEMM_ROWS, GEMM_THREADS, GEMM_TOKENS};
use crate::fusion::Held;
use crate::pass::{Pass, equal, invariant};
use crate::pipelines::{Loader, PipelineId};
use crate::tensor::{Slice, Tensor, Weight};
use graph::ops::ExpertMatMul;
use graph::{BackendError, DType, Op, Shape};
use quant::Format;

/// From so many choices an expert on, on average, they are grouped: a matrix is read once for all of its choices then, and decoded
/// once for a tile of them.
const GROUPED_CHOICES: usize = 2;
/// Most threads of the one threadgroup that groups choices.
const ROUTE_THREADS: usize = 512;

/// The pipelines of the family.
pub(crate) struct Kernels {
    matvec: ByFormat,
    route: PipelineId,
    combine: PipelineId,
    /// Where the device has matrix units.
    gemm: Option<ByFormat>,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        let mut library = loader.library(&LIBRARY)?;
        let matvec = ByFormat::load(&mut library, "expert_matvec_", "");
        let (route, combine) = (library.kernel("expert_route"), library.kernel("combine_experts"));
        let gemm = match loader.capabilities().simdgroup_matrix {
            true => Some(ByFormat::load(&mut loader.library(&GEMM)?, "expert_gemm_", "")),
            false => None,
        };
        Ok(Kernels { matvec, route, combine, gemm })
    }
}

/// A product's operands.
struct Operands<B> {
    x: Tensor<B>,
    indices: Tensor<B>,
    y: Tensor<B>,
    weight: Weight<B>,
    bias: Slice<B>,
    /// Bytes of weights that are read, at most: a matrix for each choice, or all of them.
    weight_bytes: usize,
    args: ExpertArgs,
}

impl<B> Operands<B> {
    /// Operations on floats of so many choices.
    fn operations(&self, choices: usize) -> u64 {
        let counts = [choices, self.y.shape.cols, self.x.shape.cols];
        counts.iter().fold(2, |product, &count| product.saturating_mul(count as u64))
    }
}

/// Choices by their experts.
struct Groups<B> {
    order: Tensor<B>,
    tiles: Tensor<B>,
}

/// `y[t * used + j] = x[t] (weight of the expert indices[t, j])^T + its bias`.
pub(super) fn expert_matmul<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &ExpertMatMul,
) -> std::result::Result<(), BackendError> {
    let (x, indices, y) = (pass.input(0)?, pass.input(1)?, pass.output()?);
    check_indices(pass, 1, "expert", op.experts)?;
    let product = operands(pass, op, x, indices, y)?;
    match gemm_kernel(pass, &product) {
        Some(kernel) => {
            let groups = group(pass, &product)?;
            gemm(pass, kernel, "", &product, &groups)
        }
        None => matvec(pass, &product, None, &product.y),
    }
}

/// The gate of two products of one value: two nodes that were held, and the pass's own. The products of few choices and the gate are
/// one dispatch; many choices are grouped once.
pub(super) fn gate_chain<D: Device>(
    pass: &mut Pass<'_, D>,
    held: &[Held],
    gate: Gate,
) -> std::result::Result<(), BackendError> {
    let [first, second] = held else { return Err(invariant("held nodes", 2, held.len())) };
    let first = operands_of(pass, first)?;
    let second = operands_of(pass, second)?;
    let y = pass.output()?;
    require(y.shape == first.y.shape, "shape of the result", first.y.shape, y.shape)?;
    require(second.y.shape == first.y.shape, "shape of input 1", first.y.shape, second.y.shape)?;
    match gemm_kernel(pass, &first) {
        Some(kernel) => {
            let groups = group(pass, &first)?;
            gemm(pass, kernel, "gate", &first, &groups)?;
            gemm(pass, kernel, "up", &second, &groups)?;
            gated_step(pass, "gated", gate, &first.y, &second.y, &y)
        }
        None => matvec(pass, &first, Some((&second, gate)), &y),
    }
}

fn operands_of<D: Device>(
    pass: &Pass<'_, D>,
    held: &Held,
) -> std::result::Result<Operands<D::Buffer>, BackendError> {
    match (&pass.call().graph.node(held.id).op, held.inputs.as_slice()) {
        (Op::ExpertMatMul(op), [x, indices]) => {
            check_operand(pass, indices, "expert", op.experts)?;
            operands(pass, op, pass.operand(x)?, pass.operand(indices)?, pass.operand(&held.output)?)
        }
        (op, _) => Err(invariant("held node", "a product with experts", op.name())),
    }
}

/// Checks a product's operands.
fn operands<D: Device>(
    pass: &Pass<'_, D>,
    op: &ExpertMatMul,
    x: Tensor<D::Buffer>,
    indices: Tensor<D::Buffer>,
    y: Tensor<D::Buffer>,
) -> std::result::Result<Operands<D::Buffer>, BackendError> {
    let weight = pass.weight(op.weight)?;
    let whole = op.experts > 0 && weight.rows.is_multiple_of(op.experts);
    require(whole, "rows of the weight", format!("a multiple of {} experts", op.experts), weight.rows)?;
    let rows = weight.rows / op.experts;
    let choices = indices.shape.elements();
    require(op.used > 0, "experts of a token", "at least 1", op.used)?;
    require(indices.dtype == DType::I32, "type of the indices", DType::I32, indices.dtype)?;
    equal("columns of the indices", indices.shape.cols, op.used)?;
    equal("columns of the weight", weight.cols, x.shape.cols)?;
    equal("bytes of the weight", weight.slice.length, weight.rows * row_bytes(&weight)?)?;
    equal("rows of the result", y.shape.rows, choices)?;
    equal("columns of the result", y.shape.cols, rows)?;
    let fits = x.shape.rows == choices || x.shape.rows == indices.shape.rows;
    let expected = format!("{} (one a token) or {choices} (one a choice)", indices.shape.rows);
    require(fits, "rows of input 0", expected, x.shape.rows)?;
    let bias = match op.bias {
        Some(id) => {
            let bias = pass.weight(id)?;
            require(bias.format == Format::F32, "format of the bias", Format::F32, bias.format)?;
            equal("elements of the bias", bias.rows * bias.cols, weight.rows)?;
            bias.slice
        }
        None => nothing(&weight.slice),
    };
    let args = ExpertArgs {
        row_bytes: row_bytes(&weight)? as u64,
        cols: int("columns", x.shape.cols)?,
        rows: int("rows of an expert", rows)?,
        experts: int("experts", op.experts)?,
        choices: int("choices", choices)?,
        choices_per_row: int("experts of a token", if x.shape.rows == choices { 1 } else { op.used })?,
        has_bias: i32::from(op.bias.is_some()),
        tiles: int("tiles", choices / GEMM_TOKENS + choices.min(op.experts + 1))?,
        gate: 0,
        alpha: 0.0,
        limit: 0.0,
    };
    let weight_bytes = weight.slice.length / op.experts * choices.min(op.experts);
    Ok(Operands { x, indices, y, weight, bias, weight_bytes, args })
}

/// The kernel for choices that are grouped, where these are many enough.
fn gemm_kernel<D: Device>(pass: &Pass<'_, D>, product: &Operands<D::Buffer>) -> Option<PipelineId> {
    let (tokens, choices) = (product.indices.shape.rows, product.y.shape.rows);
    let experts = product.weight.rows / product.y.shape.cols.max(1);
    let grouped = pass.switches().gemm
        && tokens >= GEMM_LEAST_TOKENS
        && choices >= GROUPED_CHOICES * experts
        && experts <= ROUTE_MOST_EXPERTS;
    let gemm = pass.kernels().experts.gemm.as_ref().filter(|_| grouped)?;
    Some(gemm.get(product.weight.format))
}

/// A product for each choice, or a gate of two.
fn matvec<D: Device>(
    pass: &mut Pass<'_, D>,
    product: &Operands<D::Buffer>,
    gate: Option<(&Operands<D::Buffer>, Gate)>,
    y: &Tensor<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    let Operands { x, indices, weight, bias, weight_bytes, args, .. } = product;
    let kernel = pass.kernels().experts.matvec.get(weight.format);
    let unused = nothing(&weight.slice);
    let (rows, args, weight1, bias1, bytes1) = match gate {
        Some((up, Gate { number, alpha, limit })) => {
            let args = ExpertArgs { gate: number, alpha, limit, ..*args };
            (EXPERT_ROWS / 2, args, &up.weight.slice, &up.bias, up.weight_bytes)
        }
        None => (EXPERT_ROWS, *args, &unused, &unused, 0),
    };
    let groups = Size::new(y.shape.cols.div_ceil(rows * EXPERT_SIMDGROUPS), y.shape.rows, 1);
    let matrices = if gate.is_some() { 2 } else { 1 };
    pass.launch(kernel, "")
        .operations(product.operations(y.shape.rows).saturating_mul(matrices))
        .reads_some(0, weight, *weight_bytes)
        .reads(1, x)
        .writes(2, y)
        .bytes(3, &args)
        .reads(4, indices)
        .reads(5, bias)
        .reads_some(6, weight1, bytes1)
        .reads(7, bias1)
        .threadgroups(groups, Size::width(EXPERT_SIMDGROUPS * 32))
}

/// Groups choices by their experts.
fn group<D: Device>(
    pass: &mut Pass<'_, D>,
    product: &Operands<D::Buffer>,
) -> std::result::Result<Groups<D::Buffer>, BackendError> {
    let most = product.args.tiles as usize;
    let order = pass.scratch(DType::I32, Shape::new(1, product.y.shape.rows))?;
    let tiles = pass.scratch(DType::I32, Shape::new(most, 4))?;
    let route = pass.kernels().experts.route;
    let threads = pass.whole_simdgroups(route, ROUTE_THREADS);
    pass.launch(route, "route")
        .reads(0, &product.indices)
        .writes(1, &order)
        .writes(2, &tiles)
        .bytes(3, &product.args)
        .threadgroups(Size::width(usize::from(most > 0)), Size::width(threads))?;
    Ok(Groups { order, tiles })
}

/// Tiles of each group, in as many dispatches as take no longer than a command buffer may.
fn gemm<D: Device>(
    pass: &mut Pass<'_, D>,
    kernel: PipelineId,
    step: &str,
    product: &Operands<D::Buffer>,
    groups: &Groups<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    let Operands { x, y, weight, bias, weight_bytes, args, .. } = product;
    let (count, of_tile) = (groups.tiles.shape.rows, product.operations(GEMM_TOKENS));
    let at_once = pass.at_once(of_tile);
    for first in (0..count).step_by(at_once) {
        let number = at_once.min(count - first);
        let tiles = rows(&groups.tiles, first, number)?;
        let grid = Size::new(number, y.shape.cols.div_ceil(GEMM_ROWS), 1);
        let touched = |bytes: usize| share(bytes, number, count);
        pass.launch(kernel, step)
            .operations(of_tile.saturating_mul(number as u64).min(product.operations(y.shape.rows)))
            .reads_some(0, weight, touched(*weight_bytes))
            .reads_some(1, x, touched(x.slice.length))
            .writes_some(2, y, touched(y.slice.length))
            .bytes(3, args)
            .reads(4, &groups.order)
            .reads(5, &tiles)
            .reads(6, bias)
            .threadgroup_memory(0, gemm_threadgroup_bytes(weight.format))
            .threadgroups(grid, Size::width(GEMM_THREADS))?;
    }
    Ok(())
}

/// The weighted sum of what a token's experts give.
pub(super) fn combine<D: Device>(pass: &mut Pass<'_, D>) -> std::result::Result<(), BackendError> {
    let (y, weights, z) = (pass.input(0)?, pass.input(1)?, pass.output()?);
    equal("rows of input 0", y.shape.rows, weights.shape.elements())?;
    equal("rows of the result", z.shape.rows, weights.shape.rows)?;
    equal("columns of the result", z.shape.cols, y.shape.cols)?;
    let args = CombineArgs {
        cols: int("columns", y.shape.cols)?,
        used: int("experts of a token", weights.shape.cols)?,
    };
    let grid = Size::new(z.shape.cols.div_ceil(4), z.shape.rows, 1);
    let kernel = pass.kernels().experts.combine;
    pass.launch(kernel, "")
        .reads(0, &y)
        .reads(1, &weights)
        .writes(2, &z)
        .bytes(3, &args)
        .threads(grid, Size::width(grid.width.clamp(1, 64)))
}
