//! Memory: 64-byte aligned buffers, a pool of them that recycles by size, and persistent state regions.

use graph::{BackendError, BufferId, StateId, StatePart, StateSpec};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of every buffer: a cache line, and the widest vector.
pub(crate) const ALIGN: usize = 64;

/// Zeroed memory that the system commits page by page when it is first written.
pub(crate) struct AlignedMemory {
    base: NonNull<u8>,
    layout: Layout,
    /// From `base` to the first aligned byte.
    offset: usize,
    len: usize,
}

// SAFETY: plain memory that this value owns alone.
unsafe impl Send for AlignedMemory {}
// SAFETY: `&AlignedMemory` only gives out a raw pointer; whoever reads or writes through it keeps the rules.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// `len` zero bytes.
    pub(crate) fn zeroed(len: usize, what: &str) -> Result<AlignedMemory, BackendError> {
        let fail = || BackendError::OutOfMemory { what: what.to_string(), bytes: len };
        // The allocator takes fresh, uncommitted pages from the system only for small alignments (for larger ones it
        // clears by hand, which commits all of it), so the alignment is made here.
        let padded = len.max(1).checked_add(ALIGN).ok_or_else(fail)?;
        let layout = Layout::from_size_align(padded, 16).map_err(|_| fail())?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(fail)?;
        let offset = base.as_ptr().align_offset(ALIGN);
        Ok(AlignedMemory { base, layout, offset, len })
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte. Valid for `len` bytes, aligned to [`ALIGN`].
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `offset` is below ALIGN, and ALIGN more bytes than `len` were allocated.
        unsafe { self.base.as_ptr().add(self.offset) }
    }

    /// Asks the system for large pages, which memory that is streamed through gains from (fewer translations, and
    /// prefetching past 4 KiB). Only a hint: where it is not taken, nothing changes but the speed.
    pub(crate) fn prefer_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        {
            const PAGE: usize = 4096;
            let start = self.base.as_ptr().addr().next_multiple_of(PAGE);
            let end = (self.base.as_ptr().addr() + self.layout.size()) / PAGE * PAGE;
            if start < end {
                let first = self.base.as_ptr().with_addr(start);
                // SAFETY: whole pages of memory that this value owns; the advice does not change their contents.
                unsafe { libc::madvise(first.cast(), end - start, libc::MADV_HUGEPAGE) };
            }
        }
    }

    /// Bytes `offset .. offset + len`, or the error that names `what`.
    pub(crate) fn range(
        &self,
        offset: usize,
        len: usize,
        what: impl std::fmt::Display,
    ) -> Result<*mut u8, BackendError> {
        match offset.checked_add(len) {
            // SAFETY: `offset` is within the memory.
            Some(end) if end <= self.len => Ok(unsafe { self.as_ptr().add(offset) }),
            _ => Err(BackendError::Length {
                what: what.to_string(),
                expected: self.len,
                found: offset.saturating_add(len),
            }),
        }
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// A table whose handles carry a generation, so that a handle given back is never mistaken for a later one.
struct Slots<T> {
    kind: &'static str,
    slots: Vec<(usize, Option<T>)>,
    vacant: Vec<usize>,
}

const HALF: u32 = usize::BITS / 2;

impl<T> Slots<T> {
    fn new(kind: &'static str) -> Slots<T> {
        Slots { kind, slots: Vec::new(), vacant: Vec::new() }
    }

    fn insert(&mut self, value: T) -> usize {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.1 = Some(value);
        (slot.0 << HALF) | index
    }

    fn get(&self, id: usize) -> Result<&T, BackendError> {
        let (generation, index) = (id >> HALF, id & ((1 << HALF) - 1));
        match self.slots.get(index) {
            Some((current, Some(value))) if *current == generation => Ok(value),
            _ => Err(BackendError::UnknownHandle { kind: self.kind, id }),
        }
    }

    fn remove(&mut self, id: usize) -> Option<T> {
        self.get(id).ok()?;
        let index = id & ((1 << HALF) - 1);
        let slot = &mut self.slots[index];
        slot.0 = (slot.0 + 1) & ((1 << HALF) - 1);
        self.vacant.push(index);
        slot.1.take()
    }
}

/// Buffers in use and buffers to recycle.
pub(crate) struct BufferPool {
    used: Slots<AlignedMemory>,
    used_bytes: usize,
    /// The most bytes that were in use at once.
    peak_bytes: usize,
    free: Vec<AlignedMemory>,
    free_bytes: usize,
}

/// Freed bytes that are kept for recycling, or as many as were in use at once if those are more: graphs of other shapes
/// then find their buffers, and memory does not grow with the number of shapes. What is beyond goes back to the system,
/// the oldest first.
const KEEP_BYTES: usize = 16 << 20;

impl BufferPool {
    pub(crate) fn new() -> BufferPool {
        BufferPool {
            used: Slots::new("buffer"),
            used_bytes: 0,
            peak_bytes: 0,
            free: Vec::new(),
            free_bytes: 0,
        }
    }

    /// The smallest free buffer that fits without wasting more than half of it, or a new one.
    pub(crate) fn alloc(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        let fits = |memory: &AlignedMemory| memory.len() >= bytes && memory.len() / 2 <= bytes;
        let candidates = self.free.iter().enumerate().filter(|(_, memory)| fits(memory));
        match candidates.min_by_key(|(_, memory)| memory.len()).map(|(index, _)| index) {
            Some(index) => {
                let memory = self.free.remove(index);
                self.free_bytes -= memory.len();
                Ok(self.take(memory))
            }
            None => self.alloc_fresh(size_class(bytes)),
        }
    }

    /// A new buffer.
    pub(crate) fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        let rounded = bytes.checked_next_multiple_of(ALIGN).unwrap_or(bytes);
        let memory = AlignedMemory::zeroed(rounded, "a buffer")?;
        Ok(self.take(memory))
    }

    fn take(&mut self, memory: AlignedMemory) -> BufferId {
        self.used_bytes += memory.len();
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        BufferId(self.used.insert(memory))
    }

    pub(crate) fn free(&mut self, id: BufferId) {
        if let Some(memory) = self.used.remove(id.0) {
            self.used_bytes -= memory.len();
            self.free_bytes += memory.len();
            self.free.push(memory);
            while self.free_bytes > KEEP_BYTES.max(self.peak_bytes) {
                self.free_bytes -= self.free.remove(0).len();
            }
        }
    }

    pub(crate) fn get(&self, id: BufferId) -> Result<&AlignedMemory, BackendError> {
        self.used.get(id.0)
    }

    pub(crate) fn read(&self, id: BufferId, offset: usize, dst: &mut [u8]) -> Result<(), BackendError> {
        let src = self.get(id)?.range(offset, dst.len(), "read from a buffer")?;
        // SAFETY: `src` is valid for `dst.len()` bytes, and `dst` is no part of a buffer of ours.
        unsafe { std::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    pub(crate) fn write(&mut self, id: BufferId, offset: usize, src: &[u8]) -> Result<(), BackendError> {
        let dst = self.get(id)?.range(offset, src.len(), "write to a buffer")?;
        // SAFETY: `dst` is valid for `src.len()` bytes, and `&mut self` keeps everyone else away.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) };
        Ok(())
    }
}

/// At least `bytes`, one of the four sizes from a power of two to the next: shapes that differ by little use the same
/// buffers. What is not used of them is not committed.
fn size_class(bytes: usize) -> usize {
    let step = (bytes.checked_next_power_of_two().unwrap_or(0) / 8).max(1);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

/// The matrices of one layer's state.
pub(crate) struct State {
    pub(crate) spec: StateSpec,
    parts: Vec<(StatePart, AlignedMemory)>,
}

impl State {
    /// The memory of a part.
    pub(crate) fn part(&self, part: StatePart) -> Result<&AlignedMemory, BackendError> {
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
    states: Slots<State>,
}

impl States {
    pub(crate) fn new() -> States {
        States { states: Slots::new("state") }
    }

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
                parts.push((part, AlignedMemory::zeroed(bytes, "a layer's state")?));
            }
        }
        Ok(StateId(self.states.insert(State { spec: *spec, parts })))
    }

    pub(crate) fn free(&mut self, id: StateId) {
        self.states.remove(id.0);
    }

    pub(crate) fn get(&self, id: StateId) -> Result<&State, BackendError> {
        self.states.get(id.0)
    }

    /// The first of the `len` bytes from `first_row` on, which are to be whole rows of the part.
    fn rows(&self, id: StateId, part: StatePart, first: usize, len: usize) -> Result<*mut u8, BackendError> {
        let state = self.get(id)?;
        let memory = state.part(part)?;
        let row = state.spec.part(part).and_then(|(_, cols, dtype)| dtype.row_bytes(cols)).unwrap_or(0);
        if row == 0 || !len.is_multiple_of(row) {
            return Err(BackendError::Length {
                what: "whole rows of a state".into(),
                expected: row,
                found: len,
            });
        }
        memory.range(first.saturating_mul(row), len, "rows of a state")
    }

    pub(crate) fn read(
        &self,
        id: StateId,
        part: StatePart,
        first: usize,
        dst: &mut [u8],
    ) -> Result<(), BackendError> {
        let src = self.rows(id, part, first, dst.len())?;
        // SAFETY: `src` is valid for `dst.len()` bytes, and `dst` is no part of a state of ours.
        unsafe { std::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    pub(crate) fn write(
        &mut self,
        id: StateId,
        part: StatePart,
        first: usize,
        src: &[u8],
    ) -> Result<(), BackendError> {
        let dst = self.rows(id, part, first, src.len())?;
        // SAFETY: `dst` is valid for `src.len()` bytes, and `&mut self` keeps everyone else away.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::{DType, GroupId};

    #[test]
    fn buffers_are_aligned_zeroed_and_recycled() {
        let mut pool = BufferPool::new();
        let a = pool.alloc(1000).unwrap();
        assert_eq!(pool.get(a).unwrap().as_ptr() as usize % ALIGN, 0);
        let mut bytes = [1u8; 1000];
        pool.read(a, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 1000]);
        let address = pool.get(a).unwrap().as_ptr();
        pool.free(a);
        let fresh = pool.alloc_fresh(1000).unwrap();
        assert_ne!(pool.get(fresh).unwrap().as_ptr(), address, "fresh means not recycled");
        let small = pool.alloc(100).unwrap();
        assert_ne!(pool.get(small).unwrap().as_ptr(), address, "ten times too large");
        let again = pool.alloc(900).unwrap();
        assert_eq!(pool.get(again).unwrap().as_ptr(), address);
        assert_ne!(a, again, "a stale handle must not reach the new owner");
        pool.free(a);
        assert!(pool.get(again).is_ok());
    }

    #[test]
    fn buffers_of_many_sizes_do_not_add_up() {
        let mut pool = BufferPool::new();
        let mut most = 0;
        for step in 0..200usize {
            // As graphs of ever other shapes have them: all are freed, and then others taken.
            let bytes = 100_000 + step * 7919 % 1_000_000;
            let buffers: Vec<_> = (1..20).map(|n| pool.alloc(bytes * n / 4).unwrap()).collect();
            most = most.max(pool.used_bytes);
            buffers.into_iter().for_each(|buffer| pool.free(buffer));
            assert_eq!(pool.used_bytes, 0);
            assert_eq!(pool.free_bytes, pool.free.iter().map(AlignedMemory::len).sum::<usize>());
            assert!(pool.free_bytes <= most.max(KEEP_BYTES), "{} of {most}", pool.free_bytes);
        }
    }

    #[test]
    fn sizes_come_in_classes() {
        for (bytes, class) in
            [(0, 0), (1, 1), (9, 10), (64, 64), (1000, 1024), (1025, 1280), (1 << 20, 1 << 20)]
        {
            assert_eq!(size_class(bytes), class);
        }
        assert_eq!(size_class(usize::MAX), usize::MAX);
        assert!((1..100_000).all(|bytes| (bytes..=bytes + bytes / 4).contains(&size_class(bytes))));
    }

    #[test]
    fn reads_and_writes_are_checked() {
        let mut pool = BufferPool::new();
        let a = pool.alloc(64).unwrap();
        pool.write(a, 60, &[1, 2, 3, 4]).unwrap();
        let mut bytes = [0; 4];
        pool.read(a, 60, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4]);
        let length = |found| BackendError::Length { what: "write to a buffer".into(), expected: 64, found };
        assert_eq!(pool.write(a, 61, &[0; 4]), Err(length(65)));
        assert_eq!(pool.write(a, usize::MAX, &[0; 4]), Err(length(usize::MAX)));
        pool.free(a);
        assert_eq!(pool.read(a, 0, &mut bytes), Err(BackendError::UnknownHandle { kind: "buffer", id: a.0 }));
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let mut pool = BufferPool::new();
        for bytes in [usize::MAX, isize::MAX as usize - 8] {
            assert!(matches!(pool.alloc(bytes), Err(BackendError::OutOfMemory { .. })));
        }
        let spec = StateSpec::Recurrent { slots: usize::MAX, elements: 3 };
        assert!(matches!(States::new().alloc(&spec), Err(BackendError::Invariant { .. })));
    }

    #[test]
    fn states_have_parts_and_rows() {
        let mut states = States::new();
        let spec = StateSpec::Kv {
            group: GroupId(0),
            rows: 4,
            key_cols: 3,
            value_cols: 2,
            key: DType::F32,
            value: DType::F16,
        };
        let id = states.alloc(&spec).unwrap();
        states.write(id, StatePart::Value, 3, &[1, 2, 3, 4]).unwrap();
        let mut bytes = [9; 8];
        states.read(id, StatePart::Value, 2, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 0, 0, 1, 2, 3, 4]);
        assert!(matches!(states.read(id, StatePart::Value, 3, &mut bytes), Err(BackendError::Length { .. })));
        assert!(matches!(
            states.write(id, StatePart::Key, 0, &[0; 8]),
            Err(BackendError::Length { expected: 12, found: 8, .. })
        ));
        assert!(matches!(
            states.read(id, StatePart::Recurrent, 0, &mut bytes),
            Err(BackendError::Invariant { .. })
        ));
        states.free(id);
        states.free(id);
        assert_eq!(
            states.read(id, StatePart::Key, 0, &mut bytes),
            Err(BackendError::UnknownHandle { kind: "state", id: id.0 })
        );
    }
}
