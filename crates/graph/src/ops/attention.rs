//! Softmax attention over a paged cache.

use super::cache::{check_group, part_cols};
use super::{arity, equal, typed};
use crate::{DType, Graph, GroupId, Shape, StatePart, WeightId};

/// Causal attention with grouped KV heads; does its own softmax.
///
/// Inputs, in order: queries f32 `[tokens, heads * head dim]`, the store it comes after, and the inputs
/// [`Positions`](crate::InputKind::Positions), [`QueryRanges`](crate::InputKind::QueryRanges),
/// [`KvLens`](crate::InputKind::KvLens) and [`PageTable`](crate::InputKind::PageTable) of the group. Result f32
/// `[tokens, heads * value dim]`.
///
/// A query at position `p` sees the keys at positions `max(0, p + 1 - window) ..= p` of its own sequence. The key at
/// position `j` of sequence `s` lies in cache row `page_table[s][j / page_len] * page_len + j % page_len`. Query head
/// `h` reads KV head `h / (heads / kv_heads)`. Score: `softcap(scale * q . k)`. With sinks the softmax of head `h` is over
/// its scores and `sinks[h]`, which takes part in maximum and sum, as it is, and has no value (Xiao et al. 2023).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The layer whose cache is read.
    pub layer: usize,
    /// The cache group of the layer.
    pub group: GroupId,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Multiplies scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Keys that a query sees, itself included.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` before the softmax.
    pub soft_cap: Option<f32>,
    /// A vector with a logit for each query head.
    pub sinks: Option<WeightId>,
}

impl Attention {
    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [q, _store, positions, ranges, lens, pages] = arity(inputs)?;
        let q = typed("queries", q, DType::F32)?;
        let positions = typed("positions", positions, DType::I32)?;
        let ranges = typed("query ranges", ranges, DType::I32)?;
        let lens = typed("KV lengths", lens, DType::I32)?;
        let pages = typed("page table", pages, DType::I32)?;
        equal("positions", positions.rows, q.rows)?;
        equal("query ranges", ranges.rows, lens.rows.saturating_add(1))?;
        equal("rows of the page table", pages.rows, lens.rows)?;
        check_group(graph, self.layer, self.group)?;
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "heads: expected a multiple of {} KV heads, found {}",
                self.kv_heads, self.heads
            ));
        }
        if self.window == Some(0) {
            return Err("window: expected at least 1 key, found 0".into());
        }
        if self.heads == 0 || self.head_dim == 0 || self.value_dim == 0 {
            return Err(format!(
                "expected at least 1 head of at least 1 column, found {} of {} and values of {}",
                self.heads, self.head_dim, self.value_dim
            ));
        }
        if let Some(sinks) = self.sinks {
            let sinks = graph.weight(sinks);
            equal(&format!("elements of '{}'", sinks.name), sinks.elements(), self.heads)?;
        }
        equal("columns of the queries", q.cols, self.heads.saturating_mul(self.head_dim))?;
        equal(
            "columns of the cached keys",
            part_cols(graph, self.layer, StatePart::Key)?,
            self.kv_heads.saturating_mul(self.head_dim),
        )?;
        equal(
            "columns of the cached values",
            part_cols(graph, self.layer, StatePart::Value)?,
            self.kv_heads.saturating_mul(self.value_dim),
        )?;
        Ok((Shape::new(q.rows, self.heads.saturating_mul(self.value_dim)), DType::F32))
    }
}
