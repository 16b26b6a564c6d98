//! Operations that do several steps in one node: here, the steps one after the other, with the same bits.

use crate::exec::{Exec, Out, equal, invariant};
use crate::matmul::Product;
use crate::{cache, matmul, norm, rope};
use graph::BackendError;
use graph::ops::{FusedFfn, FusedQkv, QkvBiasRopeStore};

/// Projections to query, key and value, biases, norms, rotation and store.
pub(crate) fn qkv(exec: &mut Exec<'_>, op: &FusedQkv) -> Result<(), BackendError> {
    let mut memory = std::mem::take(&mut exec.temporaries.fused);
    let result = qkv_steps(exec, op, &mut memory);
    exec.temporaries.fused = memory;
    result
}

fn qkv_steps(exec: &mut Exec<'_>, op: &FusedQkv, memory: &mut [Vec<f32>; 3]) -> Result<(), BackendError> {
    let (out, x, operand) = (exec.output()?, exec.input(0)?, exec.operand(0)?);
    let [_, key_memory, value_memory] = memory;
    let [_, key_cols, value_cols] = [
        exec.weight(op.weights[0])?.rows,
        exec.weight(op.weights[1])?.rows,
        exec.weight(op.weights[2])?.rows,
    ];
    let keys = temporary(key_memory, x.rows, key_cols);
    let values = temporary(value_memory, x.rows, value_cols);
    let part = |i: usize, out| {
        let weight = exec.weight(op.weights[i])?;
        let bias = op.biases.map(|biases| exec.vector(biases[i])).transpose()?;
        Ok::<_, BackendError>(Product { weight, bias, out })
    };
    let parts = [part(0, out)?, part(1, keys)?, part(2, values)?];
    matmul::products(exec, &parts, operand, x, None)?;
    if let Some((weights, epsilon)) = op.norms {
        for (weight, to) in weights.into_iter().zip([out, keys]) {
            let weight = exec.vector(weight)?;
            norm::normalise(exec.kernels, exec.pool, to.as_in(), Some(weight), weight.len(), epsilon, to)?;
        }
    }
    if let Some(rope) = &op.rope {
        rope::turn(exec, rope, 1, out.as_in(), out)?;
        rope::turn(exec, rope, 1, keys.as_in(), keys)?;
    }
    cache::store(exec, keys.as_in(), values.as_in(), 2)
}

/// Biases, rotation and store after the concatenated product.
pub(crate) fn qkv_bias_rope_store(exec: &mut Exec<'_>, op: &QkvBiasRopeStore) -> Result<(), BackendError> {
    let mut memory = std::mem::take(&mut exec.temporaries.fused);
    let result = bias_rope_store_steps(exec, op, &mut memory);
    exec.temporaries.fused = memory;
    result
}

fn bias_rope_store_steps(
    exec: &mut Exec<'_>,
    op: &QkvBiasRopeStore,
    memory: &mut [Vec<f32>; 3],
) -> Result<(), BackendError> {
    let (out, x) = (exec.output()?, exec.input(0)?);
    let [_, key_memory, value_memory] = memory;
    let key_cols = exec.state_part(graph::StatePart::Key)?.cols;
    let value_cols = exec.state_part(graph::StatePart::Value)?.cols;
    equal("columns of input 0", x.cols, op.query_cols + key_cols + value_cols)?;
    equal("rows of the result", out.rows, x.rows)?;
    equal("columns of the result", out.cols, op.query_cols)?;
    let keys = temporary(key_memory, x.rows, key_cols);
    let values = temporary(value_memory, x.rows, value_cols);
    let mut first = 0;
    for (i, to) in [out, keys, values].into_iter().enumerate() {
        let bias = op.biases.map(|biases| exec.vector(biases[i])).transpose()?;
        if bias.is_some_and(|bias| bias.len() != to.cols) {
            return Err(invariant("elements of a bias", to.cols, bias.map_or(0, <[f32]>::len)));
        }
        for row in 0..x.rows {
            let src = x.row(row).wrapping_add(first);
            // SAFETY: `cols` elements of the input's row from `first` on, and of the result's row; apart from each
            // other, since the result may not alias the input.
            unsafe {
                match bias {
                    Some(bias) => (exec.kernels.add)(to.row(row), src, bias.as_ptr(), to.cols),
                    None => std::ptr::copy_nonoverlapping(src, to.row(row), to.cols),
                }
            }
        }
        first += to.cols;
    }
    if let Some(rope) = &op.rope {
        rope::turn(exec, rope, 1, out.as_in(), out)?;
        rope::turn(exec, rope, 1, keys.as_in(), keys)?;
    }
    cache::store(exec, keys.as_in(), values.as_in(), 2)
}

/// Gate and up projections and their product.
pub(crate) fn ffn(exec: &mut Exec<'_>, op: &FusedFfn) -> Result<(), BackendError> {
    let mut memory = std::mem::take(&mut exec.temporaries.fused);
    let result = ffn_steps(exec, op, &mut memory);
    exec.temporaries.fused = memory;
    result
}

fn ffn_steps(exec: &mut Exec<'_>, op: &FusedFfn, memory: &mut [Vec<f32>; 3]) -> Result<(), BackendError> {
    let (out, x, operand) = (exec.output()?, exec.input(0)?, exec.operand(0)?);
    let (gate, up) = (exec.weight(op.weights[0])?, exec.weight(op.weights[1])?);
    let ups = temporary(&mut memory[0], x.rows, up.rows);
    let parts = [Product { weight: gate, bias: None, out }, Product { weight: up, bias: None, out: ups }];
    matmul::products(exec, &parts, operand, x, Some(op.activation))
}

/// A matrix in reused memory.
fn temporary(memory: &mut Vec<f32>, rows: usize, cols: usize) -> Out<'_> {
    if memory.len() < rows * cols {
        memory.resize(rows * cols, 0.0);
    }
    Out::new(memory, rows, cols)
}
