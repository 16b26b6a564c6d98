//! The recording of a split: dispatches in order, with the barriers between them.
//!
//! Executing a node only adds to the recording. It becomes a command buffer with one concurrent encoder when the backend
//! synchronises, or several where it is long; a recording that is dropped was never seen by the device.

use crate::device::{Buffer, CommandBuffer, ComputeEncoder, Device, DispatchMode, Queue, Result, Size};
use crate::pipelines::{PipelineId, Pipelines};
use crate::tensor::Slice;
use crate::tracker::{Access, Columns, Touch, Tracker};
use crate::work::{Step, cut};
use std::ops::Range;
use std::time::Duration;

/// A command buffer of a device's queue.
type CommandBufferOf<D> = <<D as Device>::Queue as Queue>::CommandBuffer;

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

/// A buffer of a dispatch.
pub(crate) struct Bound<B> {
    pub slot: usize,
    pub slice: Slice<B>,
    pub access: Access,
    /// Of the slice, these columns alone.
    pub columns: Option<Columns>,
    /// How many of its bytes the kernel touches, for the counts.
    pub touched: usize,
}

/// One recorded dispatch.
pub(crate) struct Dispatch<B> {
    pub label: String,
    pub pipeline: PipelineId,
    pub buffers: Vec<Bound<B>>,
    /// Slot, and where the bytes lie in the recording.
    pub bytes: Vec<(usize, Range<usize>)>,
    pub threadgroup_memory: Vec<(usize, usize)>,
    pub grid: Grid,
    pub threads: Size,
    /// How long it takes, by estimate.
    pub time: Duration,
    /// Whether a barrier stands before it.
    pub barrier: bool,
}

/// A range of the recording that becomes a command buffer.
pub(crate) struct Part {
    pub commands: Range<usize>,
    /// The command buffer's name.
    pub label: String,
    /// How long it takes, by estimate.
    pub time: Duration,
}

/// One recorded command.
enum Command<B> {
    Dispatch(Dispatch<B>),
    /// From, to; of one length. Ordered after everything before it and before everything after it.
    Copy(Slice<B>, Slice<B>),
}

impl<B> Command<B> {
    /// What a cut has to know about it. A copy is for a trace, which is no matter of time.
    fn step(&self) -> Step {
        match self {
            Command::Dispatch(dispatch) => Step { time: dispatch.time, waits: dispatch.barrier },
            Command::Copy(..) => Step { time: Duration::ZERO, waits: true },
        }
    }
}

/// What the device was given, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Command buffers.
    pub submissions: u64,
    /// Dispatches.
    pub dispatches: u64,
    /// Barriers between them, those in whose place one command buffer ends and another begins included.
    pub barriers: u64,
    /// Bytes of weights and tables that dispatches read, as often as they did.
    pub weight_bytes: u64,
    /// Bytes of activations and states that dispatches had bound to read, as often as they had.
    pub read_bytes: u64,
    /// Bytes that dispatches had bound to write, as often as they had.
    pub written_bytes: u64,
    /// The device's time for the command buffers that have ended, in nanoseconds.
    pub device_ns: u64,
}

/// Dispatches that wait for their submission.
pub(crate) struct Recorder<B> {
    commands: Vec<Command<B>>,
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
            commands: Vec::new(),
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
        for bound in &dispatch.buffers {
            let slice = &bound.slice;
            let bytes = match (slice.memory.is_constant(), bound.access) {
                (true, _) => &mut self.counts.weight_bytes,
                (false, Access::Read) => &mut self.counts.read_bytes,
                (false, Access::Write) => &mut self.counts.written_bytes,
            };
            *bytes += bound.touched as u64;
            if !slice.memory.is_constant() {
                self.touches.push(Touch {
                    memory: slice.memory.id(),
                    bytes: slice.offset..slice.offset + slice.length,
                    access: bound.access,
                    columns: bound.columns.clone(),
                });
            }
        }
        let needed = self.tracker.dispatch(&self.touches);
        dispatch.barrier =
            needed || (self.serial && matches!(self.commands.last(), Some(Command::Dispatch(_))));
        self.counts.dispatches += 1;
        self.counts.barriers += u64::from(dispatch.barrier);
        self.commands.push(Command::Dispatch(dispatch));
    }

    /// Adds a copy of `from` to `to`, which are of one length.
    pub fn copy(&mut self, from: Slice<B>, to: Slice<B>) {
        // Leaving the encoder orders what is before and after.
        self.tracker.reset();
        self.commands.push(Command::Copy(from, to));
    }

    /// Whether a command that waits for submission touches the memory.
    pub fn uses(&self, memory: u64) -> bool {
        self.commands.iter().any(|command| match command {
            Command::Dispatch(dispatch) => {
                dispatch.buffers.iter().any(|bound| bound.slice.memory.id() == memory)
            }
            Command::Copy(from, to) => from.memory.id() == memory || to.memory.id() == memory,
        })
    }

    /// What was recorded since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Notes that a command buffer kept the device busy for so long.
    pub fn ended(&mut self, busy: Duration) {
        let busy = u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX);
        self.counts.device_ns = self.counts.device_ns.saturating_add(busy);
    }

    /// The pipelines of the dispatches that wait for submission, in order.
    pub fn pipelines(&self) -> impl Iterator<Item = PipelineId> {
        self.commands.iter().filter_map(|command| match command {
            Command::Dispatch(dispatch) => Some(dispatch.pipeline),
            Command::Copy(..) => None,
        })
    }

    /// Drops what was recorded.
    pub fn clear(&mut self) {
        self.commands.clear();
        self.bytes.clear();
        self.tracker.reset();
    }

    /// All commands, cut into command buffers of no more than `limit` by estimate, under one name with their numbers where they
    /// are several.
    pub fn parts(&self, name: &str, limit: Duration) -> Vec<Part> {
        let steps: Vec<Step> = self.commands.iter().map(Command::step).collect();
        let ranges = cut(&steps, limit);
        let label = |number: usize| match ranges.len() {
            1 => name.to_owned(),
            count => format!("{name} {number}/{count}"),
        };
        let part = |(number, (commands, time)): (usize, &(Range<usize>, Duration))| Part {
            commands: commands.clone(),
            label: label(number),
            time: *time,
        };
        (1..).zip(&ranges).map(part).collect()
    }

    /// The ranges of commands between barriers, each under the labels of its dispatches without the numbers of layers, each
    /// once.
    pub fn phases(&self) -> Vec<Part> {
        let mut phases: Vec<(Range<usize>, Vec<String>, Duration)> = Vec::new();
        for (index, command) in self.commands.iter().enumerate() {
            let label = match command {
                Command::Dispatch(dispatch) => without_layer(&dispatch.label),
                Command::Copy(..) => "trace".to_owned(),
            };
            let Step { time, waits } = command.step();
            match phases.last_mut().filter(|_| !waits) {
                Some((commands, labels, sum)) => {
                    commands.end = index + 1;
                    *sum = sum.saturating_add(time);
                    if !labels.contains(&label) {
                        labels.push(label);
                    }
                }
                None => phases.push((index..index + 1, vec![label], time)),
            }
        }
        let part = |(commands, labels, time): (_, Vec<String>, _)| Part {
            commands,
            label: labels.join(" + "),
            time,
        };
        phases.into_iter().map(part).collect()
    }

    /// Hands a part of the commands to the device as one command buffer. The recording stays until
    /// [`clear`](Recorder::clear).
    pub fn submit<D>(
        &mut self,
        part: &Part,
        queue: &D::Queue,
        pipelines: &Pipelines<D>,
    ) -> Result<SubmissionOf<D>>
    where
        D: Device<Buffer = B>,
    {
        let label = &part.label;
        let mut commands = self.commands[part.commands.clone()].iter().peekable();
        let mut command_buffer = queue.new_command_buffer(label)?;
        while let Some(command) = commands.peek() {
            if let Command::Copy(from, to) = command {
                let (source, target) = (from.memory.buffer(), to.memory.buffer());
                command_buffer.copy(source, from.offset, target, to.offset, from.length)?;
                commands.next();
                continue;
            }
            let mut encoder = command_buffer.compute_encoder(label, DispatchMode::Concurrent);
            let mut first = true;
            while let Some(Command::Dispatch(dispatch)) =
                commands.next_if(|command| matches!(command, Command::Dispatch(_)))
            {
                if dispatch.barrier && !first {
                    encoder.barrier();
                }
                first = false;
                encode(&mut encoder, dispatch, &self.bytes, pipelines)?;
            }
        }
        let submission = command_buffer.commit()?;
        self.counts.submissions += 1;
        Ok(submission)
    }
}

/// `blk.3.attn_q` without the number.
fn without_layer(label: &str) -> String {
    match label.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) if layer.bytes().all(|byte| byte.is_ascii_digit()) => rest.to_owned(),
        _ => label.to_owned(),
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
    for bound in &dispatch.buffers {
        encoder.set_buffer(bound.slot, bound.slice.memory.buffer(), bound.slice.offset)?;
        // What barriers were derived from; where buffers are shared, their end says nothing.
        encoder.limit_buffer(bound.slot, bound.slice.length);
    }
    for (slot, range) in &dispatch.bytes {
        encoder.set_bytes(*slot, &bytes[range.clone()])?;
    }
    for (slot, length) in &dispatch.threadgroup_memory {
        encoder.set_threadgroup_memory(*slot, *length)?;
    }
    match dispatch.grid {
        Grid::Threadgroups(groups) => encoder.dispatch_threadgroups(groups, dispatch.threads)?,
        Grid::Threads(threads) => encoder.dispatch_threads(threads, dispatch.threads)?,
    }
    // Bindings stay: the next kernel would be charged for this one's threadgroup memory, on top of its own.
    for (slot, _) in &dispatch.threadgroup_memory {
        encoder.set_threadgroup_memory(*slot, 0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_lose_the_number_of_their_layer() {
        for (label, expected) in [
            ("blk.3.attn_q", "attn_q"),
            ("blk.12.attention.combine", "attention.combine"),
            ("output", "output"),
            ("blk.x.y", "blk.x.y"),
        ] {
            assert_eq!(without_layer(label), expected);
        }
    }
}
