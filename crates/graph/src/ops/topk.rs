//! The largest elements of rows, and elements by their columns.

use super::{arity, equal, typed};
use crate::{DType, Shape};

/// The columns of the `k` largest elements of each row, in descending order of the elements; of equal ones the lower
/// column first, and what is no number after all others. Input: `x` f32 `[rows, n]`; result i32 `[rows, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// Elements wanted of each row: 1 to its width.
    pub k: usize,
}

impl TopK {
    pub(super) fn infer(&self, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x] = arity(inputs)?;
        let x = typed("input 0", x, DType::F32)?;
        if self.k == 0 || self.k > x.cols {
            return Err(format!("k: expected 1 to {} columns, found {}", x.cols, self.k));
        }
        if i32::try_from(x.cols).is_err() {
            return Err(format!("columns: expected at most {}, found {}", i32::MAX, x.cols));
        }
        Ok((Shape::new(x.rows, self.k), DType::I32))
    }
}

pub(super) fn infer_gather(inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
    let [x, indices] = arity(inputs)?;
    let (x, indices) = (typed("input 0", x, DType::F32)?, typed("indices", indices, DType::I32)?);
    equal("rows of the indices", indices.rows, x.rows)?;
    Ok((indices, DType::F32))
}
