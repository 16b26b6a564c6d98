//! Operations that do several steps in one node.

use super::cache::{self, QkvFinish};
use super::elementwise;
use super::matmul::{self, Product};
use crate::device::Device;
use crate::fusion::Held;
use crate::pass::{Pass, equal, invariant};
use graph::ops::{FusedFfn, FusedQkv, QkvBiasRopeStore, Rope};
use graph::{BackendError, DType, Op, Operand, Shape, StatePart, WeightId};

/// Projections to query, key and value, biases, norms, rotation and store: the products of all three side by side, and
/// the rest in a dispatch.
pub(super) fn qkv<D: Device>(pass: &mut Pass<'_, D>, op: &FusedQkv) -> Result<(), BackendError> {
    let &[x, positions, rows] = pass.call().inputs else {
        return Err(invariant("inputs", 3, pass.call().inputs.len()));
    };
    let steps = Steps {
        x: &x,
        positions: &positions,
        rows: &rows,
        queries: &pass.call().output,
        weights: op.weights,
        biases: op.biases,
        norms: op.norms,
        rope: op.rope.as_ref(),
    };
    project(pass, &steps)
}

/// The same of nodes that were held, and of the pass's own node, which stores.
pub(super) fn qkv_chain<D: Device>(pass: &mut Pass<'_, D>, held: &[Held]) -> Result<(), BackendError> {
    let graph = pass.call().graph;
    let [query, key, value, rest @ ..] = held else {
        return Err(invariant("held nodes", "at least 3", held.len()));
    };
    let rows = pass.call().inputs.get(2).ok_or_else(|| invariant("inputs", 3, pass.call().inputs.len()))?;
    let product = |held: &Held| match graph.node(held.id).op {
        Op::MatMul(op) => Ok(op),
        ref op => Err(invariant("projection", "a product", op.name())),
    };
    let [q, k, v] = [product(query)?, product(key)?, product(value)?];
    let biases = match (q.bias, k.bias, v.bias) {
        (Some(q), Some(k), Some(v)) => Some([q, k, v]),
        _ => None,
    };
    // Without a rotation, positions are not looked at.
    let (mut queries, mut positions, mut norms, mut rope) = (query, rows, None, None);
    for pair in rest.chunks_exact(2) {
        match (&graph.node(pair[0].id).op, &graph.node(pair[1].id).op) {
            (Op::QkNorm(query), Op::QkNorm(key)) => norms = Some(([query.weight, key.weight], query.epsilon)),
            (Op::Rope(op), Op::Rope(_)) => (rope, positions) = (Some(op), &pair[0].inputs[1]),
            (op, _) => return Err(invariant("held node", "a norm of heads or a rotation", op.name())),
        }
        queries = &pair[0];
    }
    let weights = [q.weight, k.weight, v.weight];
    let (x, queries) = (&query.inputs[0], &queries.output);
    project(pass, &Steps { x, positions, rows, queries, weights, biases, norms, rope })
}

/// What is done from an activation to queries and a filled cache.
struct Steps<'a> {
    x: &'a Operand,
    positions: &'a Operand,
    rows: &'a Operand,
    queries: &'a Operand,
    weights: [WeightId; 3],
    biases: Option<[WeightId; 3]>,
    /// Weights and epsilon.
    norms: Option<([WeightId; 2], f32)>,
    rope: Option<&'a Rope>,
}

fn project<D: Device>(pass: &mut Pass<'_, D>, steps: &Steps<'_>) -> Result<(), BackendError> {
    let (x, queries) = (pass.operand(steps.x)?, pass.operand(steps.queries)?);
    let [q, k, v] = steps.weights;
    let weights = [pass.weight(q)?, pass.weight(k)?, pass.weight(v)?];
    let biases = match steps.biases {
        Some([q, k, v]) => vec![pass.weight(q)?, pass.weight(k)?, pass.weight(v)?],
        None => Vec::new(),
    };
    let norms = match steps.norms {
        Some(([query, key], epsilon)) => Some(([pass.weight(query)?, pass.weight(key)?], epsilon)),
        None => None,
    };
    let norm = norms.as_ref().map(|([query, _], _)| query.rows * query.cols);
    let head_dim = stored_head_dim(pass, steps.rope, norm, weights.each_ref().map(|weight| weight.rows))?;
    let cols = weights.iter().map(|weight| weight.rows).sum();
    let qkv = pass.scratch(DType::F32, Shape::new(x.shape.rows, cols))?;
    let product = Product { weights: &weights, biases: &biases, gate: None };
    matmul::products(pass, "qkv", &product, &x, &qkv)?;
    let norms = norms.as_ref().map(|(weights, epsilon)| (weights, *epsilon));
    let finish = QkvFinish {
        qkv: &qkv,
        queries: &queries,
        positions: steps.positions,
        rows: steps.rows,
        biases: None,
        norms,
        rope: steps.rope,
        head_dim,
    };
    cache::qkv_finish(pass, "finish", &finish)
}

fn stored_head_dim<D: Device>(
    pass: &Pass<'_, D>,
    rope: Option<&Rope>,
    norm: Option<usize>,
    cols: [usize; 3],
) -> Result<usize, BackendError> {
    let cache = pass.state(StatePart::Key)?.dtype;
    head_dim(rope, norm, cols, cache)
        .ok_or_else(|| invariant("columns of query, key and value", "whole heads", format!("{cols:?}")))
}

/// Biases, rotation and store after a product of all three.
pub(super) fn qkv_bias_rope_store<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &QkvBiasRopeStore,
) -> Result<(), BackendError> {
    let (qkv, queries) = (pass.input(0)?, pass.output()?);
    let [_, positions, rows] = pass.call().inputs else {
        return Err(invariant("inputs", 3, pass.call().inputs.len()));
    };
    equal("columns of the result", queries.shape.cols, op.query_cols)?;
    let biases = match op.biases {
        Some([q, k, v]) => Some([pass.weight(q)?, pass.weight(k)?, pass.weight(v)?]),
        None => None,
    };
    let keys = pass.state(StatePart::Key)?.shape.cols;
    let values = pass.state(StatePart::Value)?.shape.cols;
    let head_dim = stored_head_dim(pass, op.rope.as_ref(), None, [op.query_cols, keys, values])?;
    let finish = QkvFinish {
        qkv: &qkv,
        queries: &queries,
        positions,
        rows,
        biases: biases.as_ref(),
        norms: None,
        rope: op.rope.as_ref(),
        head_dim,
    };
    cache::qkv_finish(pass, "", &finish)
}

/// `activation(gate x) * (up x)`: one dispatch for few tokens, tiles and a dispatch of the activation for many.
pub(super) fn ffn<D: Device>(pass: &mut Pass<'_, D>, op: &FusedFfn) -> Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    let weights = [pass.weight(op.weights[0])?, pass.weight(op.weights[1])?];
    if !matmul::is_tiled(pass, x.shape.rows) && weights[0].format == weights[1].format {
        let gate = Some(op.activation);
        return matmul::products(pass, "", &Product { weights: &weights, biases: &[], gate }, &x, &y);
    }
    let gate = pass.scratch(DType::F32, y.shape)?;
    for (weight, to, step) in [(&weights[0], &gate, "gate"), (&weights[1], &y, "up")] {
        let weights = std::slice::from_ref(weight);
        matmul::products(pass, step, &Product { weights, biases: &[], gate: None }, &x, to)?;
    }
    elementwise::gated_step(pass, "gated", op.activation.into(), &gate, &y, &y)
}

/// The width of a query or key head, by what tells: the rotation, the norm, or nothing, and then any width that divides the
/// columns of query, key and value will do. `None` where the kernel cannot store such heads: it takes four elements a
/// thread, and whole blocks of the cache's type.
pub(crate) fn head_dim(
    rope: Option<&Rope>,
    norm: Option<usize>,
    [query, key, value]: [usize; 3],
    cache: DType,
) -> Option<usize> {
    let block = match cache {
        DType::Packed(format) => format.block_len(),
        _ => 4,
    };
    let fits = |&head_dim: &usize| {
        // Nothing but 0 is a multiple of 0.
        key > 0
            && query.is_multiple_of(head_dim)
            && key.is_multiple_of(head_dim)
            && head_dim.is_multiple_of(block)
            && value.is_multiple_of(key / head_dim)
            && (value / (key / head_dim)).is_multiple_of(block)
    };
    match rope.map(|rope| rope.head_dim).or(norm) {
        Some(head_dim) => Some(head_dim).filter(fits),
        None => [256, 128, 64, 32, 16, 8].into_iter().chain((1..=64).rev().map(|fours| 4 * fours)).find(fits),
    }
}

#[cfg(test)]
mod tests {
    use super::head_dim;
    use graph::DType;
    use quant::Format;

    #[test]
    fn heads_of_a_common_width() {
        let width = |cols, cache| head_dim(None, None, cols, cache);
        assert_eq!(width([576, 192, 192], DType::F32), Some(64));
        assert_eq!(width([512, 256, 256], DType::F16), Some(256));
        assert_eq!(width([12, 4, 4], DType::F32), Some(4));
        assert_eq!(width([12, 4, 4], DType::Packed(Format::Q8_0)), None);
        assert_eq!(width([1088, 272, 16], DType::F16), Some(136));
        assert_eq!(width([10, 4, 4], DType::F32), None);
        assert_eq!(width([4, 0, 0], DType::F32), None);
        assert_eq!(head_dim(None, Some(4), [8, 6, 4], DType::F32), None);
        assert_eq!(head_dim(None, Some(0), [8, 4, 4], DType::F32), None);
        assert_eq!(head_dim(None, Some(80), [160, 80, 80], DType::F16), Some(80));
        assert_eq!(head_dim(None, Some(80), [160, 80, 80], DType::Packed(Format::Q8_0)), None);
        for (dim, cols, fits) in [
            (64, [64, 128, 64], true),
            (64, [96, 64, 64], false),
            (80, [160, 80, 64], false),
            (64, [64, 64, 80], false),
            (64, [128, 128, 65], false),
        ] {
            let found = head_dim(None, Some(dim), cols, DType::Packed(Format::Q8_0));
            assert_eq!(found, fits.then_some(dim), "{dim} of {cols:?}");
        }
    }
}
