//! Tests of the graph crate, a file per topic.

mod common;

mod scheduler;
