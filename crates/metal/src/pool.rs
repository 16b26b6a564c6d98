//! The pool of activation buffers: memory that host and device share, recycled by size class.

use crate::device::{Buffer, Device};
use crate::error::backend_error;
use crate::tensor::{Memory, Slice};
use graph::{BackendError, BufferId};
use std::collections::{HashMap, VecDeque};

/// The smallest class, in bytes.
const SMALLEST: usize = 256;

/// Bytes of free buffers that are kept: buffers of ever new sizes come with every rebuild.
const KEEP_BYTES: usize = 256 << 20;

/// Four steps per power of two, at least 256 bytes: buffers of one class can stand for each other.
fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(SMALLEST);
    let step = (bytes.checked_next_power_of_two().unwrap_or(bytes) / 8).max(SMALLEST / 4);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

/// Buffers by id. An id is never given out twice, so that one given back is not mistaken for a later one.
pub(crate) struct Pool<B> {
    /// Buffers with the bytes that were asked for.
    used: HashMap<usize, (Memory<B>, usize)>,
    /// Free buffers, the one that was given back first in front: the memory that recent dispatches touch is taken
    /// last, so that fewer of the next ones wait for them.
    free: VecDeque<Memory<B>>,
    free_bytes: usize,
    next: usize,
}

impl<B: Buffer> Pool<B> {
    pub fn new() -> Pool<B> {
        Pool { used: HashMap::new(), free: VecDeque::new(), free_bytes: 0, next: 0 }
    }

    /// A buffer of at least `bytes` bytes, recycled or new, with undefined content.
    pub fn alloc<D: Device<Buffer = B>>(
        &mut self,
        device: &D,
        bytes: usize,
    ) -> Result<BufferId, BackendError> {
        let class = size_class(bytes);
        match self.free.iter().position(|memory| memory.buffer().length() == class) {
            Some(index) => {
                // `index` is a position in the queue.
                let Some(memory) = self.free.remove(index) else { return self.alloc_fresh(device, bytes) };
                self.free_bytes -= class;
                Ok(self.insert(memory, bytes))
            }
            None => self.alloc_fresh(device, bytes),
        }
    }

    /// A new buffer, never recycled.
    pub fn alloc_fresh<D: Device<Buffer = B>>(
        &mut self,
        device: &D,
        bytes: usize,
    ) -> Result<BufferId, BackendError> {
        let class = size_class(bytes);
        let buffer = device
            .new_buffer("activations", class)
            .map_err(|error| backend_error(error, "a buffer", class))?;
        Ok(self.insert(Memory::new(buffer), bytes))
    }

    fn insert(&mut self, memory: Memory<B>, bytes: usize) -> BufferId {
        let id = self.next;
        self.next += 1;
        self.used.insert(id, (memory, bytes));
        BufferId(id)
    }

    /// Gives a buffer back; a second time does nothing. Recordings that use it keep its memory.
    pub fn free(&mut self, id: BufferId) {
        if let Some((memory, _)) = self.used.remove(&id.0) {
            self.free_bytes += memory.buffer().length();
            self.free.push_back(memory);
            while self.free_bytes > KEEP_BYTES {
                let Some(oldest) = self.free.pop_front() else { break };
                self.free_bytes -= oldest.buffer().length();
            }
        }
    }

    /// A range of a buffer, within the bytes that were asked for.
    pub fn slice(&self, id: BufferId, offset: usize, length: usize) -> Result<Slice<B>, BackendError> {
        let found = self.used.get(&id.0);
        let (memory, bytes) = found.ok_or(BackendError::UnknownHandle { kind: "buffer", id: id.0 })?;
        let end = offset.saturating_add(length);
        let slice = if end <= *bytes { memory.slice(offset, length) } else { None };
        slice.ok_or_else(|| BackendError::Length {
            what: "range of a buffer".into(),
            expected: *bytes,
            found: end,
        })
    }
}
