//! What the backend can run: one table.

use crate::ops::{attention, fused};
use graph::{DType, FusedOp, Op, OpQuery, StateSpec};
use quant::Format;

/// The capability table: an operation is claimed exactly where its family has a kernel for it. What it does not say
/// goes to the next backend, at a split. Types of activations and results are checked for all alike: f32, with i32 for
/// what comes from the host.
pub(crate) fn supports(query: &OpQuery<'_>) -> bool {
    let activations = query.output == DType::F32
        && query.inputs.iter().all(|dtype| matches!(dtype, DType::F32 | DType::I32));
    // Weights of matrices are of any format; vectors are floats. Each operation's vectors follow its matrices.
    let vectors =
        |matrices: usize| query.weights.iter().skip(matrices).all(|weight| weight.format == Format::F32);
    let matrices = || query.weights.iter().all(|weight| weight.format.row_bytes(weight.cols).is_some());
    match query.op {
        // Filled by the host: no kernel.
        Op::Input(_) => query.output == DType::I32,
        Op::Add
        | Op::Mul
        | Op::Scale(_)
        | Op::Activation(_)
        | Op::SoftCap(_)
        | Op::Gated(_)
        | Op::ClampedSwiGlu(_)
        | Op::Softmax(_)
        | Op::BatchMatMul(_)
        | Op::GatherCols
        | Op::CombineExperts
        | Op::Rope(_)
        | Op::Permute(_) => activations,
        Op::RmsNorm(_) | Op::QkNorm(_) => activations && vectors(0),
        // The one operation whose result is integers.
        Op::TopK(_) => query.output == DType::I32 && query.inputs == [DType::F32],
        Op::MatMul(_) | Op::ExpertMatMul(_) => activations && matrices() && vectors(1),
        Op::GetRows(_) => activations && matrices(),
        Op::KvStore(_) | Op::KvLoad(_) => activations && cache_type(query).is_some(),
        Op::Attention(op) => {
            activations && vectors(0) && attention::supports(op) && cache_type(query).is_some()
        }
        // Copies of single elements of 32 bits.
        Op::View(_) | Op::Reshape => {
            matches!(query.output, DType::F32 | DType::I32)
                && query.inputs.iter().all(|&input| input == query.output)
        }
        Op::FusedQkv(op) => {
            let cols = [0, 1, 2].map(|i| query.weights.get(i).map_or(0, |weight| weight.rows));
            let norm = op.norms.and_then(|_| query.weights.get(query.weights.len().checked_sub(2)?));
            let norm = norm.map(|weight| weight.elements());
            let head_dim = |cache| fused::head_dim(op.rope.as_ref(), norm, cols, cache);
            activations && matrices() && vectors(3) && cache_type(query).and_then(head_dim).is_some()
        }
        Op::QkvBiasRopeStore(op) => {
            let cols = match query.state {
                Some(&StateSpec::Kv { key_cols, value_cols, .. }) => [op.query_cols, key_cols, value_cols],
                _ => return false,
            };
            let head_dim = |cache| fused::head_dim(op.rope.as_ref(), None, cols, cache);
            activations && vectors(0) && cache_type(query).and_then(head_dim).is_some()
        }
        Op::FusedFfn(_) => activations && matrices(),
        // There is one GPU.
        Op::AllReduce | Op::AllGather(_) => false,
    }
}

/// The element type of the layer's cache, where the kernels have it, and it is one for keys and values.
fn cache_type(query: &OpQuery<'_>) -> Option<DType> {
    match query.state {
        Some(&StateSpec::Kv { key, value, key_cols, value_cols, .. }) if key == value => {
            let known = matches!(key, DType::F32 | DType::F16 | DType::BF16 | DType::Packed(Format::Q8_0));
            let whole = key.row_bytes(key_cols).is_some() && key.row_bytes(value_cols).is_some();
            (known && whole).then_some(key)
        }
        _ => None,
    }
}

/// The fused operations that the fusion pass may form.
pub(crate) fn supports_fused(fused: FusedOp) -> bool {
    match fused {
        FusedOp::Gated(_) => true,
    }
}
