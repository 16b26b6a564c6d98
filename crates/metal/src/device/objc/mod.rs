//! Apple's Metal API as a [`Device`](super::Device).
//!
//! Thin on purpose: each method is the Metal call of the same name, with the checks that Metal's validation layer
//! would make, since without them a wrong call ends the process or faults on the GPU. What to launch, when and how
//! often is not decided here.
//!
//! Metal's objects may be used from any thread, except that encoders and open command buffers belong to one thread at a
//! time. Methods that return autoreleased objects are called inside a pool, since threads of Rust have none.

mod commands;
mod library;

use std::path::Path;
use std::ptr::NonNull;

use dispatch2::DispatchData;
use objc2::available;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSString, NSURL};
use objc2_metal::{
    MTLBuffer, MTLCaptureDescriptor, MTLCaptureDestination, MTLCaptureManager, MTLCommandQueue,
    MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily, MTLResidencySetDescriptor, MTLResource,
    MTLResourceOptions,
};

pub use commands::{ObjcCommandBuffer, ObjcEncoder, ObjcQueue};
pub use library::{ObjcLibrary, ObjcPipeline};

use super::{
    Buffer, Capabilities, CompileOptions, Device, Error, FunctionConstants, HostMemory, Limits, ResidencySet,
    Result, Size,
};

// `MTLCreateSystemDefaultDevice` finds no device in a program that does not link CoreGraphics.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// The Mac's GPU. A clone is another handle on it.
#[derive(Clone)]
pub struct ObjcDevice {
    raw: Retained<ProtocolObject<dyn MTLDevice>>,
    name: String,
    limits: Limits,
    capabilities: Capabilities,
}

impl ObjcDevice {
    /// The system's default GPU. Before macOS 13 there is neither the kernels' language nor their reflection.
    ///
    /// # Errors
    /// [`Error::Device`] on a machine without one that Metal supports, and on an older system.
    pub fn system_default() -> Result<Self> {
        let missing = || Error::Device("Metal finds no GPU, or the system is older than macOS 13".to_owned());
        let raw = MTLCreateSystemDefaultDevice().filter(|_| available!(macos = 13.0)).ok_or_else(missing)?;
        // Metal numbers the families in a row.
        let family = |number: u32| MTLGPUFamily(MTLGPUFamily::Apple1.0 + number as isize - 1);
        let newest = (7..=10).rev().find(|&number| raw.supportsFamily(family(number)));
        // `bfloat` is part of the language from 3.1 on, which came with macOS 14.
        let mut capabilities = Capabilities::of_family(newest.unwrap_or(0), available!(macos = 14.0));
        capabilities.unified_memory = raw.hasUnifiedMemory();
        let threads = raw.maxThreadsPerThreadgroup();
        let limits = Limits {
            max_buffer_length: raw.maxBufferLength(),
            max_threadgroup_memory: raw.maxThreadgroupMemoryLength(),
            max_threads_per_threadgroup: threads.width,
            max_threadgroup_size: Size::new(threads.width, threads.height, threads.depth),
            recommended_working_set: raw.recommendedMaxWorkingSetSize().try_into().unwrap_or(usize::MAX),
            ..Limits::default()
        };
        if available!(macos = 13.3) {
            raw.setShouldMaximizeConcurrentCompilation(true);
        }
        Ok(Self { name: raw.name().to_string(), raw, limits, capabilities })
    }
}

impl Device for ObjcDevice {
    type Buffer = ObjcBuffer;
    type Library = ObjcLibrary;
    type Pipeline = ObjcPipeline;
    type Queue = ObjcQueue;

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn new_buffer(&self, label: &str, length: usize) -> Result<ObjcBuffer> {
        self.limits.check_buffer_length(label, length)?;
        ObjcBuffer::new(label, length, || self.raw.newBufferWithLength_options(length, SHARED))
    }

    unsafe fn new_buffer_no_copy(
        &self,
        label: &str,
        memory: NonNull<u8>,
        length: usize,
    ) -> Result<ObjcBuffer> {
        self.limits.check_no_copy(label, memory.as_ptr() as usize, length)?;
        // SAFETY: the range is aligned to pages, and the caller vouches that it outlives the buffer and everything
        // submitted with it. Without a deallocator Metal never frees it.
        ObjcBuffer::new(label, length, || unsafe {
            let (raw, start) = (&self.raw, memory.cast());
            raw.newBufferWithBytesNoCopy_length_options_deallocator(start, length, SHARED, None)
        })
    }

    fn new_library(&self, label: &str, source: &str, options: &CompileOptions) -> Result<ObjcLibrary> {
        autoreleasepool(|_| {
            let (source, options) = (NSString::from_str(source), library::compile_options(options));
            // Warnings come as an error object beside a library and are dropped, as by Apple's own binding.
            ObjcLibrary::new(label, self.raw.newLibraryWithSource_options_error(&source, Some(&options)))
        })
    }

    fn new_library_with_data(&self, label: &str, data: &[u8]) -> Result<ObjcLibrary> {
        let data = DispatchData::from_bytes(data);
        autoreleasepool(|_| ObjcLibrary::new(label, self.raw.newLibraryWithData_error(&data)))
    }

    fn new_pipeline(
        &self,
        library: &ObjcLibrary,
        name: &str,
        constants: &FunctionConstants,
    ) -> Result<ObjcPipeline> {
        library.pipeline(&self.raw, name, constants)
    }

    fn new_queue(&self, label: &str) -> Result<ObjcQueue> {
        let missing = || Error::Device(format!("queue '{label}': the device has no queue left"));
        let raw = self.raw.newCommandQueue().ok_or_else(missing)?;
        raw.setLabel(Some(&NSString::from_str(label)));
        Ok(ObjcQueue { raw, limits: self.limits.clone() })
    }

    fn new_residency_set(&self, queue: &ObjcQueue) -> Result<Option<Box<dyn ResidencySet<ObjcBuffer>>>> {
        if !available!(macos = 15.0) {
            return Ok(None);
        }
        autoreleasepool(|_| {
            let set = self.raw.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new());
            let raw = set.map_err(|error| Error::Device(format!("residency set: {}", describe(&error))))?;
            let queue = queue.raw.clone();
            queue.addResidencySet(&raw);
            Ok(Some(Box::new(commands::ObjcResidencySet { raw, queue }) as Box<dyn ResidencySet<_>>))
        })
    }

    fn allocated_memory(&self) -> usize {
        self.raw.currentAllocatedSize()
    }

    fn scope<T>(work: impl FnOnce() -> T) -> T {
        autoreleasepool(|_| work())
    }

    fn start_capture(&self, path: &Path) -> Result<()> {
        autoreleasepool(|_| {
            let descriptor = MTLCaptureDescriptor::new();
            descriptor.setDestination(MTLCaptureDestination::GPUTraceDocument);
            let url = NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()));
            descriptor.setOutputURL(Some(&url));
            // SAFETY: a device is one of the objects that can be captured.
            unsafe { descriptor.setCaptureObject(Some(self.raw.as_ref())) };
            capture_manager().startCaptureWithDescriptor_error(&descriptor).map_err(|error| {
                let (path, reason) = (path.display(), describe(&error));
                Error::Device(format!("capture to {path}: {reason} (is MTL_CAPTURE_ENABLED=1 set?)"))
            })
        })
    }

    fn stop_capture(&self) {
        if capture_manager().isCapturing() {
            capture_manager().stopCapture();
        }
    }
}

fn capture_manager() -> Retained<MTLCaptureManager> {
    // SAFETY: it is a singleton of the process that may be used from every thread.
    unsafe { MTLCaptureManager::sharedCaptureManager() }
}

/// Host and GPU see the same memory; Metal orders the commands that touch it.
const SHARED: MTLResourceOptions = MTLResourceOptions::StorageModeShared;

type RawBuffer = ProtocolObject<dyn MTLBuffer>;

/// Memory that host and GPU share.
#[derive(Clone)]
pub struct ObjcBuffer {
    raw: Retained<RawBuffer>,
    memory: HostMemory,
}

// SAFETY: the object is one of Metal's resources, which Apple documents as usable from every thread.
unsafe impl Send for ObjcBuffer {}
// SAFETY: as above.
unsafe impl Sync for ObjcBuffer {}

impl ObjcBuffer {
    fn new(label: &str, length: usize, make: impl FnOnce() -> Option<Retained<RawBuffer>>) -> Result<Self> {
        let raw = autoreleasepool(|_| make()).ok_or_else(|| Error::no_memory(label, length))?;
        raw.setLabel(Some(&NSString::from_str(label)));
        // SAFETY: a shared buffer's memory is the host's, too, for as long as the object lives.
        let memory = unsafe { HostMemory::new(label, raw.contents().cast(), length) };
        Ok(Self { raw, memory })
    }
}

impl Buffer for ObjcBuffer {
    fn memory(&self) -> &HostMemory {
        &self.memory
    }
}

/// What an error of Apple's frameworks says, with where it comes from.
fn describe(error: &NSError) -> String {
    let encoders = commands::failed_encoders(error);
    format!("{} ({} {}){encoders}", error.localizedDescription(), error.domain(), error.code())
}
