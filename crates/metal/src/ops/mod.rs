//! The operations, a file per family, beside their kernels in `kernels/`.
//!
//! A family has a [`Library`](crate::library::Library) of MSL files (`src/families`, with what host and shader agree on), a
//! struct of the pipelines that it loads when the backend starts, and a function per operation that encodes it.

pub(crate) mod attention;
mod cache;
mod checks;
mod elementwise;
mod experts;
mod formats;
pub(crate) mod fused;
mod inputs;
mod matmul;
mod norm;
mod rope;
mod rows;
mod shape;
mod softmax;
pub(crate) mod topk;

use crate::device::{Device, Result};
pub use crate::families::LIBRARIES;
use crate::fusion::{Chain, Held};
use crate::pass::{Pass, invariant};
use crate::pipelines::Loader;
use graph::{BackendError, NodeCall, Op, Operand};

/// The pipelines of all families.
pub struct Kernels {
    pub(crate) attention: attention::Kernels,
    pub(crate) cache: cache::Kernels,
    pub(crate) elementwise: elementwise::Kernels,
    pub(crate) experts: experts::Kernels,
    pub(crate) matmul: matmul::Kernels,
    pub(crate) norm: norm::Kernels,
    pub(crate) rope: rope::Kernels,
    pub(crate) rows: rows::Kernels,
    pub(crate) shape: shape::Kernels,
    pub(crate) softmax: softmax::Kernels,
    pub(crate) topk: topk::Kernels,
}

impl Kernels {
    /// Loads every kernel.
    ///
    /// # Errors
    /// The first library that does not compile, or kernel that is missing.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        Ok(Kernels {
            attention: attention::Kernels::load(loader)?,
            cache: cache::Kernels::load(loader)?,
            elementwise: elementwise::Kernels::load(loader)?,
            experts: experts::Kernels::load(loader)?,
            matmul: matmul::Kernels::load(loader)?,
            norm: norm::Kernels::load(loader)?,
            rope: rope::Kernels::load(loader)?,
            rows: rows::Kernels::load(loader)?,
            shape: shape::Kernels::load(loader)?,
            softmax: softmax::Kernels::load(loader)?,
            topk: topk::Kernels::load(loader)?,
        })
    }
}

/// The chains of nodes that have a kernel.
pub(crate) const CHAINS: &[Chain] =
    &[Chain::AddNorm, Chain::NormAddNorm, Chain::QkvStore, Chain::Router, Chain::ExpertGate];

/// Encodes a chain: nodes that were held, and the pass's own node, which ends it.
pub(crate) fn encode_chain<D: Device>(
    pass: &mut Pass<'_, D>,
    held: &[Held],
) -> std::result::Result<(), BackendError> {
    match &pass.call().node.op {
        Op::RmsNorm(op) => norm::chain(pass, held, op),
        Op::KvStore(_) => fused::qkv_chain(pass, held),
        Op::Softmax(_) | Op::GatherCols => topk::router_chain(pass, held),
        Op::Gated(activation) => experts::gate_chain(pass, held, (*activation).into()),
        Op::ClampedSwiGlu(op) => experts::gate_chain(pass, held, op.into()),
        op => Err(invariant("last node of the chain", "one that ends a chain", op.name())),
    }
}

/// Whether one dispatch may compute a chain. A value that dies within it may have given its memory to the chain's result, which
/// is no matter where each element, or each row, is read before it is written and lies where it lay, but elsewhere is: then every
/// node is for itself.
pub(crate) fn is_apart(call: &NodeCall<'_>, held: &[Held]) -> bool {
    let by_element = matches!(call.node.op, Op::RmsNorm(_) | Op::KvStore(_));
    let output = &call.output;
    let inside = |operand: &Operand| held.iter().any(|held| held.id == operand.producer);
    let meets = |operand: &Operand| {
        operand.buffer == output.buffer
            && operand.offset < output.offset + output.bytes()
            && output.offset < operand.offset + operand.bytes()
    };
    let in_place = |operand: &Operand| {
        by_element && operand.offset == output.offset && operand.bytes() == output.bytes()
    };
    let mut read = held.iter().flat_map(|held| &held.inputs).filter(|operand| !inside(operand));
    !read.any(|operand| meets(operand) && !in_place(operand))
}

/// Encodes a node.
pub(crate) fn encode<D: Device>(pass: &mut Pass<'_, D>) -> std::result::Result<(), BackendError> {
    check_output(pass)?;
    match &pass.call().node.op {
        Op::Add => elementwise::add(pass),
        Op::Mul => elementwise::mul(pass),
        Op::Scale(factor) => elementwise::scale(pass, *factor),
        Op::Activation(activation) => elementwise::activation(pass, *activation),
        Op::SoftCap(cap) => elementwise::soft_cap(pass, *cap),
        Op::Gated(activation) => elementwise::gated(pass, *activation),
        Op::ClampedSwiGlu(op) => elementwise::clamped_swiglu(pass, op),
        Op::RmsNorm(op) => norm::rms_norm(pass, op),
        Op::QkNorm(op) => norm::qk_norm(pass, op),
        Op::Softmax(op) => softmax::softmax(pass, op),
        Op::MatMul(op) => matmul::matmul(pass, op),
        Op::BatchMatMul(op) => matmul::batch_matmul(pass, op),
        Op::ExpertMatMul(op) => experts::expert_matmul(pass, op),
        Op::CombineExperts => experts::combine(pass),
        Op::TopK(op) => topk::top_k(pass, op),
        Op::GatherCols => topk::gather_cols(pass),
        Op::GetRows(op) => rows::get_rows(pass, op),
        Op::Rope(op) => rope::rope(pass, op),
        Op::KvStore(_) => cache::kv_store(pass),
        Op::KvLoad(op) => rows::kv_load(pass, op),
        Op::Attention(op) => attention::attention(pass, op),
        Op::View(op) => shape::view(pass, op),
        Op::Reshape => shape::reshape(pass),
        Op::Permute(op) => shape::permute(pass, op),
        Op::FusedQkv(op) => fused::qkv(pass, op),
        Op::QkvBiasRopeStore(op) => fused::qkv_bias_rope_store(pass, op),
        Op::FusedFfn(op) => fused::ffn(pass, op),
        Op::Input(_) | Op::AllReduce | Op::AllGather(_) => {
            Err(invariant("operation", "one that the backend claims", pass.call().node.op.name()))
        }
    }
}

/// Checks that the result lies over no input, but exactly over one where the operation allows it.
fn check_output<D: Device>(pass: &Pass<'_, D>) -> std::result::Result<(), BackendError> {
    let call = pass.call();
    let output = &call.output;
    for (i, input) in call.inputs.iter().enumerate() {
        let overlap = input.buffer == output.buffer
            && input.offset < output.offset + output.bytes()
            && output.offset < input.offset + input.bytes();
        let same = input.offset == output.offset && input.bytes() == output.bytes();
        if overlap && !(same && call.node.op.may_alias(i)) {
            let expected =
                format!("no memory of input {i}, at byte {} of buffer {}", input.offset, input.buffer.0);
            return Err(invariant("output", expected, format!("byte {} of it", output.offset)));
        }
    }
    Ok(())
}
