//! Command buffers and encoders.

use std::ptr::NonNull;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandEncoder, MTLComputeCommandEncoder,
    MTLDispatchType, MTLSize,
};

use super::ObjcBuffer;
use super::library::ObjcPipeline;
use super::queue::ObjcSubmission;
use crate::device::{
    Buffer, CommandBuffer, ComputeEncoder, DispatchMode, Error, LastDispatches, Limits, Pipeline, Progress,
    Result, Size,
};

/// Slots of each kind: more than any device has.
const SLOTS: usize = 32;

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
    type Submission = ObjcSubmission;

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
            command_buffer: self,
            pipeline: None,
            bound: [0; SLOTS],
            threadgroup_memory: [0; SLOTS],
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
        source.check_range(source_offset, length)?;
        destination.check_range(destination_offset, length)?;
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

    fn commit(self) -> Result<ObjcSubmission> {
        let progress = Progress::new(&self.label, self.last_dispatches);
        Ok(autoreleasepool(|_| ObjcSubmission::commit(&self.raw, progress)))
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
    /// Bytes bound to each buffer slot, 0 for none.
    bound: [usize; SLOTS],
    threadgroup_memory: [usize; SLOTS],
}

impl ObjcEncoder<'_> {
    fn limits(&self) -> &Limits {
        &self.command_buffer.limits
    }

    /// Checks everything that Metal leaves undefined; returns the encoder for the launch.
    fn check_dispatch(
        &mut self,
        grid: Size,
        threads: Size,
    ) -> Result<&ProtocolObject<dyn MTLComputeCommandEncoder>> {
        let pipeline = self.pipeline.as_ref().ok_or(Error::NoPipeline)?;
        let kernel = pipeline.name();
        let limits = &self.command_buffer.limits;
        limits.check_launch(kernel, pipeline.max_threads_per_threadgroup(), grid, threads)?;
        for parameter in &pipeline.shared.parameters {
            let (space, bound) = if parameter.is_threadgroup {
                ("threadgroup", self.threadgroup_memory.get(parameter.slot))
            } else {
                ("buffer", self.bound.get(parameter.slot))
            };
            let bound = bound.copied().unwrap_or(0);
            if bound == 0 {
                let slot = format!("{space}({})", parameter.slot);
                return Err(Error::Unbound {
                    kernel: kernel.to_owned(),
                    slot,
                    parameter: parameter.name.clone(),
                });
            }
            if bound < parameter.size {
                return Err(Error::BindingTooSmall {
                    kernel: kernel.to_owned(),
                    slot: parameter.slot,
                    parameter: parameter.name.clone(),
                    reason: format!("{bound} bytes bound, its type has {}", parameter.size),
                });
            }
        }
        let memory: usize = self.threadgroup_memory.iter().sum::<usize>() + pipeline.shared.static_memory;
        limits.check_threadgroup_memory(kernel, memory)?;
        self.command_buffer.last_dispatches.push(&self.label, kernel);
        let label = &self.command_buffer.label;
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
        self.limits().check_buffer_slot(slot)?;
        // An offset at the very end leaves nothing to bind.
        buffer.check_range(offset, 1)?;
        if let Some(raw) = &self.raw {
            // SAFETY: slot and offset were checked, and the command buffer retains the buffer.
            unsafe { raw.setBuffer_offset_atIndex(Some(&buffer.raw), offset, slot) };
        }
        self.bound[slot] = buffer.length() - offset;
        Ok(())
    }

    fn set_bytes(&mut self, slot: usize, bytes: &[u8]) -> Result<()> {
        self.limits().check_inline_bytes(slot, bytes.len())?;
        if let Some(raw) = &self.raw {
            // SAFETY: slot and length were checked, and Metal copies the bytes in the call.
            unsafe { raw.setBytes_length_atIndex(NonNull::from(bytes).cast(), bytes.len(), slot) };
        }
        self.bound[slot] = bytes.len();
        Ok(())
    }

    fn set_threadgroup_memory(&mut self, slot: usize, length: usize) -> Result<()> {
        let kernel = self.pipeline.as_ref().map_or("", |pipeline| pipeline.name());
        self.limits().check_threadgroup_slot(kernel, slot, length)?;
        if let Some(raw) = &self.raw {
            // SAFETY: slot and length were checked.
            unsafe { raw.setThreadgroupMemoryLength_atIndex(length, slot) };
        }
        self.threadgroup_memory[slot] = length;
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
}

impl Drop for ObjcEncoder<'_> {
    fn drop(&mut self) {
        if let Some(raw) = &self.raw {
            raw.endEncoding();
        }
    }
}
