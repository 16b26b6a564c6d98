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
//!
//! # Example
//!
//! One product and a residual, over a batch of two tokens:
//!
//! ```
//! use graph::ops::{GetRows, MatMul};
//! use graph::{CacheParams, DType, GraphBuilder, GraphParams, InputKind, Op, Participation, Shape, WeightInfo};
//!
//! let params = GraphParams {
//!     tokens: 2,
//!     outputs: 2,
//!     sequences: 1,
//!     max_pages: 1,
//!     cache: CacheParams { key: DType::F16, value: DType::F16, page_len: 64, pages: vec![] },
//!     participation: Participation::cpu_only(),
//!     head: true,
//!     fuse_qkv: false,
//!     fuse_ffn: false,
//! };
//! let weight = |name: &str, rows, cols| WeightInfo { name: name.into(), format: quant::Format::F32, rows, cols };
//!
//! let mut b = GraphBuilder::new(&params, vec![]);
//! let table = b.weight(&weight("token_embd.weight", 100, 32));
//! let projection = b.weight(&weight("blk.0.ffn_down.weight", 32, 32));
//! let tokens = b.input(InputKind::Tokens);
//! let x = b.op("token_embd", Op::GetRows(GetRows { table: Some(table) }), &[tokens])?;
//! b.set_layer(Some(0));
//! let y = b.op("ffn_down", Op::MatMul(MatMul { weight: projection, bias: None, logits: false }), &[x])?;
//! let x = b.op("residual", Op::Add, &[x, y])?;
//! assert_eq!(b.shape(x), Shape::new(2, 32));
//!
//! // What does not fit is refused, with the node's name.
//! let narrow = b.weight(&weight("narrow", 8, 16));
//! let error = b.op("misfit", Op::MatMul(MatMul { weight: narrow, bias: None, logits: false }), &[x]).unwrap_err();
//! assert_eq!(error.to_string(), "graph node 'blk.0.misfit': columns of 'narrow': expected 32, found 16");
//!
//! let graph = b.finish(&[x]);
//! assert_eq!(graph.node(graph.outputs()[0]).label, "blk.0.residual");
//! # Ok::<(), graph::GraphError>(())
//! ```
//!
//! A [`Scheduler`] with at least one [`Backend`] runs it: [`prepare`](Scheduler::prepare),
//! [`run`](Scheduler::run), [`read_output`](Scheduler::read_output).

mod backend;
mod batch;
mod cut;
mod dtype;
mod error;
mod ir;
pub mod ops;
mod parallel;
mod params;
mod passes;
mod scheduler;
mod state;
#[cfg(feature = "testing")]
pub mod testing;

pub use backend::{Backend, BufferId, Largest, NodeCall, OpQuery, Operand, Release, StateId, WeightData};
pub use batch::{Batch, BatchError};
pub use cut::Cut;
pub use dtype::DType;
pub use error::{BackendError, GraphError};
pub use ir::{Graph, GraphBuilder, Node, NodeId, Shape, WeightId, WeightInfo};
pub use ops::{FusedOp, InputKind, Op};
pub use parallel::TensorParallel;
pub use params::{CacheParams, GraphParams, Participation};
pub use passes::plan::activation_bytes;
pub use scheduler::{Prepared, Scheduler, Stats};
pub use state::{CacheGroup, GroupId, StatePart, StateSpec};
