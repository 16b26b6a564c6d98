//! Queues, and waiting for what was committed to them.

use std::ptr::NonNull;

use block2::RcBlock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandQueue, MTLDevice};

use super::encoder::ObjcCommandBuffer;
use super::library::ObjcPipeline;
use super::{ObjcBuffer, describe};
use crate::device::{Error, GpuInterval, Limits, Progress, Queue, Result};

/// A queue of command buffers.
pub struct ObjcQueue {
    pub(super) raw: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    limits: Limits,
}

impl ObjcQueue {
    pub(super) fn new(device: &ProtocolObject<dyn MTLDevice>, label: &str, limits: &Limits) -> Result<Self> {
        let raw = device
            .newCommandQueue()
            .ok_or_else(|| Error::Device(format!("queue '{label}': the device has no queue left")))?;
        raw.setLabel(Some(&NSString::from_str(label)));
        Ok(Self { raw, limits: limits.clone() })
    }
}

impl Queue for ObjcQueue {
    type Buffer = ObjcBuffer;
    type Pipeline = ObjcPipeline;
    type CommandBuffer = ObjcCommandBuffer;

    fn new_command_buffer(&self, label: &str) -> Result<ObjcCommandBuffer> {
        let raw = autoreleasepool(|_| self.raw.commandBuffer())
            .ok_or_else(|| Error::Device(format!("command buffer '{label}': the queue gives none")))?;
        raw.setLabel(Some(&NSString::from_str(label)));
        Ok(ObjcCommandBuffer::new(raw, label, self.limits.clone()))
    }
}

/// Commits the command buffer. Metal tells of its progress on a thread of its own.
pub(super) fn commit(raw: &ProtocolObject<dyn MTLCommandBuffer>, progress: &Progress) {
    let scheduled = progress.clone();
    let scheduled = RcBlock::new(move |_: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| scheduled.start());
    let completed = progress.clone();
    let completed = RcBlock::new(move |raw: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
        // SAFETY: Metal hands its handlers the command buffer, alive for the call.
        let raw = unsafe { raw.as_ref() };
        let result = if raw.status() == MTLCommandBufferStatus::Completed {
            Ok(GpuInterval { start: raw.GPUStartTime(), end: raw.GPUEndTime() })
        } else {
            let reason = match raw.error() {
                Some(error) => describe(&error),
                None => format!("ended with status {}", raw.status().0),
            };
            // Metal names no kernel: it is one of the last dispatches.
            Err(completed.execution_error("", reason))
        };
        completed.finish(result);
    });
    // SAFETY: both are blocks of the right signature, which Metal copies. They own all they use, and that may
    // be used from Metal's threads.
    unsafe {
        raw.addScheduledHandler(RcBlock::as_ptr(&scheduled));
        raw.addCompletedHandler(RcBlock::as_ptr(&completed));
    }
    raw.commit();
}
