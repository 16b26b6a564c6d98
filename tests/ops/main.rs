//! Every operation on every backend, one node at a time, against a float64 reference of the same decoded weights.
//!
//! A backend is judged by the normalised mean squared error, `sum (y - r)^2 / sum r^2`, with a bound per operation. A new
//! backend is one line in [`harness::backends`]. `SMELT_OP_PERF=1 cargo test --release -p smelt-tests --test ops perf -- --nocapture`
//! prints the speed of the operations that matter.

mod attention;
mod cache;
mod elementwise;
mod errors;
mod fused;
mod harness;
mod invariance;
mod matmul;
mod norm;
mod perf;
mod rope;
mod rows;
mod shape;
mod support;
