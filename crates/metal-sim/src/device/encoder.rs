//! Command buffers and encoders: recording, with the checks of Metal's validation layer.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use metal::device::{
    Buffer, CommandBuffer, ComputeEncoder, DispatchMode, Error, LastDispatches, Limits, Pipeline, Progress,
    Result, Size,
};

use super::argument::check_argument;
use super::buffer::SimBuffer;
use super::pipeline::SimPipeline;
use super::queue::{SimSubmission, Work};
use super::watch;
use crate::runtime::layout::Uint3;
use crate::runtime::{ArgumentKind, Launch, SLOTS};
use crate::sanitize::{Sanitizer, Timeline};

/// What references refer to whose function constant says that they do not exist.
static NOTHING: [u128; 256] = [0; 256];

/// What is bound to a buffer slot.
#[derive(Clone)]
pub(super) enum Binding {
    Buffer { buffer: SimBuffer, offset: usize, limit: usize },
    Bytes(Arc<InlineBytes>),
}

/// Bytes that were copied into the command buffer.
pub(super) struct InlineBytes {
    // Words, so that any object may be read from them.
    words: Vec<u128>,
    length: usize,
}

impl InlineBytes {
    fn new(bytes: &[u8]) -> Self {
        let mut words = vec![0u128; bytes.len().div_ceil(size_of::<u128>())];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(size_of::<u128>())) {
            let mut full = [0; size_of::<u128>()];
            full[..chunk.len()].copy_from_slice(chunk);
            *word = u128::from_ne_bytes(full);
        }
        Self { words, length: bytes.len() }
    }
}

impl Binding {
    pub fn length(&self) -> usize {
        match self {
            Self::Buffer { buffer, offset, limit } => (buffer.length() - offset).min(*limit),
            Self::Bytes(bytes) => bytes.length,
        }
    }

    pub fn address(&self) -> *mut std::ffi::c_void {
        match self {
            Self::Buffer { buffer, offset, .. } => buffer.address(*offset),
            Self::Bytes(bytes) => bytes.words.as_ptr().cast_mut().cast(),
        }
    }
}

/// One recorded command.
pub(super) enum Command {
    Dispatch(Box<Dispatch>),
    Copy {
        source: SimBuffer,
        source_offset: usize,
        destination: SimBuffer,
        destination_offset: usize,
        length: usize,
    },
}

/// One recorded dispatch: everything bound when it was recorded.
pub(super) struct Dispatch {
    pub label: String,
    pub pipeline: SimPipeline,
    pub bindings: Vec<(usize, Binding)>,
    pub launch: Launch,
    /// Dispatches of the same interval may overlap.
    pub interval: u64,
}

/// A number that no other interval has.
fn new_interval() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A recording of work.
pub struct SimCommandBuffer {
    label: String,
    limits: Limits,
    budget: Duration,
    commands: Vec<Command>,
    /// Barriers so far.
    barriers: u64,
    queue: QueueHandle,
}

/// What a command buffer needs of its queue.
#[derive(Clone)]
pub(super) struct QueueHandle {
    pub sender: Sender<Work>,
    pub timeline: Arc<Timeline>,
    pub sanitizer: Option<Arc<Sanitizer>>,
}

impl SimCommandBuffer {
    pub(super) fn new(label: &str, limits: Limits, budget: Duration, queue: QueueHandle) -> Self {
        Self { label: label.to_owned(), limits, budget, commands: Vec::new(), barriers: 0, queue }
    }
}

impl CommandBuffer for SimCommandBuffer {
    type Buffer = SimBuffer;
    type Pipeline = SimPipeline;
    type Encoder<'a> = SimEncoder<'a>;
    type Submission = SimSubmission;

    fn compute_encoder(&mut self, label: &str, mode: DispatchMode) -> SimEncoder<'_> {
        SimEncoder {
            label: label.to_owned(),
            mode,
            interval: new_interval(),
            command_buffer: self,
            pipeline: None,
            bindings: [const { None }; SLOTS],
            dynamic_memory: [0; SLOTS],
        }
    }

    fn copy(
        &mut self,
        source: &SimBuffer,
        source_offset: usize,
        destination: &SimBuffer,
        destination_offset: usize,
        length: usize,
    ) -> Result<()> {
        source.check_range(source_offset, length)?;
        destination.check_range(destination_offset, length)?;
        let (source, destination) = (source.clone(), destination.clone());
        self.commands.push(Command::Copy { source, source_offset, destination, destination_offset, length });
        Ok(())
    }

    fn commit(mut self) -> Result<SimSubmission> {
        let progress = Progress::new(&self.label, LastDispatches::default());
        let timeline = Arc::clone(&self.queue.timeline);
        let number = timeline.commit();
        if let Some(sanitizer) = &self.queue.sanitizer {
            watch::prepare(&mut self.commands, sanitizer, &timeline, number, &self.label);
        }
        let work = Work { commands: self.commands, progress: progress.clone() };
        self.queue.sender.send(work).map_err(|_| Error::Device("the queue's thread has ended".to_owned()))?;
        Ok(SimSubmission { progress, timeline, number })
    }
}

/// Records dispatches.
pub struct SimEncoder<'a> {
    label: String,
    mode: DispatchMode,
    interval: u64,
    command_buffer: &'a mut SimCommandBuffer,
    pipeline: Option<SimPipeline>,
    bindings: [Option<Binding>; SLOTS],
    dynamic_memory: [u32; SLOTS],
}

impl SimEncoder<'_> {
    fn limits(&self) -> &Limits {
        &self.command_buffer.limits
    }

    fn dispatch(&mut self, threadgroups: Size, threads: Size, grid: Size) -> Result<()> {
        let pipeline = self.pipeline.clone().ok_or(Error::NoPipeline)?;
        let kernel = pipeline.name();
        let limits = self.limits();
        let most = pipeline.max_threads_per_threadgroup();
        limits.check_launch(kernel, most, grid, threads)?;
        let grid_of = |size: Size| {
            let narrow = |count: usize| u32::try_from(count).ok().filter(|&count| count > 0);
            Some(Uint3::new(narrow(size.width)?, narrow(size.height)?, narrow(size.depth)?))
        };
        let (Some(threadgroups_3), Some(threads_3), Some(grid_3)) =
            (grid_of(threadgroups), grid_of(threads), grid_of(grid))
        else {
            return Err(Error::EmptyGrid { kernel: kernel.to_owned(), grid });
        };
        for argument in &pipeline.shared.kernel.arguments {
            let bound = match argument.kind {
                ArgumentKind::Buffer => self.bindings[argument.slot].as_ref(),
                _ => None,
            };
            let bound = bound.map(|binding| (binding.length(), binding.address() as usize));
            check_argument(kernel, argument, bound, |slot| self.dynamic_memory[slot] > 0)?;
        }
        let dynamic: usize = self.dynamic_memory.iter().map(|&length| length as usize).sum();
        limits.check_threadgroup_memory(kernel, dynamic)?;
        let mut buffers = [ptr::null_mut(); SLOTS];
        let mut buffer_lengths = [0; SLOTS];
        let mut bindings = Vec::new();
        for (slot, binding) in self.bindings.iter().enumerate() {
            if let Some(binding) = binding {
                buffers[slot] = binding.address();
                buffer_lengths[slot] = binding.length();
                bindings.push((slot, binding.clone()));
            }
        }
        // A compiler may read through a reference before it is needed: one without a binding needs memory.
        for argument in &pipeline.shared.kernel.arguments {
            let is_buffer = argument.kind == ArgumentKind::Buffer;
            if is_buffer
                && argument.reference
                && buffers[argument.slot].is_null()
                && argument.size <= size_of_val(&NOTHING)
            {
                buffers[argument.slot] = (&raw const NOTHING).cast_mut().cast();
            }
        }
        let launch = Launch {
            kernel: kernel.to_owned(),
            run: pipeline.shared.kernel.run,
            threadgroups: threadgroups_3,
            threads: threads_3,
            grid: grid_3,
            buffers,
            buffer_lengths,
            dynamic_memory: self.dynamic_memory,
            memory_limit: limits.max_threadgroup_memory,
            constants: Arc::clone(&pipeline.shared.constants),
            constants_defined: Arc::clone(&pipeline.shared.constants_defined),
            queue_size: pipeline.shared.queue_size,
            budget: self.command_buffer.budget,
            checks: None,
            checker: ptr::null_mut(),
        };
        let sanitizes = self.command_buffer.queue.sanitizer.is_some();
        if pipeline.shared.sanitized != sanitizes {
            let with = |yes| if yes { "with" } else { "without" };
            return Err(Error::Device(format!(
                "kernel '{kernel}': compiled {} the sanitizer, for a queue {} it",
                with(pipeline.shared.sanitized),
                with(sanitizes)
            )));
        }
        let label = self.label.clone();
        self.command_buffer.commands.push(Command::Dispatch(Box::new(Dispatch {
            label,
            pipeline,
            bindings,
            launch,
            interval: self.interval,
        })));
        if self.mode == DispatchMode::Serial {
            self.interval = new_interval();
        }
        Ok(())
    }
}

impl ComputeEncoder for SimEncoder<'_> {
    type Buffer = SimBuffer;
    type Pipeline = SimPipeline;

    fn set_label(&mut self, label: &str) {
        label.clone_into(&mut self.label);
    }

    fn set_pipeline(&mut self, pipeline: &SimPipeline) {
        self.pipeline = Some(pipeline.clone());
    }

    fn set_buffer(&mut self, slot: usize, buffer: &SimBuffer, offset: usize) -> Result<()> {
        self.limits().check_buffer_slot(slot)?;
        // An offset at the very end leaves nothing to bind.
        buffer.check_range(offset, 1)?;
        self.bindings[slot] = Some(Binding::Buffer { buffer: buffer.clone(), offset, limit: usize::MAX });
        Ok(())
    }

    fn limit_buffer(&mut self, slot: usize, length: usize) {
        if let Some(Some(Binding::Buffer { limit, .. })) = self.bindings.get_mut(slot) {
            *limit = length;
        }
    }

    fn set_bytes(&mut self, slot: usize, bytes: &[u8]) -> Result<()> {
        self.limits().check_inline_bytes(slot, bytes.len())?;
        self.bindings[slot] = Some(Binding::Bytes(Arc::new(InlineBytes::new(bytes))));
        Ok(())
    }

    fn set_threadgroup_memory(&mut self, slot: usize, length: usize) -> Result<()> {
        let kernel = self.pipeline.as_ref().map_or("", |pipeline| pipeline.name());
        self.limits().check_threadgroup_slot(kernel, slot, length)?;
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
        if block.to_array().contains(&0) {
            // The size check reports it.
            return self.dispatch(threads, block, threads);
        }
        self.dispatch(threads.div_ceil(block), block, threads)
    }

    /// Dispatches run one after the other here, which every barrier allows; the sanitizer remembers it.
    fn barrier(&mut self) {
        let buffer = &mut *self.command_buffer;
        let without =
            buffer.queue.sanitizer.as_ref().and_then(|sanitizer| sanitizer.settings().without_barrier);
        if without != Some(buffer.barriers) {
            self.interval = new_interval();
        }
        buffer.barriers += 1;
    }
}
