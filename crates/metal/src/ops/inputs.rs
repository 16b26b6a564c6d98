//! What the host filled in, looked at while a node is encoded.
//!
//! A kernel cannot report an index that is out of range; it can only refuse to follow it. Inputs lie in memory that both
//! host and device reach and are complete before the first node is encoded, so they are checked here, where an error can
//! still name the value.

use crate::device::{Buffer, Device};
use crate::pass::Pass;
use graph::{BackendError, Op, Operand};

/// The values of an integer input that the host filled; `None` if it is the result of a node.
pub(super) fn host_values<D: Device>(
    pass: &Pass<'_, D>,
    index: usize,
) -> Result<Option<Vec<i32>>, BackendError> {
    match pass.call().inputs.get(index) {
        Some(operand) => values_of(pass, operand),
        None => Ok(None),
    }
}

/// The same of any operand, as of a node that was held.
fn values_of<D: Device>(pass: &Pass<'_, D>, operand: &Operand) -> Result<Option<Vec<i32>>, BackendError> {
    if !matches!(pass.call().graph.node(operand.producer).op, Op::Input(_)) {
        return Ok(None);
    }
    let tensor = pass.operand(operand)?;
    let mut values = vec![0i32; tensor.shape.elements()];
    if !values.is_empty() {
        let bytes = bytemuck::cast_slice_mut(&mut values);
        let buffer = tensor.slice.memory.buffer();
        buffer.read(tensor.slice.offset, bytes).map_err(|error| BackendError::Device(error.to_string()))?;
    }
    Ok(Some(values))
}

/// Checks that a value is an index below `limit`.
pub(super) fn index(what: &str, row: usize, found: i32, limit: usize) -> Result<usize, BackendError> {
    usize::try_from(found).ok().filter(|&found| found < limit).ok_or_else(|| BackendError::BadInput {
        what: what.into(),
        row,
        found: i64::from(found),
        limit: limit as i64,
    })
}

/// Checks that all values of an input are indices below `limit`.
pub(super) fn check_indices<D: Device>(
    pass: &Pass<'_, D>,
    input: usize,
    what: &str,
    limit: usize,
) -> Result<(), BackendError> {
    match pass.call().inputs.get(input) {
        Some(operand) => check_operand(pass, operand, what, limit),
        None => Ok(()),
    }
}

/// The same of any operand.
pub(super) fn check_operand<D: Device>(
    pass: &Pass<'_, D>,
    operand: &Operand,
    what: &str,
    limit: usize,
) -> Result<(), BackendError> {
    for (row, found) in values_of(pass, operand)?.into_iter().flatten().enumerate() {
        index(what, row, found, limit)?;
    }
    Ok(())
}
