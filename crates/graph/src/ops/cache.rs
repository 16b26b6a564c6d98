//! Writing to and reading from a layer's KV cache.

use super::{arity, equal, typed};
use crate::{DType, Graph, GroupId, Shape, StatePart, StateSpec};

/// Stores a key and a value row per token. Inputs: keys f32 `[tokens, kv heads * head dim]`, values f32, and the
/// cache rows, i32. The result is empty (`[tokens, 0]`): it orders the store before what reads the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvStore {
    /// The layer whose state is written.
    pub layer: usize,
    /// The cache group of the layer.
    pub group: GroupId,
}

/// Reads cache rows, decoded to f32. Inputs: the store that the read comes after, and the cache rows, i32 `[n, 1]`;
/// result `[n, columns of the part]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLoad {
    /// The layer whose state is read.
    pub layer: usize,
    /// Keys or values.
    pub part: StatePart,
}

/// Columns of a part of a layer's state.
pub(super) fn part_cols(graph: &Graph, layer: usize, part: StatePart) -> Result<usize, String> {
    let spec = graph.state(layer).ok_or_else(|| format!("layer {layer} has no state"))?;
    let (_, cols, _) =
        spec.part(part).ok_or_else(|| format!("the state of layer {layer} has no {part:?}"))?;
    Ok(cols)
}

/// Checks that a layer's state is a KV cache of a group.
pub(super) fn check_group(graph: &Graph, layer: usize, expected: GroupId) -> Result<(), String> {
    match graph.state(layer) {
        Some(StateSpec::Kv { group, .. }) if *group == expected => Ok(()),
        found => Err(format!("layer {layer}: expected a KV cache of group {}, found {found:?}", expected.0)),
    }
}

impl KvStore {
    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [keys, values, rows] = arity(inputs)?;
        let (keys, values) = (typed("keys", keys, DType::F32)?, typed("values", values, DType::F32)?);
        let rows = typed("cache rows", rows, DType::I32)?;
        self.check(graph)?;
        equal("columns of the keys", keys.cols, part_cols(graph, self.layer, StatePart::Key)?)?;
        equal("columns of the values", values.cols, part_cols(graph, self.layer, StatePart::Value)?)?;
        equal("rows of the values", values.rows, keys.rows)?;
        equal("cache rows", rows.rows, keys.rows)?;
        Ok((Shape::new(keys.rows, 0), DType::F32))
    }

    /// Checks that the layer's state is a KV cache of the group.
    pub(super) fn check(&self, graph: &Graph) -> Result<(), String> {
        check_group(graph, self.layer, self.group)
    }
}

impl KvLoad {
    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [_store, rows] = arity(inputs)?;
        let rows = typed("cache rows", rows, DType::I32)?;
        Ok((Shape::new(rows.rows, part_cols(graph, self.layer, self.part)?), DType::F32))
    }
}
