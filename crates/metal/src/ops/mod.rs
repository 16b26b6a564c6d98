//! The operations, a file per family, beside their kernels in `kernels/`.
//!
//! A family has a [`Library`](crate::library::Library) of MSL files, a struct of the pipelines that it loads when the
//! backend starts, and a function per operation that encodes it.

mod elementwise;

use crate::device::{Device, Result};
use crate::pass::{Pass, invariant};
use crate::pipelines::Loader;
use graph::{BackendError, Op};

/// The pipelines of all families.
pub struct Kernels {
    pub(crate) elementwise: elementwise::Kernels,
}

impl Kernels {
    /// Loads every kernel.
    ///
    /// # Errors
    /// The first library that does not compile, or kernel that is missing.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        Ok(Kernels { elementwise: elementwise::Kernels::load(loader)? })
    }
}

/// Encodes a node.
pub(crate) fn encode<D: Device>(pass: &mut Pass<'_, D>) -> std::result::Result<(), BackendError> {
    match &pass.call().node.op {
        Op::Scale(factor) => elementwise::scale(pass, *factor),
        op => Err(invariant("operation", "one that the backend claims", op.name())),
    }
}
