//! Operations that do several steps in one kernel.
//!
//! Two kinds: those that the fusion pass forms where a backend claims them ([`FusedOp`]), and those that a model
//! builds because [`GraphParams`](crate::GraphParams) says so (single-token graphs on a GPU).

use super::{Activation, KvStore, Rope, arity, cache::part_cols, equal, typed};
use crate::{DType, Graph, Shape, StatePart, WeightId};

/// What the fusion pass may form, if the backend of the nodes claims it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FusedOp {
    /// `Mul(activation(x), y)`, in either order, becomes [`Op::Gated`](super::Op::Gated).
    Gated(Activation),
}

/// Projects to query, key and value, adds the biases, normalises heads where asked, turns query and key, and stores
/// key and value in the cache. Inputs: the normed activation f32, the positions and the cache rows, i32. Result: the
/// turned queries, `[tokens, query columns]`.
#[derive(Clone, Debug, PartialEq)]
pub struct FusedQkv {
    /// Query, key and value weights, all of one format and width.
    pub weights: [WeightId; 3],
    /// Their biases.
    pub biases: Option<[WeightId; 3]>,
    /// Per-head norms of query and key (which makes it FusedQkvNorm).
    pub norms: Option<([WeightId; 2], f32)>,
    /// The rotation, if the layer has one.
    pub rope: Option<Rope>,
    /// Where keys and values go.
    pub store: KvStore,
}

/// What follows the concatenated product: biases, rotation, store. Inputs: the products of query, key and value side
/// by side, f32 `[tokens, q + k + v]`, the positions and the cache rows, i32. Result: the turned queries.
#[derive(Clone, Debug, PartialEq)]
pub struct QkvBiasRopeStore {
    /// Columns of the queries.
    pub query_cols: usize,
    /// Biases of query, key and value.
    pub biases: Option<[WeightId; 3]>,
    /// The rotation, if the layer has one.
    pub rope: Option<Rope>,
    /// Where keys and values go.
    pub store: KvStore,
}

/// `activation(gate x) * (up x)`. Input: the normed activation f32; result `[tokens, feed-forward size]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedFfn {
    /// Gate and up weights, of one shape and format.
    pub weights: [WeightId; 2],
    /// The activation of the gate.
    pub activation: Activation,
}

impl FusedQkv {
    pub(super) fn weights(&self) -> Vec<WeightId> {
        let biases = self.biases.into_iter().flatten();
        let norms = self.norms.iter().flat_map(|(weights, _)| *weights);
        self.weights.into_iter().chain(biases).chain(norms).collect()
    }

    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x, positions, rows] = arity(inputs)?;
        let x = typed("input 0", x, DType::F32)?;
        equal("positions", typed("positions", positions, DType::I32)?.rows, x.rows)?;
        equal("cache rows", typed("cache rows", rows, DType::I32)?.rows, x.rows)?;
        self.store.check(graph)?;
        for weight in self.weights {
            let weight = graph.weight(weight);
            equal(&format!("columns of '{}'", weight.name), weight.cols, x.cols)?;
        }
        let [q, k, v] = self.weights.map(|w| graph.weight(w).rows);
        equal("key columns", k, part_cols(graph, self.store.layer, StatePart::Key)?)?;
        equal("value columns", v, part_cols(graph, self.store.layer, StatePart::Value)?)?;
        if let Some(biases) = self.biases {
            for (bias, out) in biases.into_iter().zip([q, k, v]) {
                let bias = graph.weight(bias);
                equal(&format!("elements of '{}'", bias.name), bias.elements(), out)?;
            }
        }
        Ok((Shape::new(x.rows, q), DType::F32))
    }
}

impl QkvBiasRopeStore {
    pub(super) fn weights(&self) -> Vec<WeightId> {
        self.biases.into_iter().flatten().collect()
    }

    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [qkv, positions, rows] = arity(inputs)?;
        let qkv = typed("input 0", qkv, DType::F32)?;
        equal("positions", typed("positions", positions, DType::I32)?.rows, qkv.rows)?;
        equal("cache rows", typed("cache rows", rows, DType::I32)?.rows, qkv.rows)?;
        self.store.check(graph)?;
        let keys = part_cols(graph, self.store.layer, StatePart::Key)?;
        let values = part_cols(graph, self.store.layer, StatePart::Value)?;
        equal("columns of input 0", qkv.cols, self.query_cols.saturating_add(keys).saturating_add(values))?;
        if let Some(biases) = self.biases {
            for (bias, out) in biases.into_iter().zip([self.query_cols, keys, values]) {
                let bias = graph.weight(bias);
                equal(&format!("elements of '{}'", bias.name), bias.elements(), out)?;
            }
        }
        Ok((Shape::new(qkv.rows, self.query_cols), DType::F32))
    }
}

impl FusedFfn {
    pub(super) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x] = arity(inputs)?;
        let x = typed("input 0", x, DType::F32)?;
        let [gate, up] = self.weights.map(|w| graph.weight(w));
        equal(&format!("columns of '{}'", gate.name), gate.cols, x.cols)?;
        equal(&format!("columns of '{}'", up.name), up.cols, x.cols)?;
        equal(&format!("rows of '{}'", up.name), up.rows, gate.rows)?;
        Ok((Shape::new(x.rows, gate.rows), DType::F32))
    }
}
