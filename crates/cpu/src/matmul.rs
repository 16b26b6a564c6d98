//! Matrix products.
//!
//! With a quantised weight, activations are quantised too and products are made from integers
//! ([`Kernels::dot_tile`]). Float weights, and all weights where activations are left in f32, are decoded row by row
//! and multiplied in f32. In both, the order of an output element's sum depends on the width alone, so the result for
//! a token is the same in any batch.

use crate::backend::Activations;
use crate::exec::{Exec, In, Out, Scratch, equal, invariant};
use crate::rows::decode_row;
use crate::simd::blocks::is_dot_format;
use crate::simd::{DotTile, Kernels};
use crate::weights::Weight;
use graph::ops::{BatchMatMul, MatMul};
use graph::{BackendError, Operand};
use quant::Format;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Weight rows that are handed out together; kernels work on as many at a time.
const ROW_GROUP: usize = 16;
/// Tokens that are handed out together when rows alone do not make enough work for all threads.
const TOKEN_GROUP: usize = 64;
/// Multiplications worth waking another thread for.
const CHUNK_WORK: usize = 1 << 17;

/// Product with a weight matrix.
pub(crate) fn matmul(exec: &mut Exec<'_>, op: &MatMul) -> Result<(), BackendError> {
    let (out, x, operand) = (exec.output()?, exec.input(0)?, exec.operand(0)?);
    let weight = exec.weight(op.weight)?;
    let bias = op.bias.map(|id| exec.vector(id)).transpose()?;
    product(exec, weight, bias, operand, x, out)
}

/// `x weight^T + bias`; `operand` tells where `x` lies. The result shares no memory with `x`.
pub(crate) fn product(
    exec: &mut Exec<'_>,
    weight: &Weight,
    bias: Option<&[f32]>,
    operand: Operand,
    x: In<'_>,
    out: Out<'_>,
) -> Result<(), BackendError> {
    equal("columns of input 0", x.cols, weight.cols)?;
    equal("rows of the result", out.rows, x.rows)?;
    equal("columns of the result", out.cols, weight.rows)?;
    if let Some(bias) = bias {
        equal("elements of the bias", bias.len(), weight.rows)?;
    }
    if x.rows == 0 || weight.rows == 0 {
        return Ok(());
    }
    let integers = exec.activations == Activations::Quantized && is_dot_format(weight.format);
    if integers && exec.kernels.packs {
        weight.pack(exec.pool)?;
    }
    // SAFETY: nothing writes to the input during the operation.
    let values = unsafe { x.as_slice() };
    let quantised = if integers {
        Some(exec.quant.get(exec.kernels, exec.pool, operand, exec.call.epoch, values)?)
    } else {
        None
    };
    let tile = quantised.map(|activations| DotTile {
        format: weight.format,
        weights: &weight.bytes,
        packed: weight.packed(),
        cols: weight.cols,
        activations,
        out,
    });

    let groups = weight.rows.div_ceil(ROW_GROUP);
    let threads = exec.pool.threads();
    let token_groups = if groups >= 4 * threads { 1 } else { x.rows.div_ceil(TOKEN_GROUP) };
    let tokens_each = x.rows.div_ceil(token_groups).next_multiple_of(4);
    let work = ROW_GROUP * weight.cols * tokens_each.min(x.rows);
    let chunk = (CHUNK_WORK / work.max(1)).max(1).min((groups * token_groups).div_ceil(threads));
    let (kernels, workers) = (exec.kernels, exec.workers);
    let failed = Mutex::new(None);
    exec.pool.run(groups * token_groups, chunk, &|worker, items| {
        // SAFETY: the pool's index, and the one reference in this body.
        let scratch = unsafe { workers.of(worker) };
        let mut item = items.start;
        while item < items.end {
            // Row groups that follow each other, of one token group.
            let (token_group, group) = (item / groups, item % groups);
            let last = (group + items.end - item).min(groups);
            item += last - group;
            let rows = group * ROW_GROUP..(last * ROW_GROUP).min(weight.rows);
            let tokens =
                (token_group * tokens_each).min(x.rows)..((token_group + 1) * tokens_each).min(x.rows);
            match &tile {
                // SAFETY: the table is for this processor, and these results are this item's alone.
                Some(tile) => unsafe {
                    (kernels.dot_tile)(tile, rows.clone(), tokens.clone(), &mut scratch.panel);
                },
                None => {
                    if let Err(error) =
                        float_tile(kernels, weight, x, out, rows.clone(), tokens.clone(), scratch)
                    {
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        return;
                    }
                }
            }
            if let Some(bias) = bias {
                for token in tokens {
                    let y = out.row(token).wrapping_add(rows.start);
                    // SAFETY: these results are this item's alone; `add` allows the result to be an input.
                    unsafe { (kernels.add)(y, y, bias[rows.clone()].as_ptr(), rows.len()) }
                }
            }
        }
    })?;
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Products of some rows with some tokens in f32.
fn float_tile(
    kernels: &Kernels,
    weight: &Weight,
    x: In<'_>,
    out: Out<'_>,
    rows: Range<usize>,
    tokens: Range<usize>,
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
        dot_tokens(kernels, w, x, tokens.clone(), |token, y| {
            // SAFETY: these results are this item's alone.
            unsafe { *out.row(token).wrapping_add(row) = y }
        });
    }
    Ok(())
}

/// Products of one row with some tokens, four at a time.
fn dot_tokens(kernels: &Kernels, w: &[f32], x: In<'_>, tokens: Range<usize>, put: impl Fn(usize, f32)) {
    let mut token = tokens.start;
    while tokens.end - token >= 4 {
        // SAFETY: all rows have `w.len()` elements, and nothing writes to them.
        let y = unsafe { (kernels.dot4)(w.as_ptr(), std::array::from_fn(|t| x.row(token + t)), w.len()) };
        for (t, y) in y.into_iter().enumerate() {
            put(token + t, y);
        }
        token += 4;
    }
    for token in token..tokens.end {
        // SAFETY: as above.
        let [y] = unsafe { (kernels.dot1)(w.as_ptr(), [x.row(token)], w.len()) };
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
    exec.pool.run(b.rows, (CHUNK_WORK / (m * a.cols).max(1)).max(1), &|_, range| {
        for row in range {
            let (pair, column) = (row / n, row % n);
            // SAFETY: `cols` elements, which nothing writes to.
            let w = unsafe { std::slice::from_raw_parts(b.row(row), b.cols) };
            dot_tokens(kernels, w, a, pair * m..(pair + 1) * m, |token, y| {
                // SAFETY: each element of the result is written by the item of its column.
                unsafe { *out.row(token).wrapping_add(column) = y }
            });
        }
    })?;
    Ok(())
}
