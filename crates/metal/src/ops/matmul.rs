//! Products with weights (`kernels/matvec.metal`, `kernels/gemm.metal`): which kernel serves which shape, and its geometry.

use super::checks::{int, require};
use super::elementwise::activation_number;
use super::formats::ByFormat;
use crate::device::{Device, Result, Size};
use crate::families::matmul::{
    GEMM, GEMM_ROWS, GEMM_STEP, GEMM_THREADS, GEMM_TOKENS, GemmArgs, MATVEC, MATVEC_ROWS, MATVEC_SIMDGROUPS,
    MatvecArgs,
};
use crate::pass::{Pass, equal};
use crate::pipelines::{Loader, PipelineId};
use crate::tensor::{Part, Slice, Tensor, Weight};
use graph::BackendError;
use graph::ops::{Activation, BatchMatMul, MatMul};
use quant::Format;

/// Tokens of a pass of the matrix-vector kernels, one variant each.
const MATVEC_TOKENS: [usize; 4] = [1, 2, 4, 8];
/// From so many tokens on, tiles are used: below, most of a tile of 32 tokens would be empty.
pub(super) const GEMM_LEAST_TOKENS: usize = 9;

/// The pipelines of the family.
pub(crate) struct Kernels {
    matvec: [ByFormat; MATVEC_TOKENS.len()],
    /// Where the device has matrix units.
    gemm: Option<ByFormat>,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        let mut library = loader.library(&MATVEC)?;
        let mut of = |tokens: usize| ByFormat::load(&mut library, "matvec_", &format!("_n{tokens}"));
        let [a, b, c, d] = MATVEC_TOKENS;
        let matvec = [of(a), of(b), of(c), of(d)];
        let gemm = match loader.capabilities().simdgroup_matrix {
            true => Some(ByFormat::load(&mut loader.library(&GEMM)?, "gemm_", "")),
            false => None,
        };
        Ok(Kernels { matvec, gemm })
    }
}

/// One or more weights of one format and width, and what one dispatch makes of them.
#[derive(Clone, Copy)]
pub(super) struct Product<'w, B> {
    /// One, or up to three whose results lie side by side; with a gate, the gate and the up projection.
    pub weights: &'w [Weight<B>],
    /// A bias for each weight, or none.
    pub biases: &'w [Weight<B>],
    /// The result is `activation(first) * second`.
    pub gate: Option<Activation>,
}

/// `y = x weight^T + bias`.
pub(super) fn matmul<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &MatMul,
) -> std::result::Result<(), BackendError> {
    let (x, y, weight) = (pass.input(0)?, pass.output()?, pass.weight(op.weight)?);
    let bias = op.bias.map(|bias| pass.weight(bias)).transpose()?;
    let product = Product { weights: &[weight], biases: bias.as_slice(), gate: None };
    products(pass, "", &product, &x, &y)
}

/// Products of pairs of activations: the second of a pair takes the place of a weight.
pub(super) fn batch_matmul<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &BatchMatMul,
) -> std::result::Result<(), BackendError> {
    let (a, b, y) = (pass.input(0)?, pass.input(1)?, pass.output()?);
    equal("columns of input 1", b.shape.cols, a.shape.cols)?;
    let whole =
        op.batch > 0 && a.shape.rows.is_multiple_of(op.batch) && b.shape.rows.is_multiple_of(op.batch);
    require(
        whole,
        "rows",
        format!("multiples of the batch {}", op.batch),
        format!("{} and {}", a.shape, b.shape),
    )?;
    let (m, n) = (a.shape.rows / op.batch, b.shape.rows / op.batch);
    for i in 0..op.batch {
        let (a, b, y) = (rows(&a, i * m, m)?, rows(&b, i * n, n)?, rows(&y, i * m, m)?);
        let weight = Weight { slice: b.slice, format: Format::F32, rows: n, cols: b.shape.cols };
        let product = Product { weights: &[weight], biases: &[], gate: None };
        products(pass, "", &product, &a, &y)?;
    }
    Ok(())
}

/// Encodes a product in as few dispatches as the tier allows: one for neighbours of one format, and one for each weight
/// where tiles serve. None waits for another.
pub(super) fn products<D: Device>(
    pass: &mut Pass<'_, D>,
    step: &str,
    product: &Product<'_, D::Buffer>,
    x: &Tensor<D::Buffer>,
    y: &Tensor<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    check(product, x, y)?;
    let tokens = x.shape.rows;
    let tiled = product.gate.is_none() && is_tiled(pass, tokens);
    // Tokens that one dispatch takes, whole tiles of them: a dispatch of the widest matrix must not be too long either.
    let widest = product.weights.iter().map(|weight| operations(weight, GEMM_TOKENS)).max().unwrap_or(0);
    let at_once = pass.at_once(widest).saturating_mul(GEMM_TOKENS);
    for first in (0..tokens).step_by(at_once) {
        let count = at_once.min(tokens - first);
        let (x, y) = (rows(x, first, count)?, rows(y, first, count)?);
        of_tokens(pass, step, product, tiled, &x, &y)?;
    }
    Ok(())
}

/// Operations on floats of a product with so many tokens.
fn operations<B>(weight: &Weight<B>, tokens: usize) -> u64 {
    [weight.rows, weight.cols, tokens].iter().fold(2, |product, &count| product.saturating_mul(count as u64))
}

/// Some rows of an operand.
pub(super) fn rows<B: crate::device::Buffer>(
    x: &Tensor<B>,
    first: usize,
    count: usize,
) -> std::result::Result<Tensor<B>, BackendError> {
    x.rows(first, count).ok_or_else(|| crate::pass::invariant("rows", first.saturating_add(count), x.shape))
}

/// A product of tokens that one dispatch may take.
fn of_tokens<D: Device>(
    pass: &mut Pass<'_, D>,
    step: &str,
    product: &Product<'_, D::Buffer>,
    tiled: bool,
    x: &Tensor<D::Buffer>,
    y: &Tensor<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    let (mut first, mut column) = (0, 0);
    for weights in product.weights.chunk_by(|a, b| !tiled && a.format == b.format) {
        let end = first + weights.len();
        let biases = if product.biases.is_empty() { &[] } else { &product.biases[first..end] };
        let part = Product { weights, biases, ..*product };
        match &pass.kernels().matmul.gemm {
            Some(gemm) if tiled => {
                tiles(pass, gemm.get(weights[0].format), step, &part, column, x, y)?;
            }
            _ => matvec(pass, step, &part, column, x, y)?,
        }
        first = end;
        column += weights.iter().map(|weight| weight.rows).sum::<usize>();
    }
    Ok(())
}

/// Whether tiles would serve a product of so many tokens: then a gate is an operation of its own.
pub(super) fn is_tiled<D: Device>(pass: &Pass<'_, D>, tokens: usize) -> bool {
    pass.switches().gemm && tokens >= GEMM_LEAST_TOKENS && pass.kernels().matmul.gemm.is_some()
}

fn check<B>(product: &Product<'_, B>, x: &Tensor<B>, y: &Tensor<B>) -> std::result::Result<(), BackendError> {
    let first = product.weights.first().ok_or_else(|| crate::pass::invariant("weights", "1 to 3", 0))?;
    require(product.weights.len() <= 3, "weights", "1 to 3", product.weights.len())?;
    for weight in product.weights {
        equal("columns of the weight", weight.cols, x.shape.cols)?;
        equal("bytes of the weight", weight.slice.length, weight.rows * row_bytes(weight)?)?;
    }
    require(
        product.biases.is_empty() || product.biases.len() == product.weights.len(),
        "biases",
        product.weights.len(),
        product.biases.len(),
    )?;
    for (bias, weight) in product.biases.iter().zip(product.weights) {
        require(bias.format == Format::F32, "format of the bias", Format::F32, bias.format)?;
        equal("elements of the bias", bias.rows * bias.cols, weight.rows)?;
    }
    let rows = match product.gate {
        Some(_) => {
            equal("weights of a gate", product.weights.len(), 2)?;
            require(
                product.weights[1].format == first.format,
                "format",
                first.format,
                product.weights[1].format,
            )?;
            equal("rows of the up projection", product.weights[1].rows, first.rows)?;
            first.rows
        }
        None => product.weights.iter().map(|weight| weight.rows).sum(),
    };
    equal("columns of the result", y.shape.cols, rows)?;
    equal("rows of the result", y.shape.rows, x.shape.rows)?;
    Ok(())
}

/// Bytes of a row.
pub(super) fn row_bytes<B>(weight: &Weight<B>) -> std::result::Result<usize, BackendError> {
    weight.format.row_bytes(weight.cols).ok_or_else(|| {
        let expected = format!("whole blocks of {}", weight.format.block_len());
        crate::pass::invariant("columns of the weight", expected, weight.cols)
    })
}

fn matvec<D: Device>(
    pass: &mut Pass<'_, D>,
    step: &str,
    product: &Product<'_, D::Buffer>,
    column: usize,
    x: &Tensor<D::Buffer>,
    y: &Tensor<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    let first = &product.weights[0];
    let tokens = x.shape.rows;
    let variant = MATVEC_TOKENS.iter().position(|&most| tokens <= most).unwrap_or(MATVEC_TOKENS.len() - 1);
    let kernel = pass.kernels().matmul.matvec[variant].get(first.format);
    let rows = MATVEC_ROWS[usize::from(variant > 0)];
    let rows_of = |i: usize| product.weights.get(i).map_or(0, |weight| weight.rows);
    let simdgroups = match product.gate {
        Some(_) => first.rows.div_ceil(rows / 2),
        None => product.weights.iter().map(|weight| weight.rows.div_ceil(rows)).sum(),
    };
    let beside = |i: usize| if product.gate.is_some() { 0 } else { rows_of(i) };
    let args = MatvecArgs {
        row_bytes: row_bytes(first)? as u64,
        y_stride: y.shape.cols as u64,
        cols: int("columns", x.shape.cols)?,
        rows0: int("rows", first.rows)?,
        rows1: int("rows", beside(1))?,
        rows2: int("rows", beside(2))?,
        tokens: int("tokens", tokens)?,
        gate: product.gate.map_or(0, activation_number),
        has_bias: i32::from(!product.biases.is_empty()),
        reserved: 0,
    };
    let unused = nothing(&first.slice);
    let weight = |i: usize| product.weights.get(i).map_or(&unused, |weight| &weight.slice);
    let bias = |i: usize| product.biases.get(i).map_or(&unused, |bias| &bias.slice);
    let written = match product.gate {
        Some(_) => first.rows,
        None => product.weights.iter().map(|weight| weight.rows).sum(),
    };
    let y = columns(y, column, written)?;
    let groups =
        Size::new(simdgroups.div_ceil(MATVEC_SIMDGROUPS), tokens.div_ceil(MATVEC_TOKENS[variant]), 1);
    let operations = product.weights.iter().map(|weight| operations(weight, tokens)).sum();
    pass.launch(kernel, step)
        .operations(operations)
        .reads(0, weight(0))
        .reads(1, x)
        .writes(2, &y)
        .bytes(3, &args)
        .reads(4, weight(1))
        .reads(5, weight(2))
        .reads(6, bias(0))
        .reads(7, bias(1))
        .reads(8, bias(2))
        .threadgroups(groups, Size::width(MATVEC_SIMDGROUPS * 32))
}

/// What a slot is bound to that the kernel will not touch: none of a weight's bytes.
pub(super) fn nothing<B: crate::device::Buffer>(slice: &Slice<B>) -> Slice<B> {
    Slice { length: 0, ..slice.clone() }
}

/// The columns of a result that products fill.
fn columns<B: crate::device::Buffer>(
    y: &Tensor<B>,
    first: usize,
    count: usize,
) -> std::result::Result<Part<B>, BackendError> {
    y.columns(first, count)
        .ok_or_else(|| crate::pass::invariant("columns of the result", first + count, y.shape))
}

/// The tiled product of one weight.
fn tiles<D: Device>(
    pass: &mut Pass<'_, D>,
    kernel: PipelineId,
    step: &str,
    product: &Product<'_, D::Buffer>,
    column: usize,
    x: &Tensor<D::Buffer>,
    y: &Tensor<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    let weight = &product.weights[0];
    let bias = product.biases.first();
    let tokens = x.shape.rows;
    let args = GemmArgs {
        row_bytes: row_bytes(weight)? as u64,
        y_stride: y.shape.cols as u64,
        cols: int("columns", x.shape.cols)?,
        rows: int("rows", weight.rows)?,
        tokens: int("tokens", tokens)?,
        has_bias: i32::from(bias.is_some()),
    };
    let unused = nothing(&weight.slice);
    let bias = bias.map_or(&unused, |bias| &bias.slice);
    let y = columns(y, column, weight.rows)?;
    pass.launch(kernel, step)
        .operations(operations(weight, tokens))
        .reads(0, weight)
        .reads(1, x)
        .writes(2, &y)
        .bytes(3, &args)
        .reads(4, bias)
        .threadgroup_memory(0, gemm_threadgroup_bytes(weight.format))
        .threadgroups(
            Size::new(tokens.div_ceil(GEMM_TOKENS), weight.rows.div_ceil(GEMM_ROWS), 1),
            Size::width(GEMM_THREADS),
        )
}

/// Threadgroup memory of the tiled product: a tile of weights, as halves where the format's range allows it, and one of
/// activations; later the results, which are no more.
pub(super) fn gemm_threadgroup_bytes(format: Format) -> usize {
    // WIDE_RANGE in formats.h.
    let wide = matches!(format, Format::F32 | Format::BF16 | Format::MXFP4 | Format::Q8_K);
    let weight = if wide { 4 } else { 2 };
    let tiles = GEMM_STEP * (GEMM_ROWS * weight + GEMM_TOKENS * 4);
    tiles.max(GEMM_ROWS * GEMM_TOKENS * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_halves_take_eight_kilobytes_and_of_floats_twelve() {
        assert_eq!(gemm_threadgroup_bytes(Format::Q4_K), 8192);
        assert_eq!(gemm_threadgroup_bytes(Format::F32), 12288);
    }
}
