//! The compute graph: IR, passes, buffer plan, scheduler and the [`Backend`] trait.
//!
//! A model describes one forward pass as a [`Graph`], one [`Node`] per operation, built as a pure function of
//! [`GraphParams`]. The passes fuse, assign every node to a backend, cut the node list into splits and plan the
//! buffers, once per build; the [`Scheduler`] then runs the splits, as often as the parameters stay equal.
//!
//! Every activation is a row-major matrix: a row per token, the features (all heads side by side) in columns.
//! Every forward is a ragged [`Batch`]: rows from any number of sequences, one sequence with one token being just
//! the smallest.
//!
//! This crate does not know any device, any architecture, files or text.

mod backend;
mod batch;
mod dtype;
mod error;
mod ir;
pub mod ops;
mod params;
mod passes;
mod scheduler;
mod state;

pub use backend::{Backend, BufferId, NodeCall, OpQuery, Operand, StateId, WeightData};
pub use batch::{Batch, BatchError};
pub use dtype::DType;
pub use error::{BackendError, GraphError};
pub use ir::{Graph, GraphBuilder, Node, NodeId, Shape, WeightId, WeightInfo};
pub use ops::{FusedOp, InputKind, Op};
pub use params::{CacheParams, GraphParams, Participation};
pub use scheduler::{Prepared, Scheduler, Stats};
pub use state::{CacheGroup, GroupId, StatePart, StateSpec};
