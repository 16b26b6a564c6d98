//! Buffers.

use std::ptr::NonNull;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{MTLBuffer, MTLResource, MTLResourceOptions};

use crate::device::{Buffer, Error, HostMemory, Result};

/// Host and GPU see the same memory; Metal orders the commands that touch it.
pub(super) const SHARED: MTLResourceOptions = MTLResourceOptions::StorageModeShared;

/// Memory that host and GPU share.
#[derive(Clone)]
pub struct ObjcBuffer {
    pub(super) raw: Retained<ProtocolObject<dyn MTLBuffer>>,
    memory: HostMemory,
}

// SAFETY: the object is one of Metal's resources, which Apple documents as usable from every thread.
unsafe impl Send for ObjcBuffer {}
// SAFETY: as above.
unsafe impl Sync for ObjcBuffer {}

impl ObjcBuffer {
    pub(super) fn new(
        label: &str,
        length: usize,
        raw: Option<Retained<ProtocolObject<dyn MTLBuffer>>>,
    ) -> Result<Self> {
        let raw =
            raw.ok_or_else(|| Error::Device(format!("buffer '{label}': no memory for {length} bytes")))?;
        raw.setLabel(Some(&NSString::from_str(label)));
        // SAFETY: a shared buffer's memory is the host's, too, for as long as the object lives.
        let memory = unsafe { HostMemory::new(label, raw.contents().cast(), length) };
        Ok(Self { raw, memory })
    }
}

impl Buffer for ObjcBuffer {
    fn length(&self) -> usize {
        self.memory.length()
    }

    fn label(&self) -> &str {
        self.memory.label()
    }

    fn contents(&self) -> NonNull<u8> {
        self.memory.start()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.memory.read(offset, out)
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.memory.write(offset, data)
    }
}
