//! Memory that the host shares with a device, as every device's buffers see it.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::{Result, checks};

/// A named range of bytes that host and device reach.
#[derive(Clone, Debug)]
pub struct HostMemory {
    label: Arc<str>,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: plain bytes. Who may touch them when is the contract of `Buffer::contents` and of `HostMemory::new`.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// # Safety
    /// The range must be valid for reads and writes for as long as [`HostMemory::read`] and [`HostMemory::write`] are
    /// called; for reads alone if nobody calls the latter.
    pub unsafe fn new(label: &str, start: NonNull<u8>, length: usize) -> Self {
        Self { label: label.into(), start, length }
    }

    /// The name given at creation.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Checks that a range lies inside.
    ///
    /// # Errors
    /// [`Error::BufferRange`](super::Error::BufferRange).
    pub fn check_range(&self, offset: usize, length: usize) -> Result<()> {
        checks::buffer_range(&self.label, self.length, offset, length)
    }

    /// Copies `out.len()` bytes from `offset` on to `out`.
    ///
    /// # Errors
    /// [`Error::BufferRange`](super::Error::BufferRange).
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.check_range(offset, out.len())?;
        // SAFETY: the range was checked, and `out` is memory of its own.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `data` to the bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::BufferRange`](super::Error::BufferRange).
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.check_range(offset, data.len())?;
        // SAFETY: the range was checked, and `data` is memory of its own.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.start.as_ptr().add(offset), data.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Error;
    use super::*;

    #[test]
    fn accesses_stay_inside() {
        let mut bytes = [1u8, 2, 3, 4];
        // SAFETY: the array outlives the memory.
        let memory = unsafe { HostMemory::new("four", NonNull::from(&mut bytes).cast(), 4) };
        memory.write(1, &[7, 8]).unwrap();
        let mut out = [0; 3];
        memory.read(1, &mut out).unwrap();
        assert_eq!((out, memory.label(), memory.length()), ([7, 8, 4], "four", 4));
        assert!(matches!(memory.read(2, &mut out), Err(Error::BufferRange { .. })));
        assert!(matches!(memory.write(usize::MAX, &[0]), Err(Error::BufferRange { .. })));
    }
}
