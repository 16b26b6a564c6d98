//! Element-by-element operations. f32 in and out.

use super::arity;
use crate::{DType, Shape};

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// The tanh form: `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
    Gelu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

/// `(u + 1) * g * sigmoid(alpha * g)` with `g = min(gate, limit)` and `u = clamp(up, -limit, limit)`: the gate of gpt-oss
/// (<https://github.com/openai/gpt-oss>). Inputs, of one shape: `gate` and `up`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClampedSwiGlu {
    /// Multiplies the gate inside the sigmoid.
    pub alpha: f32,
    /// The largest gate, and the largest magnitude of what it multiplies; positive.
    pub limit: f32,
}

impl ClampedSwiGlu {
    pub(super) fn infer(&self, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        if !(self.alpha.is_finite() && self.limit.is_finite() && self.limit > 0.0) {
            return Err(format!(
                "expected a finite alpha and a positive limit, found {} and {}",
                self.alpha, self.limit
            ));
        }
        infer_binary(inputs, false)
    }
}

pub(super) fn infer_unary(inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
    let [a] = arity(inputs)?;
    Ok((super::typed("input 0", a, DType::F32)?, DType::F32))
}

pub(super) fn infer_binary(inputs: &[(Shape, DType)], broadcast: bool) -> Result<(Shape, DType), String> {
    let [a, b] = arity(inputs)?;
    let (a, b) = (super::typed("input 0", a, DType::F32)?, super::typed("input 1", b, DType::F32)?);
    if b.cols != a.cols || !(b.rows == a.rows || (broadcast && b.rows == 1)) {
        return Err(format!("input 1: expected the shape of input 0 ({a}), found {b}"));
    }
    Ok((a, DType::F32))
}
