//! Every operation on every backend, one node at a time, against a float64 reference of the same decoded weights.
//!
//! A backend is judged by the normalised mean squared error, `sum (y - r)^2 / sum r^2`, with a bound per operation. A new
//! backend is one line in [`harness::backends`]. `perf.rs` measures the speed of the operations that matter, and
//! `kernels.rs` that of every kernel on a GPU, when asked for.

mod attention;
mod barriers;
mod cache;
mod cuts;
mod edges;
mod elementwise;
mod errors;
mod experts;
mod experts_on_metal;
mod fused;
mod harness;
mod invariance;
mod invariants;
mod kernels;
mod largest;
mod matmul;
mod norm;
mod perf;
mod rope;
mod rows;
mod shape;
mod strict;
mod support;
mod sweep;
mod threads;
mod topk;
