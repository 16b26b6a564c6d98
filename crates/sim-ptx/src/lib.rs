#![doc = include_str!("../README.md")]
//!
//! It knows nothing of the backend and checks nothing that the kernels do: that is the simulator's sanitizer. What
//! is different from Metal is told in `docs/metal-sim.md`.

mod buffer;
mod compile;
mod device;
mod driver;
mod grid;
pub mod libraries;
mod queue;

pub use buffer::PtxBuffer;
pub use compile::build;
pub use device::{PtxDevice, PtxLibrary, PtxPipeline};
pub use queue::{PtxCommandBuffer, PtxEncoder, PtxQueue, PtxTarget};
