//! The vocabulary of operations, a file per family; backends mirror the file names.
//!
//! Each file states the operation's inputs, its result and its formula. Weights are named by
//! [`WeightId`], an index into the graph's weight table, and looked up by their name in the file.

mod attention;
mod cache;
mod collective;
mod elementwise;
mod experts;
mod fused;
mod input;
mod matmul;
mod norm;
mod rope;
mod rows;
mod shape;
mod topk;

pub use attention::Attention;
pub use cache::{KvLoad, KvStore};
pub use collective::AllGather;
pub use elementwise::{Activation, ClampedSwiGlu};
pub use experts::ExpertMatMul;
pub use fused::{FusedFfn, FusedOp, FusedQkv, QkvBiasRopeStore};
pub use input::InputKind;
pub use matmul::{BatchMatMul, MatMul};
pub use norm::{QkNorm, RmsNorm, Softmax};
pub use rope::{Rope, RopeStyle, RopeTable};
pub use rows::GetRows;
pub use shape::{Permute, View};
pub use topk::TopK;

use crate::{DType, Graph, Shape, WeightId};

/// An operation of the graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A matrix that the host fills before the forward.
    Input(InputKind),
    /// `a + b`; `b` may have one row, which is added to every row of `a`.
    Add,
    /// `a * b`, element by element; `b` may have one row.
    Mul,
    /// `factor * a`.
    Scale(f32),
    /// An activation function of every element.
    Activation(Activation),
    /// `cap * tanh(a / cap)`.
    SoftCap(f32),
    /// `activation(a) * b`: what the fusion pass makes of an activation and the product with it (SwiGLU for SiLU,
    /// GeGLU for GELU, the attention gate for the sigmoid).
    Gated(Activation),
    /// The gate of gpt-oss.
    ClampedSwiGlu(ClampedSwiGlu),
    /// Root-mean-square normalisation of rows.
    RmsNorm(RmsNorm),
    /// Root-mean-square normalisation of every head.
    QkNorm(QkNorm),
    /// Softmax of rows.
    Softmax(Softmax),
    /// Product with a weight matrix.
    MatMul(MatMul),
    /// Products of pairs of activation matrices.
    BatchMatMul(BatchMatMul),
    /// Rows of a weight (embedding) or of an activation (output rows), by index.
    GetRows(GetRows),
    /// Columns of the largest elements of each row.
    TopK(TopK),
    /// Elements of each row by their columns: `y[i, j] = x[i, indices[i, j]]`. Inputs: `x` f32 `[rows, n]` and the indices,
    /// i32 `[rows, k]`; result f32 `[rows, k]`.
    GatherCols,
    /// Products with the matrices of chosen experts.
    ExpertMatMul(ExpertMatMul),
    /// Weighted sum of what the chosen experts give: `z[t] = sum_j weights[t, j] * y[t * used + j]`. Inputs, both f32: `y`,
    /// `[tokens * used, out]`, and the weights, `[tokens, used]`; result `[tokens, out]`. The sum is taken in the order of
    /// the choices.
    CombineExperts,
    /// Rotary position embedding.
    Rope(Rope),
    /// Writes keys and values into the layer's cache.
    KvStore(KvStore),
    /// Reads rows of the layer's cache.
    KvLoad(KvLoad),
    /// Softmax attention over the layer's cache.
    Attention(Attention),
    /// A window of a matrix.
    View(View),
    /// The same elements in another shape.
    Reshape,
    /// Exchanges tokens and heads.
    Permute(Permute),
    /// Sums a matrix over the devices that share every layer.
    AllReduce,
    /// Puts the matrices of those devices together.
    AllGather(AllGather),
    /// Query, key and value projections with everything up to the cache, in one node.
    FusedQkv(FusedQkv),
    /// Everything between the concatenated QKV product and attention, in one node.
    QkvBiasRopeStore(QkvBiasRopeStore),
    /// Gate and up projections and their product, in one node.
    FusedFfn(FusedFfn),
}

impl Op {
    /// The operation's name, as in traces.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input(_) => "Input",
            Op::Add => "Add",
            Op::Mul => "Mul",
            Op::Scale(_) => "Scale",
            Op::Activation(Activation::Silu) => "Silu",
            Op::Activation(Activation::Gelu) => "Gelu",
            Op::Activation(Activation::Sigmoid) => "Sigmoid",
            Op::SoftCap(_) => "SoftCap",
            Op::Gated(Activation::Silu) => "SwiGlu",
            Op::Gated(Activation::Gelu) => "GeGlu",
            Op::Gated(Activation::Sigmoid) => "SigmoidGate",
            Op::ClampedSwiGlu(_) => "ClampedSwiGlu",
            Op::RmsNorm(_) => "RmsNorm",
            Op::QkNorm(_) => "QkNorm",
            Op::Softmax(_) => "Softmax",
            Op::MatMul(_) => "MatMul",
            Op::BatchMatMul(_) => "BatchMatMul",
            Op::GetRows(_) => "GetRows",
            Op::TopK(_) => "TopK",
            Op::GatherCols => "GatherCols",
            Op::ExpertMatMul(_) => "ExpertMatMul",
            Op::CombineExperts => "CombineExperts",
            Op::Rope(_) => "RoPE",
            Op::KvStore(_) => "KvStore",
            Op::KvLoad(_) => "KvLoad",
            Op::Attention(_) => "Attention",
            Op::View(_) => "View",
            Op::Reshape => "Reshape",
            Op::Permute(_) => "Permute",
            Op::AllReduce => "AllReduce",
            Op::AllGather(_) => "AllGather",
            Op::FusedQkv(f) if f.norms.is_some() => "FusedQkvNorm",
            Op::FusedQkv(_) => "FusedQkv",
            Op::QkvBiasRopeStore(_) => "QkvBiasRopeStore",
            Op::FusedFfn(_) => "FusedFfn",
        }
    }

    /// The weights that the operation reads, in a fixed order.
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::RmsNorm(op) => op.weight.into_iter().collect(),
            Op::QkNorm(op) => vec![op.weight],
            Op::MatMul(op) => [Some(op.weight), op.bias].into_iter().flatten().collect(),
            Op::ExpertMatMul(op) => [Some(op.weight), op.bias].into_iter().flatten().collect(),
            Op::GetRows(op) => op.table.into_iter().collect(),
            Op::Attention(op) => op.sinks.into_iter().collect(),
            Op::FusedQkv(op) => op.weights(),
            Op::QkvBiasRopeStore(op) => op.weights(),
            Op::FusedFfn(op) => op.weights.to_vec(),
            _ => Vec::new(),
        }
    }

    /// The layer whose state the operation touches.
    pub fn state_layer(&self) -> Option<usize> {
        match self {
            Op::KvStore(op) => Some(op.layer),
            Op::KvLoad(op) => Some(op.layer),
            Op::Attention(op) => Some(op.layer),
            Op::FusedQkv(op) => Some(op.store.layer),
            Op::QkvBiasRopeStore(op) => Some(op.store.layer),
            _ => None,
        }
    }

    /// Whether the result may be written over the given input: true where an element (or row, or head) of the
    /// result depends on nothing else of that input.
    pub fn may_alias(&self, input: usize) -> bool {
        match self {
            Op::Add | Op::Mul | Op::Gated(_) | Op::ClampedSwiGlu(_) => input <= 1,
            Op::Scale(_) | Op::Activation(_) | Op::SoftCap(_) | Op::AllReduce => input == 0,
            Op::RmsNorm(_) | Op::QkNorm(_) | Op::Softmax(_) | Op::Rope(_) => input == 0,
            _ => false,
        }
    }

    /// Shape and type of the result, checked against the inputs. The error says what was found and expected.
    pub(crate) fn infer(&self, graph: &Graph, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        match self {
            Op::Input(kind) => Ok((kind.shape(graph.params()), DType::I32)),
            Op::Add | Op::Mul => elementwise::infer_binary(inputs, true),
            Op::Gated(_) => elementwise::infer_binary(inputs, false),
            Op::ClampedSwiGlu(op) => op.infer(inputs),
            Op::Scale(_) | Op::Activation(_) | Op::SoftCap(_) => elementwise::infer_unary(inputs),
            Op::RmsNorm(op) => op.infer(graph, inputs),
            Op::QkNorm(op) => op.infer(graph, inputs),
            Op::Softmax(op) => op.infer(inputs),
            Op::MatMul(op) => op.infer(graph, inputs),
            Op::BatchMatMul(op) => op.infer(inputs),
            Op::GetRows(op) => op.infer(graph, inputs),
            Op::TopK(op) => op.infer(inputs),
            Op::GatherCols => topk::infer_gather(inputs),
            Op::ExpertMatMul(op) => op.infer(graph, inputs),
            Op::CombineExperts => experts::infer_combine(inputs),
            Op::Rope(op) => op.infer(inputs),
            Op::KvStore(op) => op.infer(graph, inputs),
            Op::KvLoad(op) => op.infer(graph, inputs),
            Op::Attention(op) => op.infer(graph, inputs),
            Op::View(op) => op.infer(inputs),
            Op::Reshape => Err("the builder gives the shape of a reshape".into()),
            Op::Permute(op) => op.infer(inputs),
            Op::AllReduce => collective::infer_reduce(inputs),
            Op::AllGather(op) => op.infer(inputs),
            Op::FusedQkv(op) => op.infer(graph, inputs),
            Op::QkvBiasRopeStore(op) => op.infer(graph, inputs),
            Op::FusedFfn(op) => op.infer(graph, inputs),
        }
    }
}

/// Checks the number of inputs.
fn arity<const N: usize>(inputs: &[(Shape, DType)]) -> Result<[(Shape, DType); N], String> {
    inputs.try_into().map_err(|_| format!("expected {N} inputs, found {}", inputs.len()))
}

/// Checks an input's element type.
fn typed(what: &str, input: (Shape, DType), expected: DType) -> Result<Shape, String> {
    if input.1 == expected {
        Ok(input.0)
    } else {
        Err(format!("{what}: expected {expected}, found {}", input.1))
    }
}

/// Checks a count.
fn equal(what: &str, found: usize, expected: usize) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: expected {expected}, found {found}")) }
}
