//! What the backend can run: one table.

use graph::{DType, FusedOp, Op, OpQuery};

/// The capability table: an operation is claimed exactly where its family has a kernel for it. What it does not say
/// goes to the next backend, at a split. Types of activations and results are checked for all alike: f32, with i32 for
/// what comes from the host.
pub(crate) fn supports(query: &OpQuery<'_>) -> bool {
    let activations = query.output == DType::F32
        && query.inputs.iter().all(|dtype| matches!(dtype, DType::F32 | DType::I32));
    match query.op {
        // Filled by the host: no kernel.
        Op::Input(_) => query.output == DType::I32,
        Op::Scale(_) => activations,
        _ => false,
    }
}

/// The fused operations that the fusion pass may form.
pub(crate) fn supports_fused(fused: FusedOp) -> bool {
    match fused {
        FusedOp::Gated(_) => false,
    }
}
