//! The recording of a split: dispatches in order, with the barriers between them.
//!
//! Executing a node only adds to the recording. It becomes one command buffer with one concurrent encoder when the
//! backend synchronises; a recording that is dropped was never seen by the device.

use crate::device::{Buffer, CommandBuffer, ComputeEncoder, Device, DispatchMode, Queue, Result, Size};
use crate::pipelines::{PipelineId, Pipelines};
use crate::tensor::Slice;
use crate::tracker::{Access, Touch, Tracker};
use std::ops::Range;

/// A command buffer of a device's queue.
pub(crate) type CommandBufferOf<D> = <<D as Device>::Queue as Queue>::CommandBuffer;

/// A device's work on its way.
pub(crate) type SubmissionOf<D> = <CommandBufferOf<D> as CommandBuffer>::Submission;

/// How many threads are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grid {
    /// Whole threadgroups.
    Threadgroups(Size),
    /// Exactly so many threads.
    Threads(Size),
}

/// One recorded dispatch.
pub(crate) struct Dispatch<B> {
    pub label: String,
    pub pipeline: PipelineId,
    pub buffers: Vec<(usize, Slice<B>, Access)>,
    /// Slot, and where the bytes lie in the recording.
    pub bytes: Vec<(usize, Range<usize>)>,
    pub threadgroup_memory: Vec<(usize, usize)>,
    pub grid: Grid,
    pub threads: Size,
    /// Whether a barrier stands before it.
    pub barrier: bool,
}

/// What the device was given, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Command buffers.
    pub submissions: u64,
    /// Dispatches.
    pub dispatches: u64,
    /// Barriers between them.
    pub barriers: u64,
    /// Bytes of weights that dispatches had bound, each time they had.
    pub weight_bytes: u64,
    /// Bytes of activations, states and tables that dispatches had bound to read, each time they had.
    pub read_bytes: u64,
    /// Bytes that dispatches had bound to write, each time they had.
    pub written_bytes: u64,
}

impl std::ops::Sub for Counts {
    type Output = Counts;

    fn sub(self, before: Counts) -> Counts {
        Counts {
            submissions: self.submissions - before.submissions,
            dispatches: self.dispatches - before.dispatches,
            barriers: self.barriers - before.barriers,
            weight_bytes: self.weight_bytes - before.weight_bytes,
            read_bytes: self.read_bytes - before.read_bytes,
            written_bytes: self.written_bytes - before.written_bytes,
        }
    }
}

/// Dispatches that wait for their submission.
pub(crate) struct Recorder<B> {
    dispatches: Vec<Dispatch<B>>,
    /// Inline bytes of all dispatches.
    bytes: Vec<u8>,
    tracker: Tracker,
    touches: Vec<Touch>,
    /// A barrier before every dispatch, whether it needs one or not.
    serial: bool,
    counts: Counts,
}

impl<B: Buffer> Recorder<B> {
    pub fn new(serial: bool) -> Recorder<B> {
        Recorder {
            dispatches: Vec::new(),
            bytes: Vec::new(),
            tracker: Tracker::default(),
            touches: Vec::new(),
            serial,
            counts: Counts::default(),
        }
    }

    /// Keeps bytes for a dispatch that is about to be added.
    pub fn inline(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// Adds a dispatch, with a barrier before it where it needs one.
    pub fn add(&mut self, mut dispatch: Dispatch<B>) {
        self.touches.clear();
        for (_, slice, access) in &dispatch.buffers {
            let bytes = match (slice.memory.is_constant(), access) {
                (true, _) => &mut self.counts.weight_bytes,
                (false, Access::Read) => &mut self.counts.read_bytes,
                (false, Access::Write) => &mut self.counts.written_bytes,
            };
            *bytes += slice.length as u64;
            if !slice.memory.is_constant() {
                self.touches.push(Touch {
                    memory: slice.memory.id(),
                    bytes: slice.offset..slice.offset + slice.length,
                    access: *access,
                });
            }
        }
        let needed = self.tracker.dispatch(&self.touches);
        dispatch.barrier = needed || (self.serial && !self.dispatches.is_empty());
        self.counts.dispatches += 1;
        self.counts.barriers += u64::from(dispatch.barrier);
        self.dispatches.push(dispatch);
    }

    /// Whether nothing waits for submission.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }

    /// What was recorded since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Drops what was recorded.
    pub fn clear(&mut self) {
        self.dispatches.clear();
        self.bytes.clear();
        self.tracker.reset();
    }

    /// Hands the recording to the device as one command buffer; `None` if there is nothing.
    pub fn submit<D>(
        &mut self,
        queue: &D::Queue,
        pipelines: &Pipelines<D>,
        label: &str,
    ) -> Result<Option<SubmissionOf<D>>>
    where
        D: Device<Buffer = B>,
    {
        if self.is_empty() {
            return Ok(None);
        }
        let mut command_buffer = queue.new_command_buffer(label)?;
        let mut encoder = command_buffer.compute_encoder(label, DispatchMode::Concurrent);
        for dispatch in &self.dispatches {
            if dispatch.barrier {
                encoder.barrier();
            }
            encode(&mut encoder, dispatch, &self.bytes, pipelines)?;
        }
        drop(encoder);
        let submission = command_buffer.commit()?;
        self.counts.submissions += 1;
        self.clear();
        Ok(Some(submission))
    }
}

/// One dispatch: label, pipeline, bindings, grid.
fn encode<D: Device>(
    encoder: &mut impl ComputeEncoder<Buffer = D::Buffer, Pipeline = D::Pipeline>,
    dispatch: &Dispatch<D::Buffer>,
    bytes: &[u8],
    pipelines: &Pipelines<D>,
) -> Result<()> {
    encoder.set_label(&dispatch.label);
    encoder.set_pipeline(pipelines.get(dispatch.pipeline));
    for (slot, slice, _) in &dispatch.buffers {
        encoder.set_buffer(*slot, slice.memory.buffer(), slice.offset)?;
    }
    for (slot, range) in &dispatch.bytes {
        encoder.set_bytes(*slot, &bytes[range.clone()])?;
    }
    for (slot, length) in &dispatch.threadgroup_memory {
        encoder.set_threadgroup_memory(*slot, *length)?;
    }
    match dispatch.grid {
        Grid::Threadgroups(groups) => encoder.dispatch_threadgroups(groups, dispatch.threads),
        Grid::Threads(threads) => encoder.dispatch_threads(threads, dispatch.threads),
    }
}
