//! Buffers, recycled by size, and the layers' states.

use crate::CudaError;
use crate::driver::{Device, DeviceMemory};
use graph::{BackendError, BufferId, DType, StateId, StatePart, StateSpec};
use quant::Format;
use std::collections::HashMap;
use std::sync::Arc;

/// Freed bytes that are kept for recycling; what is beyond goes back to the driver, the oldest first.
const KEEP_BYTES: usize = 1 << 30;
/// Bytes that the host wrote and that are kept beside, to check what they index with.
const KEPT_COPY: usize = 1 << 22;

/// A buffer in use.
pub(crate) struct Buffer {
    pub(crate) memory: DeviceMemory,
    /// What the host wrote, from the start of the buffer; for small ones.
    pub(crate) written: Vec<u8>,
}

/// Buffers in use and buffers to recycle. A handle is never given out twice.
pub(crate) struct Buffers {
    device: Arc<Device>,
    used: HashMap<usize, Buffer>,
    free: Vec<DeviceMemory>,
    free_bytes: usize,
    next: usize,
}

/// The error of an allocation.
pub(crate) fn out_of_memory(what: &str, bytes: usize, error: CudaError) -> BackendError {
    match error {
        CudaError::OutOfMemory { .. } => BackendError::OutOfMemory { what: what.into(), bytes },
        other => BackendError::Device(other.to_string()),
    }
}

fn check_range(what: &str, len: usize, offset: usize, wanted: usize) -> Result<(), BackendError> {
    match offset.checked_add(wanted) {
        Some(end) if end <= len => Ok(()),
        _ => Err(BackendError::Length {
            what: what.into(),
            expected: len,
            found: offset.saturating_add(wanted),
        }),
    }
}

impl Buffers {
    pub(crate) fn new(device: &Arc<Device>) -> Buffers {
        Buffers { device: Arc::clone(device), used: HashMap::new(), free: Vec::new(), free_bytes: 0, next: 0 }
    }

    fn insert(&mut self, memory: DeviceMemory) -> BufferId {
        self.next += 1;
        self.used.insert(self.next, Buffer { memory, written: Vec::new() });
        BufferId(self.next)
    }

    /// The smallest free buffer that fits without wasting more than half of it, or a new one.
    pub(crate) fn alloc(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        let fits = |memory: &DeviceMemory| memory.len() >= bytes && memory.len() / 2 <= bytes;
        let candidates = self.free.iter().enumerate().filter(|(_, memory)| fits(memory));
        match candidates.min_by_key(|(_, memory)| memory.len()).map(|(index, _)| index) {
            Some(index) => {
                let memory = self.free.remove(index);
                self.free_bytes -= memory.len();
                Ok(self.insert(memory))
            }
            None => self.alloc_fresh(bytes),
        }
    }

    pub(crate) fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        let rounded = bytes.checked_next_multiple_of(64).unwrap_or(bytes).max(64);
        let memory = DeviceMemory::new(&self.device, rounded);
        Ok(self.insert(memory.map_err(|error| out_of_memory("a buffer", bytes, error))?))
    }

    pub(crate) fn free(&mut self, id: BufferId) {
        if let Some(buffer) = self.used.remove(&id.0) {
            self.free_bytes += buffer.memory.len();
            self.free.push(buffer.memory);
            while self.free_bytes > KEEP_BYTES && !self.free.is_empty() {
                self.free_bytes -= self.free.remove(0).len();
            }
        }
    }

    pub(crate) fn get(&self, id: BufferId) -> Result<&Buffer, BackendError> {
        self.used.get(&id.0).ok_or(BackendError::UnknownHandle { kind: "buffer", id: id.0 })
    }

    /// The address of a range of a buffer.
    pub(crate) fn address(
        &self,
        id: BufferId,
        offset: usize,
        len: usize,
        what: &str,
    ) -> Result<u64, BackendError> {
        let memory = &self.get(id)?.memory;
        check_range(what, memory.len(), offset, len)?;
        Ok(memory.address() + offset as u64)
    }

    /// Keeps a copy of what the host writes, if it is small.
    pub(crate) fn note_written(&mut self, id: BufferId, offset: usize, src: &[u8]) {
        let Some(buffer) = self.used.get_mut(&id.0) else { return };
        let end = offset + src.len();
        if end > KEPT_COPY {
            buffer.written.clear();
            return;
        }
        if buffer.written.len() < end {
            buffer.written.resize(end, 0);
        }
        buffer.written[offset..end].copy_from_slice(src);
    }
}

/// The matrices of one layer's state.
pub(crate) struct State {
    pub(crate) spec: StateSpec,
    parts: Vec<(StatePart, DeviceMemory)>,
}

impl State {
    /// The memory of a part.
    pub(crate) fn part(&self, part: StatePart) -> Result<&DeviceMemory, BackendError> {
        self.parts.iter().find(|(p, _)| *p == part).map(|(_, memory)| memory).ok_or_else(|| {
            BackendError::Invariant {
                what: "part of a state".into(),
                expected: format!("one of {:?}", self.spec),
                found: format!("{part:?}"),
            }
        })
    }
}

/// The states of all layers.
pub(crate) struct States {
    device: Arc<Device>,
    states: HashMap<usize, State>,
    next: usize,
}

impl States {
    pub(crate) fn new(device: &Arc<Device>) -> States {
        States { device: Arc::clone(device), states: HashMap::new(), next: 0 }
    }

    /// A state of unspecified contents: its parts' memory is for the caller to clear.
    pub(crate) fn alloc(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        let mut parts = Vec::new();
        for part in [StatePart::Key, StatePart::Value, StatePart::Recurrent] {
            if let Some((rows, cols, dtype)) = spec.part(part) {
                let bytes = dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows)).ok_or_else(|| {
                    BackendError::Invariant {
                        what: "state".into(),
                        expected: format!("{rows} whole rows of {dtype} that fit in memory"),
                        found: format!("{cols} columns"),
                    }
                })?;
                let memory = DeviceMemory::new(&self.device, bytes);
                parts.push((part, memory.map_err(|error| out_of_memory("a layer's state", bytes, error))?));
            }
        }
        self.next += 1;
        self.states.insert(self.next, State { spec: *spec, parts });
        Ok(StateId(self.next))
    }

    pub(crate) fn free(&mut self, id: StateId) {
        self.states.remove(&id.0);
    }

    pub(crate) fn get(&self, id: StateId) -> Result<&State, BackendError> {
        self.states.get(&id.0).ok_or(BackendError::UnknownHandle { kind: "state", id: id.0 })
    }

    /// All memory of a state.
    pub(crate) fn memory(&self, id: StateId) -> impl Iterator<Item = &DeviceMemory> {
        self.states.get(&id.0).into_iter().flat_map(|state| state.parts.iter().map(|(_, memory)| memory))
    }

    /// The address of whole rows of a part.
    pub(crate) fn rows(
        &self,
        id: StateId,
        part: StatePart,
        first_row: usize,
        len: usize,
    ) -> Result<u64, BackendError> {
        let state = self.get(id)?;
        let memory = state.part(part)?;
        let what = || format!("{part:?} rows of a state");
        let row = state.spec.part(part).and_then(|(_, cols, dtype)| dtype.row_bytes(cols)).unwrap_or(0);
        if row == 0 || !len.is_multiple_of(row) {
            return Err(BackendError::Length { what: what(), expected: row, found: len });
        }
        let offset = first_row.saturating_mul(row);
        check_range(&what(), memory.len(), offset, len)?;
        Ok(memory.address() + offset as u64)
    }
}

/// The id by which kernels know the type of a cache.
pub(crate) fn cache_type(dtype: DType) -> Option<i32> {
    let format = match dtype {
        DType::F32 => Format::F32,
        DType::F16 => Format::F16,
        DType::BF16 => Format::BF16,
        DType::Packed(Format::Q8_0) => Format::Q8_0,
        DType::Packed(_) | DType::I32 => return None,
    };
    Some(format.id() as i32)
}
