//! The layers' states: KV caches in the types of their specifications, paged by the graph's page tables.

use crate::device::{Buffer, Device};
use crate::error::backend_error;
use crate::pass::invariant;
use crate::tensor::{Memory, Slice, Tensor};
use graph::{BackendError, Shape, StateId, StatePart, StateSpec};
use std::collections::HashMap;

/// The parts of a state.
const PARTS: [StatePart; 3] = [StatePart::Key, StatePart::Value, StatePart::Recurrent];

/// States by id. An id is never given out twice.
pub(crate) struct States<B> {
    states: HashMap<usize, Vec<(StatePart, Tensor<B>)>>,
    next: usize,
}

impl<B: Buffer> States<B> {
    pub fn new() -> States<B> {
        States { states: HashMap::new(), next: 0 }
    }

    /// A state of zeros, as new buffers are. The first work that uses it makes all of its memory the GPU's, filled or not, so
    /// that a cache counts as a whole where a model's need is compared with what can be had.
    pub fn alloc<D: Device<Buffer = B>>(
        &mut self,
        device: &D,
        spec: &StateSpec,
    ) -> Result<StateId, BackendError> {
        let mut parts = Vec::new();
        for part in PARTS {
            let Some((rows, cols, dtype)) = spec.part(part) else { continue };
            let shape = Shape::new(rows, cols);
            let bytes = shape.bytes(dtype).ok_or_else(|| {
                let expected = format!("{rows} whole rows of {dtype} that fit in memory");
                invariant("state", expected, format!("{cols} columns"))
            })?;
            let label = format!("{part:?} state");
            let buffer = device
                .new_buffer(&label, bytes.max(1))
                .map_err(|error| backend_error(error, "a layer's state", bytes))?;
            let slice = Slice { memory: Memory::new(buffer), offset: 0, length: bytes };
            parts.push((part, Tensor { slice, dtype, shape }));
        }
        let id = self.next;
        self.next += 1;
        self.states.insert(id, parts);
        Ok(StateId(id))
    }

    /// Gives a state back; a second time does nothing. Recordings that use it keep its memory.
    pub fn free(&mut self, id: StateId) {
        self.states.remove(&id.0);
    }

    /// The buffers of a state; none of one that was given back.
    pub fn buffers(&self, id: StateId) -> Vec<B> {
        let parts = self.states.get(&id.0).into_iter().flatten();
        parts.map(|(_, tensor)| tensor.slice.memory.buffer().clone()).collect()
    }

    /// A part of a state: all rows.
    pub fn part(&self, id: StateId, part: StatePart) -> Result<Tensor<B>, BackendError> {
        let parts = self.states.get(&id.0).ok_or(BackendError::UnknownHandle { kind: "state", id: id.0 })?;
        let found = parts.iter().find(|(name, _)| *name == part);
        found.map(|(_, tensor)| tensor.clone()).ok_or_else(|| {
            let names: Vec<_> = parts.iter().map(|(name, _)| format!("{name:?}")).collect();
            invariant("part of a state", names.join(" or "), format!("{part:?}"))
        })
    }

    /// The bytes of `length / row` rows from `first` on.
    pub fn rows(
        &self,
        id: StateId,
        part: StatePart,
        first: usize,
        length: usize,
    ) -> Result<Slice<B>, BackendError> {
        let tensor = self.part(id, part)?;
        let row = tensor.dtype.row_bytes(tensor.shape.cols).unwrap_or(0);
        if row == 0 || !length.is_multiple_of(row) {
            let what = "whole rows of a state".into();
            return Err(BackendError::Length { what, expected: row, found: length });
        }
        let offset = first.saturating_mul(row);
        tensor.slice.part(offset, length).ok_or_else(|| BackendError::Length {
            what: "rows of a state".into(),
            expected: tensor.slice.length,
            found: offset.saturating_add(length),
        })
    }
}
