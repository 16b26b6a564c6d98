//! Queues, command buffers and encoders.

use std::ptr::NonNull;

use block2::RcBlock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString};
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandBufferDescriptor,
    MTLCommandBufferEncoderInfo, MTLCommandBufferEncoderInfoErrorKey, MTLCommandBufferErrorOption,
    MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandEncoderErrorState as ErrorState, MTLCommandQueue,
    MTLComputeCommandEncoder, MTLDispatchType, MTLResidencySet, MTLSize,
};

use super::library::ObjcPipeline;
use super::{ObjcBuffer, describe};
use crate::device::{
    CommandBuffer, ComputeEncoder, DispatchMode, Encoding, Error, GpuInterval, LastDispatches, Limits,
    Pipeline, Progress, Queue, ResidencySet, Result, Size, checks,
};

/// A queue of command buffers.
pub struct ObjcQueue {
    pub(super) raw: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    pub(super) limits: Limits,
}

impl Queue for ObjcQueue {
    type Buffer = ObjcBuffer;
    type Pipeline = ObjcPipeline;
    type CommandBuffer = ObjcCommandBuffer;

    fn new_command_buffer(&self, label: &str) -> Result<ObjcCommandBuffer> {
        let descriptor = MTLCommandBufferDescriptor::new();
        descriptor.setErrorOptions(MTLCommandBufferErrorOption::EncoderExecutionStatus);
        let raw = autoreleasepool(|_| self.raw.commandBufferWithDescriptor(&descriptor))
            .ok_or_else(|| Error::Device(format!("command buffer '{label}': the queue gives none")))?;
        raw.setLabel(Some(&NSString::from_str(label)));
        let (label, limits) = (label.to_owned(), self.limits.clone());
        Ok(ObjcCommandBuffer { raw, label, limits, last_dispatches: LastDispatches::default() })
    }
}

/// The residency set of a queue.
pub(super) struct ObjcResidencySet {
    pub(super) raw: Retained<ProtocolObject<dyn MTLResidencySet>>,
    pub(super) queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
}

// SAFETY: it belongs to no thread, and whoever calls it has it for himself.
unsafe impl Send for ObjcResidencySet {}

impl ResidencySet<ObjcBuffer> for ObjcResidencySet {
    fn change(&mut self, added: &[ObjcBuffer], removed: &[ObjcBuffer]) {
        added.iter().for_each(|buffer| self.raw.addAllocation(ProtocolObject::from_ref(&*buffer.raw)));
        removed.iter().for_each(|buffer| self.raw.removeAllocation(ProtocolObject::from_ref(&*buffer.raw)));
        self.raw.commit();
    }

    fn request(&mut self) {
        autoreleasepool(|_| self.raw.requestResidency());
    }
}

impl Drop for ObjcResidencySet {
    fn drop(&mut self) {
        autoreleasepool(|_| self.queue.removeResidencySet(&self.raw));
        self.raw.endResidency();
    }
}

/// A recording of work.
pub struct ObjcCommandBuffer {
    raw: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    label: String,
    limits: Limits,
    last_dispatches: LastDispatches,
}

impl CommandBuffer for ObjcCommandBuffer {
    type Buffer = ObjcBuffer;
    type Pipeline = ObjcPipeline;
    type Encoder<'a> = ObjcEncoder<'a>;
    type Submission = Progress;

    fn compute_encoder(&mut self, label: &str, mode: DispatchMode) -> ObjcEncoder<'_> {
        let is_serial = mode == DispatchMode::Serial;
        let kind = if is_serial { MTLDispatchType::Serial } else { MTLDispatchType::Concurrent };
        let raw = autoreleasepool(|_| self.raw.computeCommandEncoderWithDispatchType(kind));
        let encoding = Encoding::new(label, mode, &self.limits);
        let encoder = ObjcEncoder { raw, encoding, command_buffer: self };
        encoder.send(|raw| raw.setLabel(Some(&NSString::from_str(label))));
        encoder
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
        // Metal tells of the progress on a thread of its own.
        let (scheduled, completed) = (progress.clone(), progress.clone());
        let scheduled = RcBlock::new(move |_: Handed| scheduled.start());
        let completed = RcBlock::new(move |raw: Handed| {
            // SAFETY: Metal hands its handlers the command buffer, alive for the call.
            let raw = unsafe { raw.as_ref() };
            let result = if raw.status() == MTLCommandBufferStatus::Completed {
                Ok(GpuInterval { start: raw.GPUStartTime(), end: raw.GPUEndTime() })
            } else {
                let unknown = || format!("ended with status {}", raw.status().0);
                let reason = raw.error().map_or_else(unknown, |error| describe(&error));
                // Metal names no kernel: it is one of the last dispatches.
                Err(completed.execution_error("", reason))
            };
            completed.finish(result);
        });
        // SAFETY: both are blocks of the right signature, which Metal copies. They own all they use, and that may be used
        // from Metal's threads.
        autoreleasepool(|_| unsafe {
            self.raw.addScheduledHandler(RcBlock::as_ptr(&scheduled));
            self.raw.addCompletedHandler(RcBlock::as_ptr(&completed));
            self.raw.commit();
        });
        Ok(progress)
    }
}

/// The labels of the encoders at fault, of a command buffer's error, as far as Metal tells.
pub(super) fn failed_encoders(error: &NSError) -> String {
    // SAFETY: a constant of the framework.
    let found = error.userInfo().objectForKey(unsafe { MTLCommandBufferEncoderInfoErrorKey });
    // SAFETY: what Metal has under this key is an array of these.
    let all: Option<Retained<NSArray<EncoderInfo>>> =
        unsafe { found.map(|found| Retained::cast_unchecked(found)) };
    let failed =
        all.iter().flat_map(|all| all.iter()).filter(|encoder| encoder.errorState() == ErrorState::Faulted);
    failed.map(|encoder| format!("; encoder '{}' failed", encoder.label())).collect()
}

/// What Metal hands its handlers.
type Handed = NonNull<ProtocolObject<dyn MTLCommandBuffer>>;
type EncoderInfo = ProtocolObject<dyn MTLCommandBufferEncoderInfo>;
type Raw = ProtocolObject<dyn MTLComputeCommandEncoder>;

/// Records dispatches.
pub struct ObjcEncoder<'a> {
    /// `None` where Metal gave no encoder, which the first dispatch reports.
    raw: Option<Retained<Raw>>,
    /// Metal holds the buffers itself.
    encoding: Encoding<(), ObjcPipeline>,
    command_buffer: &'a mut ObjcCommandBuffer,
}

impl ObjcEncoder<'_> {
    fn send(&self, call: impl FnOnce(&Raw)) {
        if let Some(raw) = &self.raw {
            call(raw);
        }
    }

    /// Launches after a check of everything that Metal leaves undefined; `grid` counts threads or threadgroups.
    fn dispatch(&mut self, grid: Size, threads: Size, launch: fn(&Raw, MTLSize, MTLSize)) -> Result<()> {
        let pipeline = self.encoding.check_dispatch(grid, threads)?;
        self.command_buffer.last_dispatches.push(self.encoding.label(), pipeline.name());
        let missing = || Error::Device(format!("command buffer '{}': no encoder", self.command_buffer.label));
        let size = |Size { width, height, depth }| MTLSize { width, height, depth };
        launch(self.raw.as_deref().ok_or_else(missing)?, size(grid), size(threads));
        Ok(())
    }
}

impl ComputeEncoder for ObjcEncoder<'_> {
    type Buffer = ObjcBuffer;
    type Pipeline = ObjcPipeline;

    fn set_label(&mut self, label: &str) {
        self.encoding.set_label(label);
    }

    fn set_pipeline(&mut self, pipeline: &ObjcPipeline) {
        self.encoding.set_pipeline(pipeline);
        self.send(|raw| raw.setComputePipelineState(&pipeline.raw));
    }

    fn set_buffer(&mut self, slot: usize, buffer: &ObjcBuffer, offset: usize) -> Result<()> {
        self.encoding.set_buffer(slot, buffer, offset, ())?;
        // SAFETY: slot and offset were checked, and the command buffer retains the buffer.
        self.send(|raw| unsafe { raw.setBuffer_offset_atIndex(Some(&buffer.raw), offset, slot) });
        Ok(())
    }

    fn set_bytes(&mut self, slot: usize, bytes: &[u8]) -> Result<()> {
        self.encoding.set_bytes(slot, bytes, ())?;
        // SAFETY: slot and length were checked, and Metal copies the bytes in the call.
        self.send(|raw| unsafe {
            raw.setBytes_length_atIndex(NonNull::from(bytes).cast(), bytes.len(), slot)
        });
        Ok(())
    }

    fn set_threadgroup_memory(&mut self, slot: usize, length: usize) -> Result<()> {
        self.encoding.set_threadgroup_memory(slot, length)?;
        // Metal takes no length of 0. What stays may be charged to a kernel that has no use for it: the least, then.
        let length = length.max(self.command_buffer.limits.threadgroup_memory_alignment);
        // SAFETY: slot and length were checked.
        self.send(|raw| unsafe { raw.setThreadgroupMemoryLength_atIndex(length, slot) });
        Ok(())
    }

    fn dispatch_threadgroups(&mut self, threadgroups: Size, threads: Size) -> Result<()> {
        self.dispatch(threadgroups, threads, Raw::dispatchThreadgroups_threadsPerThreadgroup)
    }

    fn dispatch_threads(&mut self, grid: Size, threads: Size) -> Result<()> {
        self.dispatch(grid, threads, Raw::dispatchThreads_threadsPerThreadgroup)
    }

    fn barrier(&mut self) {
        if self.encoding.is_concurrent() {
            self.send(|raw| raw.memoryBarrierWithScope(MTLBarrierScope::Buffers));
        }
    }
}

impl Drop for ObjcEncoder<'_> {
    fn drop(&mut self) {
        self.send(|raw| raw.endEncoding());
    }
}
