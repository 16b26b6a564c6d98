//! Normalisations of rows.

use super::{arity, equal, typed};
use crate::{DType, Graph, Shape, WeightId};

/// `y = x / sqrt(mean(x^2) + epsilon) * weight`, over each row (Zhang and Sennrich 2019). Input: `x` f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// A vector of a row's width; without one, the result is not scaled.
    pub weight: Option<WeightId>,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// [`RmsNorm`] of each head of each row on its own. Input: `x` f32, heads side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// A vector of a head's width.
    pub weight: WeightId,
    /// Added to the mean square.
    pub epsilon: f32,
    /// Width of a head.
    pub head_dim: usize,
}

/// `exp(scale * x - max) / sum`, over each row. Input: `x` f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax {
    /// Multiplies the input.
    pub scale: f32,
}

impl RmsNorm {
    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x] = arity(inputs)?;
        let x = typed("input 0", x, DType::F32)?;
        if let Some(weight) = self.weight {
            equal("elements of the weight", graph.weight(weight).elements(), x.cols)?;
        }
        Ok((x, DType::F32))
    }
}

impl QkNorm {
    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x] = arity(inputs)?;
        let x = typed("input 0", x, DType::F32)?;
        equal("elements of the weight", graph.weight(self.weight).elements(), self.head_dim)?;
        if self.head_dim == 0 || !x.cols.is_multiple_of(self.head_dim) {
            return Err(format!(
                "columns: expected a multiple of the head dim {}, found {}",
                self.head_dim, x.cols
            ));
        }
        Ok((x, DType::F32))
    }
}

impl Softmax {
    pub(super) fn infer(&self, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x] = arity(inputs)?;
        Ok((typed("input 0", x, DType::F32)?, DType::F32))
    }
}
