//! The operations, a file per family, beside their kernels in `kernels/`.
//!
//! A family has a [`Library`](crate::library::Library) of MSL files, a struct of the pipelines that it loads when the
//! backend starts, and a function per operation that encodes it.

mod elementwise;

use crate::device::{Device, Result};
use crate::fusion::{Chain, Held};
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

/// The chains of nodes that have a kernel.
pub(crate) const CHAINS: &[Chain] = &[];

/// Encodes a chain: nodes that were held, and the pass's own node, which ends it.
pub(crate) fn encode_chain<D: Device>(
    pass: &mut Pass<'_, D>,
    held: &[Held],
) -> std::result::Result<(), BackendError> {
    let names: Vec<_> = held.iter().map(|held| pass.call().graph.node(held.id).op.name()).collect();
    Err(invariant("chain", "one that has a kernel", names.join(", ")))
}

/// Encodes a node.
pub(crate) fn encode<D: Device>(pass: &mut Pass<'_, D>) -> std::result::Result<(), BackendError> {
    match &pass.call().node.op {
        Op::Scale(factor) => elementwise::scale(pass, *factor),
        op => Err(invariant("operation", "one that the backend claims", op.name())),
    }
}
