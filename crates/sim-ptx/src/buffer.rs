//! Buffers: memory of the host with a copy on the GPU.
//!
//! On a Mac both see the same memory. Here a submission begins with copying to the GPU what the host may have written
//! since the last one, and ends with copying back what its kernels may have written.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metal::device::{Buffer, Error, HostMemory, Limits, Result};

use crate::driver::{Context, DeviceMemory};

/// Memory that host and kernels share.
#[derive(Clone)]
pub struct PtxBuffer {
    memory: Arc<Memory>,
}

struct Memory {
    host: HostMemory,
    /// Of memory of our own.
    layout: Option<Layout>,
    device: DeviceMemory,
    /// The host may have written since the last copy to the GPU.
    is_newer: AtomicBool,
    /// Someone holds the address and may write at any time.
    is_exposed: AtomicBool,
}

impl PtxBuffer {
    pub(crate) fn owned(context: &Arc<Context>, label: &str, length: usize, limits: &Limits) -> Result<Self> {
        limits.check_buffer_length(label, length)?;
        let no_memory = || Error::Device(format!("buffer '{label}': no memory for {length} bytes"));
        let layout = Layout::from_size_align(length, limits.no_copy_alignment).map_err(|_| no_memory())?;
        // SAFETY: the length is not 0, as was checked.
        let host = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        Self::new(context, label, host, length, Some(layout), false)
    }

    /// # Safety
    /// See [`metal::device::Device::new_buffer_no_copy`].
    pub(crate) unsafe fn foreign(
        context: &Arc<Context>,
        label: &str,
        host: NonNull<u8>,
        length: usize,
        limits: &Limits,
    ) -> Result<Self> {
        limits.check_no_copy(label, host.as_ptr() as usize, length)?;
        Self::new(context, label, host, length, None, true)
    }

    fn new(
        context: &Arc<Context>,
        label: &str,
        host: NonNull<u8>,
        length: usize,
        layout: Option<Layout>,
        is_exposed: bool,
    ) -> Result<Self> {
        let device = DeviceMemory::new(context, length).inspect_err(|_| {
            if let Some(layout) = layout {
                // SAFETY: allocated with this layout by `owned`, and handed to no one.
                unsafe { dealloc(host.as_ptr(), layout) };
            }
        })?;
        // SAFETY: allocated with `layout` until the memory is dropped, or vouched for by the caller of `foreign`.
        let host = unsafe { HostMemory::new(label, host, length) };
        Ok(Self {
            memory: Arc::new(Memory {
                host,
                layout,
                device,
                is_newer: AtomicBool::new(true),
                is_exposed: AtomicBool::new(is_exposed),
            }),
        })
    }

    /// Tells buffers apart.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.memory) as usize
    }

    pub(crate) fn device_address(&self) -> u64 {
        self.memory.device.address
    }

    /// Before a submission's kernels run.
    pub(crate) fn upload(&self) -> Result<()> {
        let memory = &self.memory;
        if memory.is_newer.swap(false, Ordering::AcqRel) || memory.is_exposed.load(Ordering::Acquire) {
            // SAFETY: the memory is alive, and the host keeps its hands off it while work is in flight.
            let host = unsafe { slice::from_raw_parts(memory.host.start().as_ptr(), memory.host.length()) };
            memory.device.upload(host)?;
        }
        Ok(())
    }

    /// After a submission's kernels, which may have written here.
    pub(crate) fn download(&self) -> Result<()> {
        let memory = &self.memory;
        // SAFETY: as in `upload`.
        let host = unsafe { slice::from_raw_parts_mut(memory.host.start().as_ptr(), memory.host.length()) };
        memory.device.download(host)
    }
}

impl Buffer for PtxBuffer {
    fn memory(&self) -> &HostMemory {
        &self.memory.host
    }

    fn contents(&self) -> NonNull<u8> {
        self.memory.is_exposed.store(true, Ordering::Release);
        self.memory.host.start()
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.memory.host.write(offset, data)?;
        self.memory.is_newer.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated with this layout, and this was the last handle.
            unsafe { dealloc(self.host.start().as_ptr(), layout) };
        }
    }
}
