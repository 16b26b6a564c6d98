//! The Metal backend.
//!
//! [`device`] is the narrow waist: everything above it is written once over the [`device::Device`] trait,
//! everything below it is one implementation (Apple's API on macOS, the simulator anywhere). [`MetalBackend`] runs
//! graphs on any of them: [`ops`] encodes operations through a [`pass::Pass`], what is encoded is recorded with the
//! barriers that it needs, and a split is submitted as one command buffer, or several where
//! it takes long.
//!
//! This crate does not know models, files or tokens.
//!
//! ```
//! use metal::device::Size;
//!
//! // A grid of 100 threads in threadgroups of 32: four threadgroups, the last one partial.
//! assert_eq!(Size::width(100).div_ceil(Size::width(32)), Size::width(4));
//! ```

mod backend;
mod capability;
pub mod device;
mod error;
mod families;
pub mod fusion;
mod largest;
pub mod library;
pub mod ops;
pub mod pass;
pub mod pipelines;
mod pool;
mod profile;
mod recorder;
mod requirements;
mod residency;
mod states;
mod submit;
mod switches;
mod tables;
pub mod tensor;
mod trace;
mod tracker;
mod warmup;
mod weights;
mod work;

pub use backend::{MetalBackend, MetalOptions, TIMEOUT};
pub use error::Error;
pub use recorder::Counts;
pub use requirements::{check_device, usable_memory};
pub use switches::Switches;
pub use tracker::{Access, Columns, Touch, Tracker};
pub use weights::WeightBytes;
