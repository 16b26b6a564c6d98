//! Command buffers and encoders.

use std::ptr::NonNull;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandEncoder, MTLComputeCommandEncoder,
    MTLDispatchType, MTLResource, MTLSize,
};

use super::library::ObjcPipeline;
use super::{ObjcBuffer, queue};
use crate::device::{
    Bindings, CommandBuffer, ComputeEncoder, DispatchMode, Error, LastDispatches, Limits, Pipeline, Progress,
    Result, Size, checks,
};

/// A recording of work.
pub struct ObjcCommandBuffer {
    raw: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    label: String,
    limits: Limits,
    last_dispatches: LastDispatches,
}

impl ObjcCommandBuffer {
    pub(super) fn new(
        raw: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
        label: &str,
        limits: Limits,
    ) -> Self {
        Self { raw, label: label.to_owned(), limits, last_dispatches: LastDispatches::default() }
    }
}

impl CommandBuffer for ObjcCommandBuffer {
    type Buffer = ObjcBuffer;
    type Pipeline = ObjcPipeline;
    type Encoder<'a> = ObjcEncoder<'a>;
    type Submission = Progress;

    fn compute_encoder(&mut self, label: &str, mode: DispatchMode) -> ObjcEncoder<'_> {
        let kind = match mode {
            DispatchMode::Serial => MTLDispatchType::Serial,
            DispatchMode::Concurrent => MTLDispatchType::Concurrent,
        };
        let raw = autoreleasepool(|_| self.raw.computeCommandEncoderWithDispatchType(kind));
        if let Some(raw) = &raw {
            raw.setLabel(Some(&NSString::from_str(label)));
        }
        ObjcEncoder {
            raw,
            mode,
            label: label.to_owned(),
            bindings: Bindings::new(&self.limits),
            command_buffer: self,
            pipeline: None,
        }
    }

    fn copy(
        &mut self,
        source: &ObjcBuffer,
        source_offset: usize,
        destination: &ObjcBuffer,
        destination_offset: usize,
        length: usize,
    ) -> Result<()> {
        checks::copy(source, source_offset, destination, destination_offset, length)?;
        if length == 0 {
            return Ok(());
        }
        let encoder = autoreleasepool(|_| self.raw.blitCommandEncoder())
            .ok_or_else(|| Error::Device(format!("command buffer '{}': no blit encoder", self.label)))?;
        // SAFETY: both ranges were checked, and the command buffer retains both buffers.
        unsafe {
            encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                &source.raw,
                source_offset,
                &destination.raw,
                destination_offset,
                length,
            );
        }
        encoder.endEncoding();
        Ok(())
    }

    fn commit(self) -> Result<Progress> {
        let progress = Progress::new(&self.label, self.last_dispatches);
        autoreleasepool(|_| queue::commit(&self.raw, &progress));
        Ok(progress)
    }
}

/// Records dispatches.
pub struct ObjcEncoder<'a> {
    /// `None` where Metal gave no encoder, which the first dispatch reports.
    raw: Option<Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>>,
    mode: DispatchMode,
    label: String,
    command_buffer: &'a mut ObjcCommandBuffer,
    pipeline: Option<ObjcPipeline>,
    /// Metal holds the buffers itself.
    bindings: Bindings<()>,
}

impl ObjcEncoder<'_> {
    /// Checks everything that Metal leaves undefined; returns the encoder for the launch.
    fn check_dispatch(
        &mut self,
        grid: Size,
        threads: Size,
    ) -> Result<&ProtocolObject<dyn MTLComputeCommandEncoder>> {
        let kernel = &self.pipeline.as_ref().ok_or(Error::NoPipeline)?.shared.interface;
        let command_buffer = &mut *self.command_buffer;
        self.bindings.check_dispatch(&command_buffer.limits, kernel, grid, threads)?;
        command_buffer.last_dispatches.push(&self.label, &kernel.name);
        let label = &command_buffer.label;
        self.raw
            .as_deref()
            .ok_or_else(|| Error::Device(format!("command buffer '{label}': no compute encoder")))
    }
}

fn mtl_size(size: Size) -> MTLSize {
    MTLSize { width: size.width, height: size.height, depth: size.depth }
}

impl ComputeEncoder for ObjcEncoder<'_> {
    type Buffer = ObjcBuffer;
    type Pipeline = ObjcPipeline;

    fn set_label(&mut self, label: &str) {
        label.clone_into(&mut self.label);
    }

    fn set_pipeline(&mut self, pipeline: &ObjcPipeline) {
        if let Some(raw) = &self.raw {
            raw.setComputePipelineState(&pipeline.shared.raw);
        }
        self.pipeline = Some(pipeline.clone());
    }

    fn set_buffer(&mut self, slot: usize, buffer: &ObjcBuffer, offset: usize) -> Result<()> {
        self.bindings.set_buffer(&self.command_buffer.limits, slot, buffer, offset, ())?;
        if let Some(raw) = &self.raw {
            // SAFETY: slot and offset were checked, and the command buffer retains the buffer.
            unsafe { raw.setBuffer_offset_atIndex(Some(&buffer.raw), offset, slot) };
        }
        Ok(())
    }

    fn set_bytes(&mut self, slot: usize, bytes: &[u8]) -> Result<()> {
        self.bindings.set_bytes(&self.command_buffer.limits, slot, bytes, ())?;
        if let Some(raw) = &self.raw {
            // SAFETY: slot and length were checked, and Metal copies the bytes in the call.
            unsafe { raw.setBytes_length_atIndex(NonNull::from(bytes).cast(), bytes.len(), slot) };
        }
        Ok(())
    }

    fn set_threadgroup_memory(&mut self, slot: usize, length: usize) -> Result<()> {
        let kernel = self.pipeline.as_ref().map_or("", |pipeline| pipeline.name());
        self.bindings.set_threadgroup_memory(&self.command_buffer.limits, kernel, slot, length)?;
        if let Some(raw) = &self.raw {
            // SAFETY: slot and length were checked.
            unsafe { raw.setThreadgroupMemoryLength_atIndex(length, slot) };
        }
        Ok(())
    }

    fn dispatch_threadgroups(&mut self, threadgroups: Size, threads_per_threadgroup: Size) -> Result<()> {
        let raw = self.check_dispatch(threadgroups, threads_per_threadgroup)?;
        raw.dispatchThreadgroups_threadsPerThreadgroup(
            mtl_size(threadgroups),
            mtl_size(threads_per_threadgroup),
        );
        Ok(())
    }

    fn dispatch_threads(&mut self, threads: Size, threads_per_threadgroup: Size) -> Result<()> {
        let raw = self.check_dispatch(threads, threads_per_threadgroup)?;
        raw.dispatchThreads_threadsPerThreadgroup(mtl_size(threads), mtl_size(threads_per_threadgroup));
        Ok(())
    }

    fn barrier(&mut self) {
        if let (Some(raw), DispatchMode::Concurrent) = (&self.raw, self.mode) {
            raw.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
    }

    fn barrier_for(&mut self, buffers: &[&ObjcBuffer]) {
        let mut resources: Vec<NonNull<ProtocolObject<dyn MTLResource>>> = buffers
            .iter()
            .map(|buffer| {
                let resource: &ProtocolObject<dyn MTLResource> = ProtocolObject::from_ref(&*buffer.raw);
                NonNull::from(resource)
            })
            .collect();
        if let (Some(raw), DispatchMode::Concurrent, Some(first)) =
            (&self.raw, self.mode, NonNull::new(resources.as_mut_ptr()).filter(|_| !buffers.is_empty()))
        {
            // SAFETY: `first` leads to as many resources, which the callers' buffers keep alive in the call.
            unsafe { raw.memoryBarrierWithResources_count(first, buffers.len()) };
        }
    }
}

impl Drop for ObjcEncoder<'_> {
    fn drop(&mut self) {
        if let Some(raw) = &self.raw {
            raw.endEncoding();
        }
    }
}
