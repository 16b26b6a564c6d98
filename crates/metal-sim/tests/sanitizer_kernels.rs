//! The kernels of the other tests under the sanitizer: their results are the same, and nothing is reported, which
//! would be an error of the command buffer. The harness sees from this file's name that it is to use it.

#![allow(clippy::duplicate_mod, reason = "every file has the harness as a module")]

#[path = "functions.rs"]
mod functions;
#[path = "grid.rs"]
mod grid;
#[path = "language.rs"]
mod language;
#[path = "library.rs"]
mod library;
#[path = "matrix.rs"]
mod matrix;
#[path = "simd.rs"]
mod simd;
#[path = "transformer.rs"]
mod transformer;
