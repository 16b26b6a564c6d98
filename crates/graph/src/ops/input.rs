//! What the host fills in before a forward. All of type i32.

use crate::{GraphParams, GroupId, Shape};

/// An input matrix. The scheduler fills it from the [`Batch`](crate::Batch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputKind {
    /// Token ids, `[tokens, 1]`.
    Tokens,
    /// Position of each token in its sequence, `[tokens, 1]`.
    Positions,
    /// The cache row that each token's key and value are written to, `[tokens, 1]`.
    CacheRows(GroupId),
    /// Where each sequence's tokens begin in the batch, and the end, `[sequences + 1, 1]`.
    QueryRanges,
    /// Keys of each sequence after this forward's are stored, `[sequences, 1]`.
    KvLens,
    /// Physical page of each logical page of each sequence, `[sequences, max_pages]`; -1 where there is none.
    PageTable(GroupId),
    /// The rows whose logits are wanted, `[outputs, 1]`.
    OutRows,
}

impl InputKind {
    /// The input's shape for these parameters.
    pub fn shape(self, params: &GraphParams) -> Shape {
        match self {
            InputKind::Tokens | InputKind::Positions | InputKind::CacheRows(_) => {
                Shape::new(params.tokens, 1)
            }
            InputKind::QueryRanges => Shape::new(params.sequences.saturating_add(1), 1),
            InputKind::KvLens => Shape::new(params.sequences, 1),
            InputKind::PageTable(_) => Shape::new(params.sequences, params.max_pages),
            InputKind::OutRows => Shape::new(params.outputs, 1),
        }
    }

    /// The input's name, as in traces.
    pub fn name(self) -> String {
        match self {
            InputKind::Tokens => "tokens".into(),
            InputKind::Positions => "positions".into(),
            InputKind::CacheRows(group) => format!("cache_rows.{}", group.0),
            InputKind::QueryRanges => "query_ranges".into(),
            InputKind::KvLens => "kv_lens".into(),
            InputKind::PageTable(group) => format!("page_table.{}", group.0),
            InputKind::OutRows => "out_rows".into(),
        }
    }
}
