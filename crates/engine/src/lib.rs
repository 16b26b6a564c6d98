//! Sequences, KV pages and generation over a loaded model.
