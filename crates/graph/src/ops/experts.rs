//! Mixtures of experts: products with the matrices of the experts that a router chose for each token, and their sum.
//!
//! A router is made of other operations: a product for its logits, [`TopK`](super::TopK) for the choice,
//! [`GatherCols`](super::Op::GatherCols) and [`Softmax`](super::Softmax), in this or the other order, for the weights.

use super::{arity, equal, typed};
use crate::{DType, Graph, Shape, WeightId};

/// `y[t * used + j, o] = sum_i weight[e * out + o, i] * x[r, i] + bias[e, o]` with the expert `e = indices[t, j]` and
/// the row `r`: `t` where `x` has a row for each token, `t * used + j` where it has one for each choice.
///
/// Inputs: `x` f32, `[tokens, in]` or `[tokens * used, in]`, and the indices, i32 `[tokens, used]`; result f32
/// `[tokens * used, out]`. An index that is no expert's is an error of the backend where the host can see it; a kernel that
/// cannot report it gives a row of NaNs, and reads nothing outside the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMatMul {
    /// The experts' matrices, of any format, one below the other: `[experts * out, in]`.
    pub weight: WeightId,
    /// A row of `out` elements for each expert: `[experts, out]`.
    pub bias: Option<WeightId>,
    /// Matrices in the weight.
    pub experts: usize,
    /// Experts chosen for each token.
    pub used: usize,
}

impl ExpertMatMul {
    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x, indices] = arity(inputs)?;
        let (x, indices) = (typed("input 0", x, DType::F32)?, typed("indices", indices, DType::I32)?);
        let weight = graph.weight(self.weight);
        if self.experts == 0 || !weight.rows.is_multiple_of(self.experts) {
            return Err(format!(
                "rows of '{}': expected a multiple of {} experts, found {}",
                weight.name, self.experts, weight.rows
            ));
        }
        if self.used == 0 {
            return Err("expected at least 1 expert for each token, found 0".into());
        }
        equal("columns of the indices", indices.cols, self.used)?;
        equal(&format!("columns of '{}'", weight.name), weight.cols, x.cols)?;
        let choices = indices.elements();
        if x.rows != indices.rows && x.rows != choices {
            return Err(format!(
                "rows of input 0: expected {} (one for each token) or {choices} (one for each choice), found {}",
                indices.rows, x.rows
            ));
        }
        let out = weight.rows / self.experts;
        if let Some(bias) = self.bias {
            let bias = graph.weight(bias);
            equal(&format!("rows of '{}'", bias.name), bias.rows, self.experts)?;
            equal(&format!("columns of '{}'", bias.name), bias.cols, out)?;
        }
        Ok((Shape::new(choices, out), DType::F32))
    }
}

pub(super) fn infer_combine(inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
    let [y, weights] = arity(inputs)?;
    let (y, weights) = (typed("input 0", y, DType::F32)?, typed("weights", weights, DType::F32)?);
    equal("rows of input 0", y.rows, weights.elements())?;
    Ok((Shape::new(weights.rows, y.cols), DType::F32))
}
