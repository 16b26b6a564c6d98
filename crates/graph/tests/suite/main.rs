//! Tests of the graph crate, a file per topic.

mod assign;
mod batch;
mod common;
mod errors;
mod experts;
mod fuse;
mod gate;
mod infer;
mod parallel;
mod plan;
mod scheduler;
mod several;
mod states;
mod trace;
