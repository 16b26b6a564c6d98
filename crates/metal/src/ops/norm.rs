//! Normalisations of rows (`kernels/norm.metal`).

use super::checks::{int, require};
use super::matmul::nothing;
use crate::device::{ConstantValue, Device, FunctionConstants, Result, Size};
use crate::families::norm::{LIBRARY, NormArgs};
use crate::fusion::Held;
use crate::pass::{Pass, equal, invariant};
use crate::pipelines::{LibraryLoader, Loader, PipelineId};
use crate::tensor::{Tensor, Weight};
use graph::ops::{QkNorm, RmsNorm};
use graph::{BackendError, Op};
use quant::Format;

/// The widest row that one SIMD-group normalises alone: 8 elements a lane and load. Heads are no wider.
const NARROW: usize = 256;
/// Rows of a threadgroup, a SIMD-group each.
const NARROW_ROWS: usize = 4;
/// Elements of a thread of a wide row, before there are the most threads of a row.
const PER_THREAD: usize = 4;

/// A norm with a SIMD-group per row, and with a threadgroup per row.
#[derive(Clone, Copy)]
struct Widths {
    narrow: PipelineId,
    wide: PipelineId,
}

/// What a variant of the kernel does before the norm, and which norms have a weight.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Variant {
    first: bool,
    weight1: bool,
    sum: bool,
    weight2: bool,
}

/// The pipelines of the family.
pub(crate) struct Kernels(Vec<(Variant, Widths)>);

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        let mut library = loader.library(&LIBRARY)?;
        let mut kernels = Vec::new();
        for (first, weight1, sum) in
            [(false, false, false), (false, false, true), (true, false, true), (true, true, true)]
        {
            for weight2 in [false, true] {
                let variant = Variant { first, weight1, sum, weight2 };
                kernels.push((variant, widths(&mut library, variant)));
            }
        }
        Ok(Kernels(kernels))
    }

    fn get(&self, variant: Variant) -> std::result::Result<Widths, BackendError> {
        let found = self.0.iter().find(|(other, _)| *other == variant).map(|(_, widths)| *widths);
        found.ok_or_else(|| invariant("norm", "one alone or around a sum", "a norm before a norm"))
    }
}

fn widths<D: Device>(library: &mut LibraryLoader<'_, '_, D>, variant: Variant) -> Widths {
    let constants = FunctionConstants::new()
        .set(0, ConstantValue::Bool(variant.first))
        .set(1, ConstantValue::Bool(variant.weight1))
        .set(2, ConstantValue::Bool(variant.sum))
        .set(3, ConstantValue::Bool(variant.weight2));
    Widths {
        narrow: library.kernel_with("rms_norm_1sg", constants.clone()),
        wide: library.kernel_with("rms_norm_row", constants),
    }
}

/// A norm, and what stands before it in the same dispatch.
pub(super) struct Norm<'a, B> {
    /// The weight; without one, nothing multiplies.
    pub weight: Option<&'a Weight<B>>,
    /// Added to the mean square.
    pub epsilon: f32,
    /// What is normalised is a sum.
    pub sum: Option<Sum<'a, B>>,
}

/// `sum = first norm of x + residual`.
pub(super) struct Sum<'a, B> {
    /// Weight and epsilon of a norm of the input, before the sum.
    pub norm: Option<(Option<&'a Weight<B>>, f32)>,
    /// What is added.
    pub residual: &'a Tensor<B>,
    /// Where the sum goes; its memory may be an operand's.
    pub sum: &'a Tensor<B>,
}

/// Root-mean-square norm of rows.
pub(super) fn rms_norm<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &RmsNorm,
) -> std::result::Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    let weight = op.weight.map(|weight| pass.weight(weight)).transpose()?;
    let norm = Norm { weight: weight.as_ref(), epsilon: op.epsilon, sum: None };
    normalise(pass, &norm, x.shape.cols, &x, &y)
}

/// A sum and the norm of it, or a norm that only a sum reads, the sum, and the norm of it: one dispatch. The pass's own
/// node is the last norm, the others were held.
pub(super) fn chain<D: Device>(
    pass: &mut Pass<'_, D>,
    held: &[Held],
    op: &RmsNorm,
) -> std::result::Result<(), BackendError> {
    let graph = pass.call().graph;
    let (first, sum) = match held {
        [sum] => (None, sum),
        [first, sum] => (Some(first), sum),
        _ => return Err(invariant("held nodes", "1 or 2", held.len())),
    };
    let [left, right] = sum.inputs.as_slice() else {
        return Err(invariant("operands of the sum", 2, sum.inputs.len()));
    };
    // The sum's operand that the first norm makes is never in memory: the norm's own input takes its place.
    let (x, residual, first) = match first {
        None => (left, right, None),
        Some(held) => {
            let Op::RmsNorm(norm) = graph.node(held.id).op else {
                return Err(invariant("first node of the chain", "a norm", graph.node(held.id).op.name()));
            };
            let residual = if left.producer == held.id { right } else { left };
            let weight = norm.weight.map(|weight| pass.weight(weight)).transpose()?;
            (&held.inputs[0], residual, Some((weight, norm.epsilon)))
        }
    };
    let (x, residual, total) = (pass.operand(x)?, pass.operand(residual)?, pass.operand(&sum.output)?);
    let weight = op.weight.map(|weight| pass.weight(weight)).transpose()?;
    let norm = first.as_ref().map(|(weight, epsilon)| (weight.as_ref(), *epsilon));
    let sum = Some(Sum { norm, residual: &residual, sum: &total });
    let y = pass.output()?;
    normalise(pass, &Norm { weight: weight.as_ref(), epsilon: op.epsilon, sum }, x.shape.cols, &x, &y)
}

/// The root-mean-square norm of every head.
pub(super) fn qk_norm<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &QkNorm,
) -> std::result::Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    let weight = pass.weight(op.weight)?;
    let norm = Norm { weight: Some(&weight), epsilon: op.epsilon, sum: None };
    normalise(pass, &norm, op.head_dim, &x, &y)
}

/// Normalises runs of `cols` elements.
pub(super) fn normalise<D: Device>(
    pass: &mut Pass<'_, D>,
    norm: &Norm<'_, D::Buffer>,
    cols: usize,
    x: &Tensor<D::Buffer>,
    y: &Tensor<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    let elements = x.shape.elements();
    equal("elements of the result", y.shape.elements(), elements)?;
    let whole = if cols == 0 { elements == 0 } else { elements.is_multiple_of(cols) };
    require(whole, "columns", format!("a multiple of {cols}"), x.shape.cols)?;
    let first_weight = norm.sum.as_ref().and_then(|sum| sum.norm).and_then(|(weight, _)| weight);
    for weight in norm.weight.into_iter().chain(first_weight) {
        require(weight.format == Format::F32, "format of the norm's weight", Format::F32, weight.format)?;
        equal("elements of the norm's weight", weight.rows * weight.cols, cols)?;
    }
    let first = norm.sum.as_ref().and_then(|sum| sum.norm);
    let kernel = pass.kernels().norm.get(Variant {
        first: first.is_some(),
        weight1: first_weight.is_some(),
        sum: norm.sum.is_some(),
        weight2: norm.weight.is_some(),
    })?;
    let rows = elements.checked_div(cols).unwrap_or(0);
    let args = NormArgs {
        rows: int("rows", rows)?,
        cols: int("columns", cols)?,
        epsilon1: first.map_or(0.0, |(_, epsilon)| epsilon),
        epsilon2: norm.epsilon,
    };
    let narrow = cols <= NARROW || !pass.switches().wide_norm;
    let (kernel, groups, threads) = if narrow {
        (kernel.narrow, rows.div_ceil(NARROW_ROWS), NARROW_ROWS * 32)
    } else {
        (kernel.wide, rows, pass.whole_simdgroups(kernel.wide, cols.div_ceil(PER_THREAD)))
    };
    let unused = nothing(&x.slice);
    let mut launch = pass.launch(kernel, "").reads(0, x).writes(1, y).bytes(2, &args);
    launch = launch.reads(3, norm.weight.map_or(&unused, |weight| &weight.slice));
    if let Some(sum) = &norm.sum {
        require(sum.residual.shape == x.shape, "shape of the residual", x.shape, sum.residual.shape)?;
        require(sum.sum.shape == x.shape, "shape of the sum", x.shape, sum.sum.shape)?;
        launch = launch.reads(4, sum.residual).writes(5, sum.sum);
        launch = launch.reads(6, first_weight.map_or(&unused, |weight| &weight.slice));
    }
    launch.threadgroups(Size::width(groups), Size::width(threads))
}
