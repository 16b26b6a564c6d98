//! Queues: one thread each that executes command buffers in order.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use metal::device::{
    Bound, Error, GpuInterval, LastDispatches, Limits, Progress, Queue, Result, Size, Status, Submission,
};

use super::Settings;
use super::buffer::SimBuffer;
use super::pipeline::SimPipeline;
use super::recording::{self, Binding, Command, Recording, RecordingEncoder, Target};
use super::residency::Count;
use super::watch;
use crate::runtime::layout::Uint3;
use crate::runtime::{ArgumentKind, Executor, Launch, SLOTS};
use crate::sanitize::{Checks, Sanitizer, Timeline};

/// A recording for the simulator.
pub type SimCommandBuffer = Recording<SimTarget>;
/// Records dispatches for the simulator.
pub type SimEncoder<'a> = RecordingEncoder<'a, SimTarget>;
/// One recorded dispatch.
pub(super) type Dispatch = recording::Dispatch<SimTarget>;

/// What references refer to whose function constant says that they do not exist.
static NOTHING: [u128; 256] = [0; 256];

/// How much more processor time a threadgroup may take under the sanitizer.
const SANITIZER_SLOWDOWN: u32 = 8;

/// A queue of command buffers.
pub struct SimQueue {
    pub(super) label: String,
    limits: Limits,
    target: SimTarget,
    pub(super) resident: Count,
    unscoped: Arc<AtomicUsize>,
}

thread_local! {
    /// How many scopes the thread is in.
    static SCOPES: Cell<usize> = const { Cell::new(0) };
}

/// Of the device's [`scope`](metal::device::Device::scope): there is nothing to give up, so only that it is there is noted.
pub(super) fn in_scope<T>(work: impl FnOnce() -> T) -> T {
    SCOPES.set(SCOPES.get() + 1);
    let result = work();
    SCOPES.set(SCOPES.get() - 1);
    result
}

/// What a recording needs of its queue.
#[derive(Clone)]
pub struct SimTarget {
    sender: Sender<Work>,
    timeline: Arc<Timeline>,
    sanitizer: Option<Arc<Sanitizer>>,
}

/// A committed command buffer.
struct Work {
    /// Each command with what the sanitizer needs to know about it.
    commands: Vec<(Command<SimTarget>, Option<Arc<Checks>>)>,
    progress: Progress,
}

impl Target for SimTarget {
    type Buffer = SimBuffer;
    type Pipeline = SimPipeline;
    type Submission = SimSubmission;

    fn identity(buffer: &SimBuffer) -> usize {
        buffer.identity()
    }

    fn check(&self, pipeline: &SimPipeline) -> Result<()> {
        let (kernel, sanitizes) = (&pipeline.shared.kernel.name, self.sanitizer.is_some());
        if pipeline.shared.sanitized == sanitizes {
            return Ok(());
        }
        let with = |yes| if yes { "with" } else { "without" };
        Err(Error::Device(format!(
            "kernel '{kernel}': compiled {} the sanitizer, for a queue {} it",
            with(pipeline.shared.sanitized),
            with(sanitizes)
        )))
    }

    fn without_barrier(&self) -> Option<u64> {
        self.sanitizer.as_ref().and_then(|sanitizer| sanitizer.settings().without_barrier)
    }

    fn submit(self, label: &str, commands: Vec<Command<Self>>) -> Result<SimSubmission> {
        let progress = Progress::new(label, LastDispatches::default());
        let number = self.timeline.commit();
        let checks = match &self.sanitizer {
            Some(sanitizer) => watch::prepare(&commands, sanitizer, &self.timeline, number, label),
            None => commands.iter().map(|_| None).collect(),
        };
        let work = Work { commands: commands.into_iter().zip(checks).collect(), progress: progress.clone() };
        self.sender.send(work).map_err(|_| Error::Device("the queue's thread has ended".to_owned()))?;
        Ok(SimSubmission { progress, timeline: self.timeline, number })
    }
}

impl SimQueue {
    pub(super) fn new(
        label: &str,
        limits: Limits,
        settings: Settings,
        sanitizer: Option<Arc<Sanitizer>>,
        unscoped: Arc<AtomicUsize>,
    ) -> Result<Self> {
        let failed = |error| Error::Device(format!("queue '{label}': {error}"));
        let (sender, receiver) = mpsc::channel();
        // The sanitizer runs threadgroups one after the other.
        let threads = if sanitizer.is_some() { 1 } else { settings.threads };
        let executor = Executor::new(threads).map_err(failed)?;
        thread::Builder::new()
            .name(format!("metal-sim {label}"))
            .spawn({
                let slowdown = if sanitizer.is_some() { SANITIZER_SLOWDOWN } else { 1 };
                let limits = LaunchLimits {
                    memory: limits.max_threadgroup_memory,
                    budget: settings.budget * slowdown,
                };
                move || run_queue(&receiver, executor, limits)
            })
            .map_err(failed)?;
        let timeline = Arc::default();
        if let Some(sanitizer) = &sanitizer {
            sanitizer.add_queue(&timeline);
        }
        let target = SimTarget { sender, timeline, sanitizer };
        Ok(Self { label: label.to_owned(), limits, target, resident: Count::default(), unscoped })
    }
}

impl Queue for SimQueue {
    type Buffer = SimBuffer;
    type Pipeline = SimPipeline;
    type CommandBuffer = SimCommandBuffer;

    fn new_command_buffer(&self, label: &str) -> Result<SimCommandBuffer> {
        if SCOPES.get() == 0 {
            self.unscoped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Recording::new(label, self.limits.clone(), self.target.clone()))
    }
}

/// What bounds every launch of a queue.
#[derive(Clone, Copy)]
struct LaunchLimits {
    /// Bytes of threadgroup memory.
    memory: usize,
    /// Processor time of one threadgroup.
    budget: Duration,
}

/// Ends when the queue and all its open command buffers are gone.
fn run_queue(receiver: &Receiver<Work>, mut executor: Executor, limits: LaunchLimits) {
    while let Ok(work) = receiver.recv() {
        let Work { commands, progress } = work;
        progress.start();
        let start = now();
        let mut result = Ok(());
        for (command, checks) in &commands {
            result = match command {
                Command::Dispatch(dispatch) => launch_of(dispatch, checks.clone(), limits)
                    .and_then(|launch| run_launch(&mut executor, launch, &dispatch.label, &progress)),
                Command::Copy(copy) => {
                    let (source, destination) = (&copy.source, &copy.destination);
                    if let (Some(from), Some(to)) = (source.tracked(), destination.tracked()) {
                        to.copy_written(copy.destination_offset, from, copy.source_offset, copy.length);
                    }
                    // SAFETY: both ranges were checked when the copy was recorded; they may overlap.
                    unsafe {
                        let from = source.address(copy.source_offset).cast::<u8>();
                        ptr::copy(from, destination.address(copy.destination_offset).cast(), copy.length);
                    }
                    Ok(())
                }
            };
            if result.is_err() {
                break;
            }
        }
        // Buffers go before anyone learns that the work is done.
        drop(commands);
        progress.finish(result.map(|()| GpuInterval { start, end: now() }));
    }
}

/// Address and length of what is bound.
pub(super) fn bound_range(bound: &Bound<Binding<SimBuffer>>) -> (usize, usize) {
    let address = match &bound.value {
        Binding::Buffer(buffer) => buffer.address(bound.offset) as usize,
        Binding::Bytes(bytes) => bytes.address() as usize,
    };
    (address, bound.length)
}

/// A dispatch with everything resolved to addresses.
fn launch_of(dispatch: &Dispatch, checks: Option<Arc<Checks>>, limits: LaunchLimits) -> Result<Launch> {
    let pipeline = &dispatch.pipeline.shared;
    let kernel = &pipeline.kernel;
    let narrow = |size: Size| {
        let [x, y, z] = size.to_array().map(|count| u32::try_from(count).ok());
        let too_large = || Error::EmptyGrid { kernel: kernel.name.clone(), grid: size };
        x.zip(y).zip(z).map(|((x, y), z)| Uint3::new(x, y, z)).ok_or_else(too_large)
    };
    let mut buffers = [ptr::null_mut::<c_void>(); SLOTS];
    let mut buffer_lengths = [0; SLOTS];
    for (slot, bound) in dispatch.buffers.iter().enumerate().take(SLOTS) {
        if let Some(bound) = bound {
            let (address, length) = bound_range(bound);
            buffers[slot] = ptr::with_exposed_provenance_mut(address);
            buffer_lengths[slot] = length;
        }
    }
    // A compiler may read through a reference before it is needed: one without a binding needs memory.
    for argument in kernel.arguments.iter().filter(|argument| argument.kind == ArgumentKind::Buffer) {
        let is_missing = argument.reference && buffers[argument.slot].is_null();
        if is_missing && argument.size <= size_of_val(&NOTHING) {
            buffers[argument.slot] = (&raw const NOTHING).cast_mut().cast();
        }
    }
    let mut dynamic_memory = [0; SLOTS];
    for (slot, &length) in dynamic_memory.iter_mut().zip(&dispatch.threadgroup_memory) {
        // Within the limit, which is far below.
        *slot = u32::try_from(length).unwrap_or(u32::MAX);
    }
    Ok(Launch {
        kernel: kernel.name.clone(),
        run: kernel.run,
        threadgroups: narrow(dispatch.threadgroups)?,
        threads: narrow(dispatch.threads)?,
        grid: narrow(dispatch.grid)?,
        buffers,
        buffer_lengths,
        dynamic_memory,
        memory_limit: limits.memory,
        constants: Arc::clone(&pipeline.constants),
        constants_defined: Arc::clone(&pipeline.constants_defined),
        queue_size: pipeline.queue_size,
        budget: limits.budget,
        checks,
        checker: ptr::null_mut(),
    })
}

fn run_launch(executor: &mut Executor, mut launch: Launch, label: &str, progress: &Progress) -> Result<()> {
    progress.begin_dispatch(label, &launch.kernel);
    let sanitizer = launch.checks.as_ref().map(|checks| Arc::clone(&checks.sanitizer));
    let mut checker = sanitizer.as_ref().map(|sanitizer| sanitizer.checker());
    if let Some(checker) = &mut checker {
        launch.checker = &raw mut ***checker;
    }
    // SAFETY: the launch's dispatch holds its buffers and, through its pipeline, the loaded library. The checker is locked
    // until the end of this function.
    let result = unsafe { executor.execute(launch) };
    let reports = checker.map_or_else(Vec::new, |mut checker| checker.finish());
    if let (Some(first), Some(sanitizer)) = (reports.first(), sanitizer) {
        let kernel = first.kernel.clone();
        let text: Vec<String> = reports.iter().map(ToString::to_string).collect();
        reports.into_iter().for_each(|report| sanitizer.add(report));
        return Err(progress.execution_error(&kernel, text.join("\n")));
    }
    result.map_err(|failure| progress.execution_error(&failure.kernel, failure.reason))
}

/// Seconds since the process first asked.
fn now() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Work on its way. A clone is another handle on the same work.
#[derive(Clone)]
pub struct SimSubmission {
    pub(super) progress: Progress,
    pub(super) timeline: Arc<Timeline>,
    pub(super) number: u64,
}

impl Submission for SimSubmission {
    fn label(&self) -> &str {
        self.progress.label()
    }

    fn status(&self) -> Status {
        let status = self.progress.status();
        if matches!(status, Status::Completed | Status::Failed) {
            self.timeline.observe(self.number);
        }
        status
    }

    fn wait(&self, timeout: Duration) -> Result<GpuInterval> {
        let result = self.progress.wait(timeout);
        self.status();
        result
    }
}
