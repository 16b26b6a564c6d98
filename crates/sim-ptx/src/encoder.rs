//! Command buffers and encoders: recording, with the checks of Metal's validation layer.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use metal::device::{
    Buffer, CommandBuffer, ComputeEncoder, DispatchMode, Error, LastDispatches, Limits, Pipeline, Progress,
    Result, Size,
};
use metal_sim::device::check_argument;
use metal_sim::runtime::ArgumentKind;

use crate::buffer::PtxBuffer;
use crate::device::PtxPipeline;
use crate::queue::{PtxSubmission, Work};

/// Slots of each kind.
pub(crate) const SLOTS: usize = 31;

/// What is bound to a buffer slot.
#[derive(Clone)]
pub(crate) enum Binding {
    Buffer { buffer: PtxBuffer, offset: usize },
    Bytes(Arc<[u8]>),
}

/// One recorded command.
pub(crate) enum Command {
    Dispatch(Box<Dispatch>),
    Copy {
        source: PtxBuffer,
        source_offset: usize,
        destination: PtxBuffer,
        destination_offset: usize,
        length: usize,
    },
}

/// One recorded dispatch with everything bound when it was recorded.
pub(crate) struct Dispatch {
    pub label: String,
    pub pipeline: PtxPipeline,
    pub bindings: Vec<Option<Binding>>,
    pub dynamic_memory: [u32; SLOTS],
    pub threadgroups: Size,
    pub threads: Size,
    pub grid: Size,
}

/// A recording of work.
pub struct PtxCommandBuffer {
    label: String,
    limits: Limits,
    commands: Vec<Command>,
    queue: Sender<Work>,
}

impl PtxCommandBuffer {
    pub(crate) fn new(label: &str, limits: Limits, queue: Sender<Work>) -> Self {
        Self { label: label.to_owned(), limits, commands: Vec::new(), queue }
    }
}

impl CommandBuffer for PtxCommandBuffer {
    type Buffer = PtxBuffer;
    type Pipeline = PtxPipeline;
    type Encoder<'a> = PtxEncoder<'a>;
    type Submission = PtxSubmission;

    /// Dispatches run one after the other in either mode.
    fn compute_encoder(&mut self, label: &str, _mode: DispatchMode) -> PtxEncoder<'_> {
        PtxEncoder {
            label: label.to_owned(),
            command_buffer: self,
            pipeline: None,
            bindings: vec![None; SLOTS],
            dynamic_memory: [0; SLOTS],
        }
    }

    fn copy(
        &mut self,
        source: &PtxBuffer,
        source_offset: usize,
        destination: &PtxBuffer,
        destination_offset: usize,
        length: usize,
    ) -> Result<()> {
        source.check_range(source_offset, length)?;
        destination.check_range(destination_offset, length)?;
        let (source, destination) = (source.clone(), destination.clone());
        self.commands.push(Command::Copy { source, source_offset, destination, destination_offset, length });
        Ok(())
    }

    fn commit(self) -> Result<PtxSubmission> {
        let progress = Progress::new(&self.label, LastDispatches::default());
        let work = Work { commands: self.commands, progress: progress.clone() };
        self.queue.send(work).map_err(|_| Error::Device("the queue's thread has ended".to_owned()))?;
        Ok(PtxSubmission(progress))
    }
}

/// Records dispatches.
pub struct PtxEncoder<'a> {
    label: String,
    command_buffer: &'a mut PtxCommandBuffer,
    pipeline: Option<PtxPipeline>,
    bindings: Vec<Option<Binding>>,
    dynamic_memory: [u32; SLOTS],
}

impl PtxEncoder<'_> {
    fn dispatch(&mut self, threadgroups: Size, threads: Size, grid: Size) -> Result<()> {
        let pipeline = self.pipeline.clone().ok_or(Error::NoPipeline)?;
        let kernel = pipeline.name();
        let limits = &self.command_buffer.limits;
        limits.check_launch(kernel, pipeline.max_threads_per_threadgroup(), grid, threads)?;
        for argument in &pipeline.shared.kernel.arguments {
            let binding = match argument.kind {
                ArgumentKind::Buffer => self.bindings[argument.slot].as_ref(),
                _ => None,
            };
            let bound = binding.map(|binding| match binding {
                // The GPU's memory is aligned to more than any type, so that the offset tells.
                Binding::Buffer { buffer, offset } => (buffer.length() - offset, *offset),
                Binding::Bytes(bytes) => (bytes.len(), 0),
            });
            check_argument(kernel, argument, bound, |slot| self.dynamic_memory[slot] > 0)?;
        }
        let dynamic = self.dynamic_memory.iter().map(|&length| length as usize).sum();
        limits.check_threadgroup_memory(kernel, dynamic)?;
        self.command_buffer.commands.push(Command::Dispatch(Box::new(Dispatch {
            label: self.label.clone(),
            bindings: self.bindings.clone(),
            dynamic_memory: self.dynamic_memory,
            threadgroups,
            threads,
            grid,
            pipeline,
        })));
        Ok(())
    }
}

impl ComputeEncoder for PtxEncoder<'_> {
    type Buffer = PtxBuffer;
    type Pipeline = PtxPipeline;

    fn set_label(&mut self, label: &str) {
        label.clone_into(&mut self.label);
    }

    fn set_pipeline(&mut self, pipeline: &PtxPipeline) {
        self.pipeline = Some(pipeline.clone());
    }

    fn set_buffer(&mut self, slot: usize, buffer: &PtxBuffer, offset: usize) -> Result<()> {
        self.command_buffer.limits.check_buffer_slot(slot)?;
        // An offset at the very end leaves nothing to bind.
        buffer.check_range(offset, 1)?;
        self.bindings[slot] = Some(Binding::Buffer { buffer: buffer.clone(), offset });
        Ok(())
    }

    fn set_bytes(&mut self, slot: usize, bytes: &[u8]) -> Result<()> {
        self.command_buffer.limits.check_inline_bytes(slot, bytes.len())?;
        self.bindings[slot] = Some(Binding::Bytes(bytes.into()));
        Ok(())
    }

    fn set_threadgroup_memory(&mut self, slot: usize, length: usize) -> Result<()> {
        let kernel = self.pipeline.as_ref().map_or("", |pipeline| pipeline.name());
        self.command_buffer.limits.check_threadgroup_slot(kernel, slot, length)?;
        // Within the limit, which is far below.
        self.dynamic_memory[slot] = u32::try_from(length).unwrap_or(u32::MAX);
        Ok(())
    }

    fn dispatch_threadgroups(&mut self, threadgroups: Size, threads_per_threadgroup: Size) -> Result<()> {
        let product = |count: usize, size: usize| count.saturating_mul(size);
        let grid = Size::new(
            product(threadgroups.width, threads_per_threadgroup.width),
            product(threadgroups.height, threads_per_threadgroup.height),
            product(threadgroups.depth, threads_per_threadgroup.depth),
        );
        self.dispatch(threadgroups, threads_per_threadgroup, grid)
    }

    fn dispatch_threads(&mut self, threads: Size, threads_per_threadgroup: Size) -> Result<()> {
        let block = threads_per_threadgroup;
        // The check of sizes reports a zero.
        let groups = if block.to_array().contains(&0) { threads } else { threads.div_ceil(block) };
        self.dispatch(groups, block, threads)
    }

    /// Dispatches run one after the other, which every barrier allows.
    fn barrier(&mut self) {}
}
