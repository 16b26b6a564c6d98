//! Block formats of GGUF tensors: every layout defined once, with exact reference encoding and decoding.
//!
//! Knows bytes and floats. Does not know files, models or devices: the CPU and GPU backends take the layouts
//! from here (see [`Format`]), and are tested against the reference decoders here.

#![warn(missing_docs)]

mod format;

pub use format::Format;
