//! Queues: one thread each that executes command buffers in order.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use metal::device::{Error, GpuInterval, Limits, Progress, Queue, Result, Size, Status, Submission};
use metal_sim::runtime::ArgumentKind;

use crate::buffer::PtxBuffer;
use crate::device::PtxPipeline;
use crate::driver::{Context, DeviceMemory, Stream};
use crate::encoder::{Binding, Command, Dispatch, PtxCommandBuffer, SLOTS};
use crate::grid;

/// Alignment of inline bytes on the GPU.
const INLINE_ALIGNMENT: usize = 256;
/// Zeroes for parameters that a function constant took away, and that a compiler may read through all the same.
const NOTHING: usize = 4096;

/// A queue of command buffers.
pub struct PtxQueue {
    limits: Limits,
    sender: Sender<Work>,
}

/// A committed command buffer.
pub(crate) struct Work {
    pub commands: Vec<Command>,
    pub progress: Progress,
}

impl PtxQueue {
    pub(crate) fn new(label: &str, context: &Arc<Context>, limits: &Limits) -> Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let context = Arc::clone(context);
        thread::Builder::new()
            .name(format!("sim-ptx {label}"))
            .spawn(move || run_queue(&receiver, &context))
            .map_err(|error| Error::Device(format!("queue '{label}': {error}")))?;
        Ok(Self { limits: limits.clone(), sender })
    }
}

impl Queue for PtxQueue {
    type Buffer = PtxBuffer;
    type Pipeline = PtxPipeline;
    type CommandBuffer = PtxCommandBuffer;

    fn new_command_buffer(&self, label: &str) -> Result<PtxCommandBuffer> {
        Ok(PtxCommandBuffer::new(label, self.limits.clone(), self.sender.clone()))
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
            Command::Copy { source, destination, .. } => {
                note(source, false);
                note(destination, true);
            }
            Command::Dispatch(dispatch) => {
                for (slot, binding) in dispatch.bindings.iter().enumerate() {
                    match binding {
                        Some(Binding::Buffer { buffer, .. }) => note(buffer, may_write(dispatch, slot)),
                        Some(Binding::Bytes(bytes)) => {
                            offsets.push(inline.len());
                            inline.extend_from_slice(bytes);
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
                Command::Copy { source, source_offset, destination, destination_offset, length } => {
                    let from = source.device_address() + *source_offset as u64;
                    stream.copy(from, destination.device_address() + *destination_offset as u64, *length)?;
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
    for (slot, binding) in dispatch.bindings.iter().enumerate() {
        match binding {
            Some(Binding::Buffer { buffer, offset }) => {
                arguments.buffers[slot] = buffer.device_address() + *offset as u64;
            }
            Some(Binding::Bytes(_)) => {
                arguments.buffers[slot] = inline + offsets.next().unwrap_or_default() as u64;
            }
            None => {}
        }
    }
    let mut dynamic = 0;
    for (offset, length) in arguments.dynamic_memory.iter_mut().zip(dispatch.dynamic_memory) {
        *offset = dynamic;
        dynamic += length;
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

/// Work on its way. A clone is another handle on the same work.
#[derive(Clone)]
pub struct PtxSubmission(pub(crate) Progress);

impl Submission for PtxSubmission {
    fn label(&self) -> &str {
        self.0.label()
    }

    fn status(&self) -> Status {
        self.0.status()
    }

    fn wait(&self, timeout: Duration) -> Result<GpuInterval> {
        self.0.wait(timeout)
    }
}
