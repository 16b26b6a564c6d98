//! Operations that do several steps in one node.

use super::cache::{self, QkvFinish};
use super::elementwise;
use super::matmul::{self, Product};
use crate::device::Device;
use crate::pass::{Pass, equal};
use graph::ops::{FusedFfn, FusedQkv, QkvBiasRopeStore};
use graph::{BackendError, DType, Shape};

/// Projections to query, key and value, biases, norms, rotation and store: the products of all three in one dispatch,
/// the rest in another.
pub(super) fn qkv<D: Device>(pass: &mut Pass<'_, D>, op: &FusedQkv) -> Result<(), BackendError> {
    let (x, positions, rows, queries) = (pass.input(0)?, pass.input(1)?, pass.input(2)?, pass.output()?);
    let [q, k, v] = op.weights;
    let weights = [pass.weight(q)?, pass.weight(k)?, pass.weight(v)?];
    let biases = match op.biases {
        Some([q, k, v]) => vec![pass.weight(q)?, pass.weight(k)?, pass.weight(v)?],
        None => Vec::new(),
    };
    let norms = match op.norms {
        Some(([query, key], epsilon)) => Some(([pass.weight(query)?, pass.weight(key)?], epsilon)),
        None => None,
    };
    let head_dim = match (&op.rope, &norms) {
        (Some(rope), _) => rope.head_dim,
        (None, Some(([query, _], _))) => query.rows * query.cols,
        // Nothing in the steps tells heads apart: any width that divides all will do.
        (None, None) => common_width(weights.each_ref().map(|weight| weight.rows)),
    };
    let cols = weights.iter().map(|weight| weight.rows).sum();
    let qkv = pass.scratch(DType::F32, Shape::new(x.shape.rows, cols))?;
    let product = Product { weights: &weights, biases: &biases, gate: None };
    matmul::products(pass, "qkv", &product, &x, &qkv)?;
    let norms = norms.as_ref().map(|(weights, epsilon)| (weights, *epsilon));
    let finish = QkvFinish {
        qkv: &qkv,
        queries: &queries,
        positions: &positions,
        rows: &rows,
        biases: None,
        norms,
        rope: op.rope.as_ref(),
        head_dim,
    };
    cache::qkv_finish(pass, "finish", &finish)
}

/// Biases, rotation and store after a product of all three.
pub(super) fn qkv_bias_rope_store<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &QkvBiasRopeStore,
) -> Result<(), BackendError> {
    let (qkv, positions, rows, queries) = (pass.input(0)?, pass.input(1)?, pass.input(2)?, pass.output()?);
    equal("columns of the result", queries.shape.cols, op.query_cols)?;
    let biases = match op.biases {
        Some([q, k, v]) => Some([pass.weight(q)?, pass.weight(k)?, pass.weight(v)?]),
        None => None,
    };
    let head_dim = match &op.rope {
        Some(rope) => rope.head_dim,
        None => {
            let keys = pass.state(graph::StatePart::Key)?.shape.cols;
            let values = pass.state(graph::StatePart::Value)?.shape.cols;
            common_width([op.query_cols, keys, values])
        }
    };
    let finish = QkvFinish {
        qkv: &qkv,
        queries: &queries,
        positions: &positions,
        rows: &rows,
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
    elementwise::gated_step(pass, op.activation, &gate, &y, &y)
}

/// The widest head of a power of two up to 256 that divides all; 0 if none of at least 4 does.
fn common_width(cols: [usize; 3]) -> usize {
    let widths = [256, 128, 64, 32, 16, 8, 4];
    widths.into_iter().find(|width| cols.iter().all(|cols| cols.is_multiple_of(*width))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::common_width;

    #[test]
    fn heads_of_a_common_width() {
        assert_eq!(common_width([576, 192, 192]), 64);
        assert_eq!(common_width([512, 256, 256]), 256);
        assert_eq!(common_width([12, 4, 4]), 4);
        assert_eq!(common_width([10, 4, 4]), 0);
    }
}
