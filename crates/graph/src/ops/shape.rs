//! Shape operations. A view of whole rows and a reshape cost nothing: the plan makes them ranges of their input's
//! buffer. The others are copies.

use super::{arity, typed};
use crate::{DType, Shape};

/// A window of a matrix: `y[i, j] = x[first_row + i, first_col + j]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// First row.
    pub first_row: usize,
    /// Rows.
    pub rows: usize,
    /// First column.
    pub first_col: usize,
    /// Columns.
    pub cols: usize,
}

/// Tokens by heads to heads by tokens: `[n, heads * d] -> [heads * n, d]` with `y[h * n + t, i] = x[t, h * d + i]`.
/// Input f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permute {
    /// Heads side by side in the input.
    pub heads: usize,
}

impl View {
    /// Whether the window lies inside a matrix.
    pub fn is_inside(&self, matrix: Shape) -> bool {
        let inside =
            |first: usize, len: usize, total: usize| first.checked_add(len).is_some_and(|end| end <= total);
        inside(self.first_row, self.rows, matrix.rows) && inside(self.first_col, self.cols, matrix.cols)
    }

    pub(super) fn infer(&self, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [(x, dtype)] = arity(inputs)?;
        if !self.is_inside(x) {
            return Err(format!("the window {self:?} is not inside {x}"));
        }
        Ok((Shape::new(self.rows, self.cols), dtype))
    }
}

impl Permute {
    pub(super) fn infer(&self, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x] = arity(inputs)?;
        let x = typed("input 0", x, DType::F32)?;
        if self.heads == 0 || !x.cols.is_multiple_of(self.heads) {
            return Err(format!("columns: expected a multiple of {} heads, found {}", self.heads, x.cols));
        }
        Ok((Shape::new(x.rows * self.heads, x.cols / self.heads), DType::F32))
    }
}
