//! The GGUF file format: reading (memory-mapped, split files), validating and writing.
