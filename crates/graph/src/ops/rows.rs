//! Gathering rows by index: the embedding of tokens, and the rows whose logits are wanted.

use super::{arity, equal, typed};
use crate::{DType, Graph, Shape, WeightId};

/// `y[i] = table[indices[i]]`, decoded to f32. Inputs: the indices, i32 `[n, 1]`, and, where `table` is no weight, an
/// f32 activation before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetRows {
    /// The table, if it is a weight.
    pub table: Option<WeightId>,
}

impl GetRows {
    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let (cols, indices) = match self.table {
            Some(table) => {
                let [indices] = arity(inputs)?;
                (graph.weight(table).cols, indices)
            }
            None => {
                let [x, indices] = arity(inputs)?;
                (typed("input 0", x, DType::F32)?.cols, indices)
            }
        };
        let indices = typed("indices", indices, DType::I32)?;
        equal("columns of the indices", indices.cols, 1)?;
        Ok((Shape::new(indices.rows, cols), DType::F32))
    }
}
