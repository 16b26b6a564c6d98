//! What a graph is a function of, beside the model.

use crate::DType;

/// The identity of a built graph: the scheduler reuses a build while these are equal, and compares nothing else.
///
/// KV lengths, positions, token ids and page tables are inputs and never part of it, so the steps of a decode loop
/// all run the same build.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GraphParams {
    /// Rows of the batch: tokens of all sequences together.
    pub tokens: usize,
    /// Rows for which logits are wanted; the graph shrinks to them after the last attention.
    pub outputs: usize,
    /// Build the output head: the rows that are wanted are logits. Without it they are the hidden states after the last
    /// norm, of which embeddings are made.
    pub head: bool,
    /// Sequences in the batch.
    pub sequences: usize,
    /// Columns of the page tables: the most pages that a sequence can have.
    pub max_pages: usize,
    /// The KV cache's shape and types.
    pub cache: CacheParams,
    /// Which backends take part, and with how many layers.
    pub participation: Participation,
    /// Build one fused node for QKV projection, bias, RoPE and cache store (single-token graphs on a GPU, all graphs
    /// on the CPU).
    pub fuse_qkv: bool,
    /// Build one fused node for the gate and up projections and their activation (as for `fuse_qkv`).
    pub fuse_ffn: bool,
}

/// Shape and element types of the KV cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheParams {
    /// Element type of keys.
    pub key: DType,
    /// Element type of values.
    pub value: DType,
    /// Rows (tokens) per page.
    pub page_len: usize,
    /// Pages in each cache group, in the order of the model's groups.
    pub pages: Vec<usize>,
}

/// The outcome of the gate: a backend takes part only if every weight that its layers read is registered on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Participation {
    /// Names of the accelerators that take part, in order of priority. The CPU always does.
    pub accelerators: Vec<String>,
    /// Layers on accelerators, counted from the last (which brings the output head along); `None` for all, and the
    /// embedding with them.
    pub layers: Option<usize>,
    /// How many of those layers each accelerator runs, in the order of `accelerators` and of the layers; what comes before
    /// the first layer goes to the first that has any, what follows the last to the last. Empty: every layer is for
    /// whichever accelerator supports it, in order of priority.
    pub split: Vec<usize>,
    /// How many devices share every layer, behind the one accelerator that there is then: the graph is that of one of
    /// them, with its part of the heads and features, and nothing of it can run elsewhere.
    pub tensor_parallel: Option<usize>,
}

impl Participation {
    /// Everything on the CPU.
    pub fn cpu_only() -> Participation {
        Participation::default()
    }

    /// Whether any accelerator takes part.
    pub fn gpu(&self) -> bool {
        !self.accelerators.is_empty()
    }
}
