//! Buffers: memory that host and kernels share.

use std::ffi::c_void;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metal::device::{Buffer, Error, HostMemory, Limits, Result};

use crate::sanitize::{Action, Sanitizer, Tracked};

/// Address space behind a buffer under the sanitizer, at least.
const SANITIZER_GAP: usize = 1 << 20;

/// Memory that host and kernels share.
#[derive(Clone)]
pub struct SimBuffer {
    memory: Arc<Memory>,
}

struct Memory {
    host: HostMemory,
    _allocation: Allocation,
    /// Bytes of the mapping, for memory of our own.
    mapped: Option<usize>,
    watch: Option<Watch>,
}

/// A buffer's share of what its device has allocated.
pub(super) struct Allocation {
    total: Arc<AtomicUsize>,
    length: usize,
}

impl Allocation {
    pub(super) fn new(total: &Arc<AtomicUsize>, length: usize) -> Self {
        total.fetch_add(length, Ordering::Relaxed);
        Self { total: Arc::clone(total), length }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.total.fetch_sub(self.length, Ordering::Relaxed);
    }
}

/// What the sanitizer sees of a buffer.
struct Watch {
    sanitizer: Arc<Sanitizer>,
    tracked: Arc<Tracked>,
}

fn watch(
    sanitizer: Option<&Arc<Sanitizer>>,
    label: &str,
    start: NonNull<u8>,
    length: usize,
    foreign: bool,
) -> Option<Watch> {
    sanitizer.map(|sanitizer| Watch {
        sanitizer: Arc::clone(sanitizer),
        tracked: sanitizer.track(label, start.as_ptr() as usize, length, foreign),
    })
}

impl SimBuffer {
    pub(super) fn owned(
        label: &str,
        length: usize,
        limits: &Limits,
        allocation: Allocation,
        sanitizer: Option<&Arc<Sanitizer>>,
    ) -> Result<Self> {
        limits.check_buffer_length(label, length)?;
        // One page more than needed, to align the start and to leave a gap that faults behind the end; a wide one
        // under the sanitizer, so that what runs past the end meets no other buffer.
        let page = limits.no_copy_alignment;
        let rounded = length.next_multiple_of(page);
        let gap = if sanitizer.is_some() { rounded.max(SANITIZER_GAP) } else { 0 };
        let mapped = rounded + 2 * page + gap;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice.
        let mapping = unsafe { libc::mmap(ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return Err(Error::no_memory(label, length));
        }
        let base = mapping.cast::<u8>();
        let start = (base as usize).next_multiple_of(page) - base as usize;
        // SAFETY: the range lies inside the new mapping.
        let (start, opened) = unsafe {
            let start = base.add(start);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            (start, libc::mprotect(start.cast(), length.next_multiple_of(page), protection))
        };
        // Trim what lies before the start, so that the mapping is from the start on.
        let before = start as usize - base as usize;
        if before > 0 {
            // SAFETY: the range is ours and nothing uses it.
            unsafe { libc::munmap(mapping, before) };
        }
        let start = NonNull::new(start).filter(|_| opened == 0);
        let Some(start) = start else {
            return Err(Error::no_memory(label, length));
        };
        let watch = watch(sanitizer, label, start, length, false);
        let mapped = Some(mapped - before);
        // SAFETY: the mapping is there until the memory is dropped.
        let host = unsafe { HostMemory::new(label, start, length) };
        Ok(Self { memory: Arc::new(Memory { host, _allocation: allocation, mapped, watch }) })
    }

    /// # Safety
    /// See [`metal::device::Device::new_buffer_no_copy`].
    pub(super) unsafe fn foreign(
        label: &str,
        memory: NonNull<u8>,
        length: usize,
        limits: &Limits,
        allocation: Allocation,
        sanitizer: Option<&Arc<Sanitizer>>,
    ) -> Result<Self> {
        limits.check_no_copy(label, memory.as_ptr() as usize, length)?;
        let watch = watch(sanitizer, label, memory, length, true);
        // SAFETY: the caller vouches for the range.
        let host = unsafe { HostMemory::new(label, memory, length) };
        Ok(Self { memory: Arc::new(Memory { host, _allocation: allocation, mapped: None, watch }) })
    }

    /// What the sanitizer knows about the buffer.
    pub(super) fn tracked(&self) -> Option<&Arc<Tracked>> {
        self.memory.watch.as_ref().map(|watch| &watch.tracked)
    }

    /// Asks the sanitizer whether the host may touch the range now.
    fn check_host(&self, offset: usize, length: usize, action: Action, caller: &Location<'_>) -> Result<()> {
        let Some(tracked) = self.tracked() else { return Ok(()) };
        tracked.check_host(offset, length, action, caller).map_err(|found| {
            let (report, submission) = *found;
            Error::Execution {
                label: submission.to_string(),
                kernel: report.kernel.clone(),
                last_dispatches: vec![report.dispatch.clone()],
                reason: report.to_string(),
            }
        })
    }

    /// Address of a byte, for kernels.
    pub(super) fn address(&self, offset: usize) -> *mut c_void {
        self.memory.host.start().as_ptr().wrapping_add(offset).cast()
    }

    /// Tells buffers apart.
    pub(super) fn identity(&self) -> usize {
        Arc::as_ptr(&self.memory) as usize
    }
}

impl Buffer for SimBuffer {
    fn memory(&self) -> &HostMemory {
        &self.memory.host
    }

    fn contents(&self) -> NonNull<u8> {
        if let Some(tracked) = self.tracked() {
            // What happens through the pointer is not seen.
            tracked.assume_written();
        }
        self.memory.host.start()
    }

    #[track_caller]
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.memory.host.check_range(offset, out.len())?;
        self.check_host(offset, out.len(), Action::Read, Location::caller())?;
        self.memory.host.read(offset, out)
    }

    #[track_caller]
    fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.memory.host.check_range(offset, data.len())?;
        self.check_host(offset, data.len(), Action::Write, Location::caller())?;
        if let Some(tracked) = self.tracked() {
            tracked.mark_written(offset, data.len());
        }
        self.memory.host.write(offset, data)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mapping = self.mapped.map(|mapped| (self.host.start().as_ptr() as usize, mapped));
        if let Some(watch) = &self.watch {
            watch.sanitizer.forget(&watch.tracked, mapping);
        } else if let Some(mapped) = self.mapped {
            // SAFETY: the mapping was made by `owned`, and this was the last handle on it.
            unsafe { libc::munmap(self.host.start().as_ptr().cast(), mapped) };
        }
    }
}
