//! What one decoded token reads from memory, which bounds how fast decoding can be.

use crate::{Engine, Error};
use graph::Op;

impl Engine {
    /// Bytes of weights that one decoded token reads: all that the graph of a decode step multiplies with, as they lie in
    /// the file, of experts as many as are chosen. Rows that are gathered by token (the embedding) are not counted.
    ///
    /// # Errors
    /// [`Error::Graph`], which a loaded model's graph has no reason to give.
    pub fn weight_bytes_per_token(&self) -> Result<usize, Error> {
        let graph = self.model.graph(&self.params(1, 1, 1))?;
        let multiplied = graph.nodes().iter().filter(|node| !matches!(node.op, Op::GetRows(_)));
        let bytes = multiplied.flat_map(|node| {
            let (used, of) = match &node.op {
                Op::ExpertMatMul(op) => (op.used, op.experts),
                _ => (1, 1),
            };
            let weights = node.op.weights().into_iter().map(|id| graph.weight(id));
            weights.map(move |w| w.format.row_bytes(w.cols).unwrap_or(0) * (w.rows / of) * used)
        });
        Ok(bytes.sum())
    }

    /// Bytes of the KV cache that a token reads which comes after `depth` others.
    pub fn cache_bytes_per_token(&self, depth: usize) -> usize {
        let groups = self.model.cache_groups();
        let layers = self.model.cache_cols().map(|(group, key, value)| {
            let seen = groups[usize::from(group.0)].window.unwrap_or(usize::MAX).min(depth.saturating_add(1));
            let row = |cols, dtype: graph::DType| dtype.row_bytes(cols).unwrap_or(0);
            seen.saturating_mul(row(key, self.setup.cache.key) + row(value, self.setup.cache.value))
        });
        layers.sum()
    }
}

/// Bytes per second that a plain loop reads from memory in `threads` threads (by default as many as the engine has).
/// Takes some tenths of a second.
///
/// # Errors
/// [`Error::Device`] if there are no threads, or no memory for the buffer that is read.
pub fn read_bandwidth(threads: Option<usize>) -> Result<f64, Error> {
    cpu::read_bandwidth(threads)
        .map_err(|error| Error::Device { name: "cpu".into(), message: error.to_string() })
}
