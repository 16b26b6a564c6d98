//! Rotary position embedding (Su et al. 2021).

use super::{arity, equal, typed};
use crate::{DType, Shape};
use std::sync::Arc;

/// Which two elements of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Elements `2i` and `2i + 1` (llama).
    Interleaved,
    /// Elements `i` and `i + rotary_dim / 2` (qwen, gemma; "NeoX").
    SplitHalf,
}

/// The angles of a rotation. All scaling (linear, YaRN, llama-3, per-dimension factors) is in the table, so every
/// backend turns by the same angles: `position * inv_freq[i]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians per position of each pair; as long as half the rotated elements.
    pub inv_freq: Vec<f64>,
    /// Multiplies cosine and sine (YaRN's attention factor; 1 without).
    pub magnitude: f32,
}

/// `(a, b) -> (a cos - b sin, a sin + b cos)` for every pair of every head. Inputs: `x` f32, heads side by side, and
/// the positions, i32. Elements past the rotated ones are copied.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Width of a head.
    pub head_dim: usize,
    /// Which elements pair up.
    pub style: RopeStyle,
    /// The angles; shared between layers, so that a backend computes cosines and sines once per forward.
    pub table: Arc<RopeTable>,
}

impl Rope {
    /// Elements of a head that turn.
    pub fn rotary_dim(&self) -> usize {
        self.table.inv_freq.len() * 2
    }

    pub(super) fn infer(&self, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x, positions] = arity(inputs)?;
        let (x, positions) = (typed("input 0", x, DType::F32)?, typed("positions", positions, DType::I32)?);
        equal("positions", positions.rows, x.rows)?;
        if self.head_dim == 0 || !x.cols.is_multiple_of(self.head_dim) || self.rotary_dim() > self.head_dim {
            return Err(format!(
                "expected whole heads of {} columns, at least {} of them rotated; found {} columns",
                self.head_dim,
                self.rotary_dim(),
                x.cols
            ));
        }
        Ok((x, DType::F32))
    }
}
