//! Queues: one thread each that executes command buffers in order.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use metal::device::{Error, GpuInterval, LastDispatches, Limits, Progress, Queue, Result, Size};
use metal_sim::device::recording::{self, Binding, Recording, RecordingEncoder, Target};
use metal_sim::runtime::{ArgumentKind, SLOTS};

use crate::buffer::PtxBuffer;
use crate::device::PtxPipeline;
use crate::driver::{Context, DeviceMemory, Stream};
use crate::grid;

/// A recording for the GPU.
pub type PtxCommandBuffer = Recording<PtxTarget>;
/// Records dispatches for the GPU.
pub type PtxEncoder<'a> = RecordingEncoder<'a, PtxTarget>;
type Command = recording::Command<PtxTarget>;
type Dispatch = recording::Dispatch<PtxTarget>;

/// Alignment of inline bytes on the GPU.
const INLINE_ALIGNMENT: usize = 256;
/// Zeroes for parameters that a function constant took away, and that a compiler may read through all the same.
const NOTHING: usize = 4096;

/// A queue of command buffers.
pub struct PtxQueue {
    limits: Limits,
    target: PtxTarget,
}

/// What a recording needs of its queue. Dispatches run one after the other in either mode of an encoder.
#[derive(Clone)]
pub struct PtxTarget(Sender<Work>);

/// A committed command buffer.
struct Work {
    commands: Vec<Command>,
    progress: Progress,
}

impl Target for PtxTarget {
    type Buffer = PtxBuffer;
    type Pipeline = PtxPipeline;
    type Submission = Progress;

    fn identity(buffer: &PtxBuffer) -> usize {
        buffer.identity()
    }

    fn check(&self, _pipeline: &PtxPipeline) -> Result<()> {
        Ok(())
    }

    fn submit(self, label: &str, commands: Vec<Command>) -> Result<Progress> {
        let progress = Progress::new(label, LastDispatches::default());
        let work = Work { commands, progress: progress.clone() };
        self.0.send(work).map_err(|_| Error::Device("the queue's thread has ended".to_owned()))?;
        Ok(progress)
    }
}

impl PtxQueue {
    pub(crate) fn new(label: &str, context: &Arc<Context>, limits: &Limits) -> Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let context = Arc::clone(context);
        thread::Builder::new()
            .name(format!("sim-ptx {label}"))
            .spawn(move || run_queue(&receiver, &context))
            .map_err(|error| Error::Device(format!("queue '{label}': {error}")))?;
        Ok(Self { limits: limits.clone(), target: PtxTarget(sender) })
    }
}

impl Queue for PtxQueue {
    type Buffer = PtxBuffer;
    type Pipeline = PtxPipeline;
    type CommandBuffer = PtxCommandBuffer;

    fn new_command_buffer(&self, label: &str) -> Result<PtxCommandBuffer> {
        Ok(Recording::new(label, self.limits.clone(), self.target.clone()))
    }
}

/// Ends when the queue and all its open command buffers are gone.
fn run_queue(receiver: &Receiver<Work>, context: &Arc<Context>) {
    let stream = context.make_current().and_then(|()| Stream::new());
    while let Ok(Work { commands, progress }) = receiver.recv() {
        progress.start();
        let result = match &stream {
            Ok(stream) => execute(context, stream, &commands, &progress),
            Err(error) => Err(error.clone()),
        };
        // Buffers go before anyone learns that the work is done.
        drop(commands);
        // The driver names no kernel: it is one of the last dispatches.
        progress.finish(result.map_err(|error| progress.execution_error("", error.to_string())));
    }
}

fn execute(
    context: &Arc<Context>,
    stream: &Stream,
    commands: &[Command],
    progress: &Progress,
) -> Result<GpuInterval> {
    let mut inline = vec![0u8; NOTHING];
    let mut used: BTreeMap<usize, (&PtxBuffer, bool)> = BTreeMap::new();
    let mut note =
        |buffer, written| used.entry(PtxBuffer::identity(buffer)).or_insert((buffer, false)).1 |= written;
    // Where the inline bytes of each dispatch start, in the order in which they are met again below.
    let mut offsets = Vec::new();
    for command in commands {
        match command {
            Command::Copy(copy) => {
                note(&copy.source, false);
                note(&copy.destination, true);
            }
            Command::Dispatch(dispatch) => {
                for (slot, bound) in dispatch.buffers.iter().enumerate() {
                    match bound.as_ref().map(|bound| &bound.value) {
                        Some(Binding::Buffer(buffer)) => note(buffer, may_write(dispatch, slot)),
                        Some(Binding::Bytes(bytes)) => {
                            offsets.push(inline.len());
                            inline.extend(bytes.to_vec());
                            inline.resize(inline.len().next_multiple_of(INLINE_ALIGNMENT), 0);
                        }
                        None => {}
                    }
                }
            }
        }
    }
    for (buffer, _) in used.values() {
        buffer.upload()?;
    }
    let inline_memory = DeviceMemory::new(context, inline.len())?;
    inline_memory.upload(&inline)?;
    let start = now();
    let mut offsets = offsets.into_iter();
    let duration = stream.timed(|stream| {
        for command in commands {
            match command {
                Command::Copy(copy) => {
                    let from = copy.source.device_address() + copy.source_offset as u64;
                    let to = copy.destination.device_address() + copy.destination_offset as u64;
                    stream.copy(from, to, copy.length)?;
                }
                Command::Dispatch(dispatch) => {
                    progress.begin_dispatch(&dispatch.label, &dispatch.pipeline.shared.kernel.name);
                    launch(stream, dispatch, inline_memory.address, &mut offsets)?;
                }
            }
        }
        Ok(())
    })?;
    for (buffer, written) in used.values() {
        if *written {
            buffer.download()?;
        }
    }
    Ok(GpuInterval { start, end: start + duration })
}

/// Whether a dispatch's kernel can write through a slot.
fn may_write(dispatch: &Dispatch, slot: usize) -> bool {
    let arguments = &dispatch.pipeline.shared.kernel.arguments;
    arguments
        .iter()
        .any(|argument| argument.kind == ArgumentKind::Buffer && argument.slot == slot && !argument.read_only)
}

/// What a kernel is given; mirrors `Arguments` in `shim/runtime.h`.
#[repr(C)]
struct Arguments {
    buffers: [u64; SLOTS],
    dynamic_memory: [u32; SLOTS],
    offset: [u32; 3],
    threadgroups: [u32; 3],
    grid: [u32; 3],
    dispatch_size: [u32; 3],
}

fn launch(
    stream: &Stream,
    dispatch: &Dispatch,
    inline: u64,
    offsets: &mut impl Iterator<Item = usize>,
) -> Result<()> {
    // Checked when the dispatch was recorded: every count fits.
    let narrow = |size: [usize; 3]| size.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let of_size = |size: Size| narrow(size.to_array());
    let mut arguments = Arguments {
        // Nothing that is bound: zeroes.
        buffers: [inline; SLOTS],
        dynamic_memory: [0; SLOTS],
        offset: [0; 3],
        threadgroups: of_size(dispatch.threadgroups),
        grid: of_size(dispatch.grid),
        dispatch_size: of_size(dispatch.threads),
    };
    for (address, bound) in arguments.buffers.iter_mut().zip(&dispatch.buffers) {
        let Some(bound) = bound else { continue };
        *address = match &bound.value {
            Binding::Buffer(buffer) => buffer.device_address() + bound.offset as u64,
            Binding::Bytes(_) => inline + offsets.next().unwrap_or_default() as u64,
        };
    }
    let mut dynamic = 0;
    for (offset, &length) in arguments.dynamic_memory.iter_mut().zip(&dispatch.threadgroup_memory) {
        *offset = dynamic;
        // Within the limit, which is far below.
        dynamic += u32::try_from(length).unwrap_or(u32::MAX);
    }
    for part in grid::parts(dispatch.grid, dispatch.threads) {
        arguments.offset = narrow(part.offset);
        let function = dispatch.pipeline.shared.function;
        // SAFETY: every kernel takes this struct; the dispatch keeps its buffers, and the inline bytes stay until the
        // stream is synchronised.
        unsafe {
            stream.launch(function, narrow(part.count), narrow(part.threads), dynamic, &mut arguments)?
        };
    }
    Ok(())
}

/// Seconds since the process first asked.
fn now() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}
