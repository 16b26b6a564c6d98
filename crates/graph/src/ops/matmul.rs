//! Matrix products.

use super::{arity, equal, typed};
use crate::{DType, Graph, Shape, WeightId};

/// `y[t, o] = sum_i weight[o, i] * x[t, i] + bias[o]`. Input: `x` f32, `[tokens, in]`; result `[tokens, out]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMul {
    /// `[out, in]`, of any format.
    pub weight: WeightId,
    /// A vector of `out` elements.
    pub bias: Option<WeightId>,
    /// Whether the results are logits: few rows, and errors that nothing evens out any more. A backend that rounds
    /// activations rounds these finer.
    pub logits: bool,
}

/// `batch` products `y_b = a_b * b_b^T`. Inputs, both f32: `a`, `[batch * m, k]`, and `b`, `[batch * n, k]`; result
/// `[batch * m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchMatMul {
    /// Pairs of matrices, one below the other.
    pub batch: usize,
}

impl MatMul {
    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x] = arity(inputs)?;
        let x = typed("input 0", x, DType::F32)?;
        let weight = graph.weight(self.weight);
        equal(&format!("columns of '{}'", weight.name), weight.cols, x.cols)?;
        if let Some(bias) = self.bias {
            let bias = graph.weight(bias);
            equal(&format!("elements of '{}'", bias.name), bias.elements(), weight.rows)?;
        }
        Ok((Shape::new(x.rows, weight.rows), DType::F32))
    }
}

impl BatchMatMul {
    pub(super) fn infer(&self, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [a, b] = arity(inputs)?;
        let (a, b) = (typed("input 0", a, DType::F32)?, typed("input 1", b, DType::F32)?);
        equal("columns of input 1", b.cols, a.cols)?;
        if self.batch == 0 || !a.rows.is_multiple_of(self.batch) || !b.rows.is_multiple_of(self.batch) {
            return Err(format!(
                "rows: expected multiples of the batch {}, found {} and {}",
                self.batch, a.rows, b.rows
            ));
        }
        Ok((Shape::new(a.rows, b.rows / self.batch), DType::F32))
    }
}
