//! The checks of Metal's validation layer that every device makes the same way.

use super::{Buffer, Error, Limits, Result, Size};

/// Checks an access to a buffer.
///
/// # Errors
/// [`Error::BufferRange`] for an access past the end.
pub fn buffer_range(label: &str, buffer_length: usize, offset: usize, length: usize) -> Result<()> {
    match offset.checked_add(length) {
        Some(end) if end <= buffer_length => Ok(()),
        _ => Err(Error::BufferRange { label: label.to_owned(), offset, length, buffer_length }),
    }
}

/// Checks both ranges of a copy between buffers.
///
/// # Errors
/// [`Error::BufferRange`] for a range past the end.
pub fn copy<B: Buffer>(
    source: &B,
    source_offset: usize,
    destination: &B,
    destination_offset: usize,
    length: usize,
) -> Result<()> {
    buffer_range(source.label(), source.length(), source_offset, length)?;
    buffer_range(destination.label(), destination.length(), destination_offset, length)
}

impl Limits {
    /// Checks the length of a new buffer.
    ///
    /// # Errors
    /// [`Error::BufferLength`].
    pub fn check_buffer_length(&self, label: &str, length: usize) -> Result<()> {
        let limit = self.max_buffer_length;
        if length == 0 || length > limit {
            return Err(Error::BufferLength { label: label.to_owned(), length, limit });
        }
        Ok(())
    }

    /// Checks memory that a buffer is to wrap.
    ///
    /// # Errors
    /// [`Error::BufferLength`] and [`Error::NoCopyAlignment`].
    pub fn check_no_copy(&self, label: &str, address: usize, length: usize) -> Result<()> {
        self.check_buffer_length(label, length)?;
        let alignment = self.no_copy_alignment;
        if !address.is_multiple_of(alignment) || !length.is_multiple_of(alignment) {
            return Err(Error::NoCopyAlignment { label: label.to_owned(), address, length, alignment });
        }
        Ok(())
    }

    /// Checks the slot of a buffer.
    ///
    /// # Errors
    /// [`Error::Slot`].
    pub fn check_buffer_slot(&self, slot: usize) -> Result<()> {
        check_slot(slot, self.buffer_slots)
    }

    /// Checks inline bytes.
    ///
    /// # Errors
    /// [`Error::Slot`] and [`Error::InlineBytes`].
    pub fn check_inline_bytes(&self, slot: usize, length: usize) -> Result<()> {
        self.check_buffer_slot(slot)?;
        let limit = self.max_inline_bytes;
        if length == 0 || length > limit {
            return Err(Error::InlineBytes { slot, length, limit });
        }
        Ok(())
    }

    /// Checks one slot's dynamic threadgroup memory; `kernel` is for the message.
    ///
    /// # Errors
    /// [`Error::Slot`] and [`Error::ThreadgroupMemory`].
    pub fn check_threadgroup_slot(&self, kernel: &str, slot: usize, length: usize) -> Result<()> {
        check_slot(slot, self.threadgroup_slots)?;
        if !length.is_multiple_of(self.threadgroup_memory_alignment) {
            return Err(self.threadgroup_memory_error(kernel, length));
        }
        self.check_threadgroup_memory(kernel, length)
    }

    /// Checks all threadgroup memory of a launch.
    ///
    /// # Errors
    /// [`Error::ThreadgroupMemory`].
    pub fn check_threadgroup_memory(&self, kernel: &str, length: usize) -> Result<()> {
        if length > self.max_threadgroup_memory {
            return Err(self.threadgroup_memory_error(kernel, length));
        }
        Ok(())
    }

    fn threadgroup_memory_error(&self, kernel: &str, length: usize) -> Error {
        Error::ThreadgroupMemory {
            kernel: kernel.to_owned(),
            length,
            limit: self.max_threadgroup_memory,
            alignment: self.threadgroup_memory_alignment,
        }
    }

    /// Checks the sizes of a launch; `limit` is the most threads that the kernel's threadgroups may have, and
    /// `grid` counts threads or threadgroups.
    ///
    /// # Errors
    /// [`Error::ThreadgroupSize`] and [`Error::EmptyGrid`].
    pub fn check_launch(&self, kernel: &str, limit: usize, grid: Size, threads: Size) -> Result<()> {
        let mut axes = threads.to_array().into_iter().zip(self.max_threadgroup_size.to_array());
        let fits = axes.all(|(count, most)| count > 0 && count <= most);
        if !fits || threads.volume().is_none_or(|volume| volume > limit) {
            return Err(Error::ThreadgroupSize { kernel: kernel.to_owned(), size: threads, limit });
        }
        // The index of a thread has 32 bits on each axis.
        if grid.to_array().iter().any(|&count| count == 0 || u32::try_from(count).is_err()) {
            return Err(Error::EmptyGrid { kernel: kernel.to_owned(), grid });
        }
        Ok(())
    }
}

fn check_slot(slot: usize, limit: usize) -> Result<()> {
    if slot < limit { Ok(()) } else { Err(Error::Slot { slot, limit }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_may_end_where_the_buffer_does() {
        assert_eq!(buffer_range("b", 8, 4, 4), Ok(()));
        for (offset, length) in [(5, 4), (9, 0), (usize::MAX, 2)] {
            assert!(matches!(buffer_range("b", 8, offset, length), Err(Error::BufferRange { .. })));
        }
    }

    #[test]
    fn memory_and_slots_have_their_limits() {
        let limits = Limits::default();
        assert!(limits.check_buffer_length("b", limits.max_buffer_length).is_ok());
        assert!(matches!(limits.check_buffer_length("b", 0), Err(Error::BufferLength { .. })));
        assert!(limits.check_no_copy("b", 0x4000, 0x8000).is_ok());
        for (address, length) in [(0x4010, 0x4000), (0x4000, 0x4010)] {
            assert!(matches!(limits.check_no_copy("b", address, length), Err(Error::NoCopyAlignment { .. })));
        }
        assert!(matches!(limits.check_no_copy("b", 0x4000, 0), Err(Error::BufferLength { length: 0, .. })));
        assert_eq!(limits.check_buffer_slot(31), Err(Error::Slot { slot: 31, limit: 31 }));
        assert!(limits.check_inline_bytes(30, 4096).is_ok());
        assert!(matches!(limits.check_inline_bytes(0, 4097), Err(Error::InlineBytes { .. })));
        assert_eq!(limits.check_inline_bytes(31, 4), Err(Error::Slot { slot: 31, limit: 31 }));
        assert_eq!(limits.check_threadgroup_slot("k", 31, 16), Err(Error::Slot { slot: 31, limit: 31 }));
        assert!(limits.check_threadgroup_slot("k", 0, 32768).is_ok());
        for length in [8, 32784] {
            let result = limits.check_threadgroup_slot("k", 0, length);
            assert!(matches!(result, Err(Error::ThreadgroupMemory { .. })), "{length}");
        }
    }

    #[test]
    fn a_launch_fits_the_kernel_the_device_and_32_bits() {
        let limits = Limits::default();
        let check = |grid, threads| limits.check_launch("k", 512, grid, threads);
        assert!(check(Size::width(7), Size::new(32, 16, 1)).is_ok());
        for threads in [Size::new(32, 17, 1), Size::new(32, 0, 1), Size::width(2048)] {
            assert!(
                matches!(check(Size::width(7), threads), Err(Error::ThreadgroupSize { .. })),
                "{threads}"
            );
        }
        for grid in [Size::new(0, 1, 1), Size::new(1, 1 << 32, 1)] {
            assert!(matches!(check(grid, Size::width(32)), Err(Error::EmptyGrid { .. })), "{grid}");
        }
    }
}
