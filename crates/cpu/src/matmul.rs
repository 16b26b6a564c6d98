//! Matrix products.
//!
//! With a quantised weight, activations are quantised too and products are made from integers
//! ([`Kernels::dot_tile`]). Float weights, and all weights where activations are left in f32, are decoded row by row
//! and multiplied in f32. In both, the order of an output element's sum depends on the width alone, so the result for
//! a token is the same in any batch.

use crate::backend::Activations;
use crate::exec::{Exec, In, Out, Scratch, Workers, equal, invariant};
use crate::pack::Packed;
use crate::pool::Pool;
use crate::quantize::QuantMatrix;
use crate::rows::decode_row;
use crate::simd::blocks::is_dot_format;
use crate::simd::{DotTile, Kernels};
use crate::weights::Weight;
use graph::ops::{Activation, BatchMatMul, MatMul};
use graph::{BackendError, Operand};
use quant::Format;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Weight rows that are handed out together: two groups of [`crate::pack`].
pub(crate) const ROW_GROUP: usize = 2 * crate::pack::ROWS;
/// Tokens that are handed out together when rows alone do not make enough work for all threads.
const TOKEN_GROUP: usize = 64;
/// Tokens whose logits are made at a time: the memory for their parts is bounded.
const LOGIT_TOKENS: usize = 32;
/// Bytes of weights that are handed out together, at least: a microsecond or two of reading.
const CHUNK_BYTES: usize = 1 << 15;
/// Pieces that a thread's share of the work is handed out in, at most. Each begins with a wait for memory, which
/// nothing has fetched ahead; but if all came at once, a thread that is held up would hold up all others.
const PARTS: usize = 4;

/// One of several products with the same activations: `x weight^T + bias`.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) weight: &'a Weight,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) out: Out<'a>,
}

/// Product with a weight matrix.
pub(crate) fn matmul(exec: &mut Exec<'_>, op: &MatMul) -> Result<(), BackendError> {
    let (out, x, operand) = (exec.output()?, exec.input(0)?, exec.operand(0)?);
    let weight = exec.weight(op.weight)?;
    let bias = op.bias.map(|id| exec.vector(id)).transpose()?;
    let product = Product { weight, bias, out };
    if op.logits && exec.activations == Activations::Quantized && is_dot_format(weight.format) {
        return logits(exec, product, x);
    }
    products(exec, &[product], operand, x, None)
}

/// A product with activations of nearly 16 bits: what their 8-bit form leaves is quantised too, and both are
/// multiplied in one pass over the weights, which costs nothing where reading those takes the time.
///
/// About a fifth of the divergence that quantised activations cause comes from here, if this is not done (SmolLM2; see
/// `docs/performance.md`).
fn logits(exec: &mut Exec<'_>, product: Product<'_>, x: In<'_>) -> Result<(), BackendError> {
    check(&product, x)?;
    let mut memory = std::mem::take(&mut exec.temporaries.logits);
    let result = logits_steps(exec, product, x, &mut memory);
    exec.temporaries.logits = memory;
    result
}

/// Memory of [`logits`].
#[derive(Default)]
pub(crate) struct LogitsScratch {
    /// Activations, then their remainders.
    values: Vec<f32>,
    quantised: QuantMatrix,
    /// The products of both.
    sums: Vec<f32>,
}

fn logits_steps(
    exec: &mut Exec<'_>,
    product: Product<'_>,
    x: In<'_>,
    memory: &mut LogitsScratch,
) -> Result<(), BackendError> {
    let (Product { weight, bias, out }, kernels) = (product, exec.kernels);
    let LogitsScratch { values, quantised, sums } = memory;
    for first in (0..x.rows).step_by(LOGIT_TOKENS) {
        let tokens = LOGIT_TOKENS.min(x.rows - first);
        values.clear();
        for token in first..first + tokens {
            // SAFETY: `cols` elements, which nothing writes to.
            values.extend_from_slice(unsafe { std::slice::from_raw_parts(x.row(token), x.cols) });
        }
        quantised.fill(kernels, exec.pool, values, x.cols)?;
        for token in 0..tokens {
            let row = quantised.row(token);
            for (b, d) in row.d.iter().enumerate() {
                for (i, q) in row.q[32 * b..][..32].iter().enumerate() {
                    values.push(values[token * x.cols + 32 * b + i] - d * f32::from(*q));
                }
            }
        }
        quantised.fill(kernels, exec.pool, values, x.cols)?;
        if sums.len() < 2 * tokens * weight.rows {
            sums.resize(2 * tokens * weight.rows, 0.0);
        }
        let both = Out::new(sums, 2 * tokens, weight.rows);
        let parts = [Product { weight, bias: None, out: both }];
        multiply(exec.pool, kernels, exec.workers, &parts, Some(quantised), None, None)?;
        exec.pool.run(tokens * weight.rows, CHUNK_BYTES, &|_, range| {
            let mut range = range;
            while range.start < range.end {
                let (token, column) = (range.start / weight.rows, range.start % weight.rows);
                let n = (weight.rows - column).min(range.len());
                range.start += n;
                let y = out.row(first + token).wrapping_add(column);
                let at = |row: usize| both.row(row).wrapping_add(column).cast_const();
                // SAFETY: these results are this range's alone; `add` allows the result to be an input.
                unsafe {
                    (kernels.add)(y, at(token), at(tokens + token), n);
                    if let Some(bias) = bias {
                        (kernels.add)(y, y, bias[column..].as_ptr(), n);
                    }
                }
            }
        })?;
    }
    Ok(())
}

/// Several products with `x`, which lies at `operand`, in one go. No result shares memory with `x`.
///
/// With `gate`, there are two, of the same shape, and the first result becomes `activation(first) * second`.
pub(crate) fn products(
    exec: &mut Exec<'_>,
    products: &[Product<'_>],
    operand: Operand,
    x: In<'_>,
    gate: Option<Activation>,
) -> Result<(), BackendError> {
    for product in products {
        check(product, x)?;
    }
    if gate.is_some() {
        equal("products of a gate", products.len(), 2)?;
        equal("rows of both weights of a gate", products[1].weight.rows, products[0].weight.rows)?;
    }
    if x.rows == 0 {
        return Ok(());
    }
    let quantised_weights = |product: &Product<'_>| is_dot_format(product.weight.format);
    let integers = exec.activations == Activations::Quantized && products.iter().any(quantised_weights);
    // SAFETY: nothing writes to the input during the operation.
    let values = unsafe { x.as_slice() };
    let quantised = if integers {
        Some(exec.quant.get(exec.kernels, exec.pool, operand, exec.call.epoch, values)?)
    } else {
        None
    };

    multiply(exec.pool, exec.kernels, exec.workers, products, quantised, Some(x), gate)
}

/// Checks the shapes of a product with `x`.
fn check(product: &Product<'_>, x: In<'_>) -> Result<(), BackendError> {
    let Product { weight, bias, out } = product;
    equal("columns of input 0", x.cols, weight.cols)?;
    equal("rows of the result", out.rows, x.rows)?;
    equal("columns of the result", out.cols, weight.rows)?;
    bias.map_or(Ok(()), |bias| equal("elements of the bias", bias.len(), weight.rows))
}

/// The work of [`products`]: with quantised activations, with float ones, or with each where its format wants it.
fn multiply(
    pool: &mut Pool,
    kernels: &Kernels,
    workers: &Workers,
    products: &[Product<'_>],
    quantised: Option<&QuantMatrix>,
    x: Option<In<'_>>,
    gate: Option<Activation>,
) -> Result<(), BackendError> {
    let all_tokens = products.first().map_or(0, |product| product.out.rows);
    // Row groups are counted through all products, or, with a gate, through both at once.
    let groups_of = |product: &Product<'_>| product.weight.rows.div_ceil(ROW_GROUP);
    let each = if gate.is_some() { 2 } else { 1 };
    let groups: usize = products.iter().step_by(each).map(groups_of).sum();
    let bytes: usize = products.iter().map(|product| product.weight.bytes.len()).sum();
    let threads = pool.threads();
    let token_groups = if groups >= 4 * threads { 1 } else { all_tokens.div_ceil(TOKEN_GROUP) };
    let tokens_each = all_tokens.div_ceil(token_groups).next_multiple_of(4);
    let items = groups * token_groups;
    let chunk = chunk_of(items, threads, bytes / groups.max(1) * tokens_each.min(all_tokens));
    let failed = Mutex::new(None);
    let run = |product: &Product<'_>, rows: Range<usize>, tokens: Range<usize>, scratch: &mut Scratch| {
        // SAFETY: the pool hands each row of each product to one worker at a time, which calls this for it.
        let done = unsafe { tile(kernels, product, quantised, x, rows, tokens, scratch) };
        if let Err(error) = done {
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    };
    pool.run(items, chunk, &|worker, range| {
        // SAFETY: the pool's index, and the one reference in this body.
        let scratch = unsafe { workers.of(worker) };
        let mut item = range.start;
        while item < range.end {
            let (token_group, mut group) = (item / groups, item % groups);
            let tokens = (token_group * tokens_each).min(all_tokens)
                ..((token_group + 1) * tokens_each).min(all_tokens);
            let mut index = 0;
            while group >= groups_of(&products[index]) {
                group -= groups_of(&products[index]);
                index += each;
            }
            let product = &products[index];
            // Groups that follow each other, of one product and one token group.
            let last = (group + range.end - item).min(groups_of(product));
            item += last - group;
            let rows = group * ROW_GROUP..(last * ROW_GROUP).min(product.weight.rows);
            match gate {
                None => run(product, rows, tokens, scratch),
                Some(kind) => {
                    // Few rows at a time, so that both results are still in the cache when they meet.
                    for first in rows.clone().step_by(ROW_GROUP) {
                        let rows = first..rows.end.min(first + ROW_GROUP);
                        run(product, rows.clone(), tokens.clone(), scratch);
                        run(&products[1], rows.clone(), tokens.clone(), scratch);
                        for token in tokens.clone() {
                            let gate = product.out.row(token).wrapping_add(rows.start);
                            let up = products[1].out.row(token).wrapping_add(rows.start);
                            // SAFETY: these results are this item's alone; the result may be an input.
                            unsafe { (kernels.gated)(gate, gate, up, kind, rows.len()) };
                        }
                    }
                }
            }
        }
    })?;
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// How many of `items` are handed out together, each of which reads weights of this many bytes, or multiplies them so often
/// that it takes as long.
pub(crate) fn chunk_of(items: usize, threads: usize, bytes: usize) -> usize {
    let share = (items / (threads * PARTS)).max(CHUNK_BYTES / bytes.max(1));
    share.clamp(1, items.div_ceil(threads).max(1))
}

/// Some rows of a product, for some tokens.
///
/// # Safety
/// Nobody else accesses these results meanwhile.
unsafe fn tile(
    kernels: &Kernels,
    product: &Product<'_>,
    quantised: Option<&QuantMatrix>,
    x: Option<In<'_>>,
    rows: Range<usize>,
    tokens: Range<usize>,
    scratch: &mut Scratch,
) -> Result<(), BackendError> {
    let Product { weight, bias, out } = *product;
    match quantised.filter(|_| is_dot_format(weight.format)) {
        Some(activations) => {
            let tile = DotTile {
                format: weight.format,
                weights: &weight.bytes,
                packed: weight.packed().map(Packed::view),
                cols: weight.cols,
                activations,
                out,
            };
            // SAFETY: the table is for this processor; the results are the caller's.
            unsafe { (kernels.dot_tile)(&tile, rows.clone(), tokens.clone(), &mut scratch.panel) };
        }
        None => {
            let x = x.ok_or_else(|| invariant("activations", "float ones", "none"))?;
            let put = |token: usize, row: usize, y: f32| {
                // SAFETY: these results are the caller's.
                unsafe { *out.row(token).wrapping_add(row) = y }
            };
            // SAFETY: rows of the weight's width, as was checked, which nothing writes to.
            unsafe {
                float_rows(
                    kernels,
                    weight,
                    rows.clone(),
                    tokens.clone(),
                    &|token| x.row(token),
                    put,
                    scratch,
                )?
            };
        }
    }
    if let Some(bias) = bias {
        for token in tokens {
            let y = out.row(token).wrapping_add(rows.start);
            // SAFETY: the results are the caller's; `add` allows the result to be an input.
            unsafe { (kernels.add)(y, y, bias[rows.clone()].as_ptr(), rows.len()) }
        }
    }
    Ok(())
}

/// Products of some rows with some tokens in f32. `x` gives a token's activations, `put` takes token, row and product.
///
/// # Safety
/// `x` gives pointers to as many floats as the weight has columns, which nothing writes to meanwhile.
pub(crate) unsafe fn float_rows(
    kernels: &Kernels,
    weight: &Weight,
    rows: Range<usize>,
    tokens: Range<usize>,
    x: &impl Fn(usize) -> *const f32,
    put: impl Fn(usize, usize, f32),
    scratch: &mut Scratch,
) -> Result<(), BackendError> {
    let n = weight.cols;
    let Scratch { floats, .. } = scratch;
    if floats.len() < n {
        floats.resize(n, 0.0);
    }
    for row in rows {
        let w = if weight.format == Format::F32 {
            // In place: registration has aligned the bytes.
            bytemuck::cast_slice(weight.row(row))
        } else {
            decode_row(kernels, weight.format, weight.row(row), &mut floats[..n])?;
            &floats[..n]
        };
        // SAFETY: `w` has `n` elements.
        unsafe { dot_tokens(kernels, w, x, tokens.clone(), |token, y| put(token, row, y)) };
    }
    Ok(())
}

/// Products of one row with some tokens, four at a time.
///
/// # Safety
/// `x` gives pointers to `w.len()` floats, which nothing writes to meanwhile.
unsafe fn dot_tokens(
    kernels: &Kernels,
    w: &[f32],
    x: &impl Fn(usize) -> *const f32,
    tokens: Range<usize>,
    put: impl Fn(usize, f32),
) {
    let mut token = tokens.start;
    while tokens.end - token >= 4 {
        // SAFETY: the caller's, and the table is for this processor.
        let y = unsafe { (kernels.dot4)(w.as_ptr(), std::array::from_fn(|t| x(token + t)), w.len()) };
        for (t, y) in y.into_iter().enumerate() {
            put(token + t, y);
        }
        token += 4;
    }
    for token in token..tokens.end {
        // SAFETY: as above.
        let [y] = unsafe { (kernels.dot1)(w.as_ptr(), [x(token)], w.len()) };
        put(token, y);
    }
}

/// Products of pairs of activation matrices.
pub(crate) fn batch_matmul(exec: &mut Exec<'_>, op: &BatchMatMul) -> Result<(), BackendError> {
    let (out, a, b) = (exec.output()?, exec.input(0)?, exec.input(1)?);
    if op.batch == 0 || !a.rows.is_multiple_of(op.batch) || !b.rows.is_multiple_of(op.batch) {
        return Err(invariant(
            "rows",
            format!("multiples of the batch {}", op.batch),
            format!("{} and {}", a.rows, b.rows),
        ));
    }
    let (m, n) = (a.rows / op.batch, b.rows / op.batch);
    equal("columns of input 1", b.cols, a.cols)?;
    equal("rows of the result", out.rows, a.rows)?;
    equal("columns of the result", out.cols, n)?;
    let kernels = exec.kernels;
    exec.pool.run(b.rows, (CHUNK_BYTES / (m * a.cols).max(1)).max(1), &|_, range| {
        for row in range {
            let (pair, column) = (row / n, row % n);
            // SAFETY: `cols` elements, which nothing writes to.
            let w = unsafe { std::slice::from_raw_parts(b.row(row), b.cols) };
            let put = |token: usize, y: f32| {
                // SAFETY: each element of the result is written by the item of its column.
                unsafe { *out.row(token).wrapping_add(column) = y }
            };
            // SAFETY: rows of as many columns, which nothing writes to.
            unsafe { dot_tokens(kernels, w, &|row| a.row(row), pair * m..(pair + 1) * m, put) };
        }
    })?;
    Ok(())
}
