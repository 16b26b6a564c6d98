//! Queues: one thread each that executes command buffers in order.

use std::ptr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use metal::device::{Error, GpuInterval, Limits, Progress, Queue, Result, Status, Submission};

use super::Settings;
use super::buffer::SimBuffer;
use super::encoder::{Command, Dispatch, QueueHandle, SimCommandBuffer};
use super::pipeline::SimPipeline;
use crate::runtime::Executor;
use crate::sanitize::{Sanitizer, Timeline};

/// How much more processor time a threadgroup may take under the sanitizer.
const SANITIZER_SLOWDOWN: u32 = 8;

/// A queue of command buffers.
pub struct SimQueue {
    limits: Limits,
    budget: Duration,
    handle: QueueHandle,
}

/// A committed command buffer.
pub(super) struct Work {
    pub commands: Vec<Command>,
    pub progress: Progress,
}

// SAFETY: launches hold addresses of buffers that the commands keep alive, and of code that their pipelines
// keep loaded.
unsafe impl Send for Work {}

impl SimQueue {
    pub(super) fn new(
        label: &str,
        limits: Limits,
        settings: Settings,
        sanitizer: Option<Arc<Sanitizer>>,
    ) -> Result<Self> {
        let failed = |error| Error::Device(format!("queue '{label}': {error}"));
        let (sender, receiver) = mpsc::channel();
        // The sanitizer runs threadgroups one after the other.
        let threads = if sanitizer.is_some() { 1 } else { settings.threads };
        let executor = Executor::new(threads).map_err(failed)?;
        thread::Builder::new()
            .name(format!("metal-sim {label}"))
            .spawn(move || run_queue(&receiver, executor))
            .map_err(failed)?;
        let slowdown = if sanitizer.is_some() { SANITIZER_SLOWDOWN } else { 1 };
        let handle = QueueHandle { sender, timeline: Arc::default(), sanitizer };
        Ok(Self { limits, budget: settings.budget * slowdown, handle })
    }
}

impl Queue for SimQueue {
    type Buffer = SimBuffer;
    type Pipeline = SimPipeline;
    type CommandBuffer = SimCommandBuffer;

    fn new_command_buffer(&self, label: &str) -> Result<SimCommandBuffer> {
        Ok(SimCommandBuffer::new(label, self.limits.clone(), self.budget, self.handle.clone()))
    }
}

/// Ends when the queue and all its open command buffers are gone.
fn run_queue(receiver: &Receiver<Work>, mut executor: Executor) {
    while let Ok(work) = receiver.recv() {
        let Work { commands, progress } = work;
        progress.start();
        let start = now();
        let mut result = Ok(());
        for command in &commands {
            result = match command {
                Command::Dispatch(dispatch) => run_dispatch(&mut executor, dispatch, &progress),
                Command::Copy { source, source_offset, destination, destination_offset, length } => {
                    if let (Some(from), Some(to)) = (source.tracked(), destination.tracked()) {
                        to.copy_written(*destination_offset, from, *source_offset, *length);
                    }
                    // SAFETY: both ranges were checked when the copy was recorded; they may overlap.
                    unsafe {
                        let (from, to) =
                            (source.address(*source_offset), destination.address(*destination_offset));
                        ptr::copy(from.cast::<u8>(), to.cast::<u8>(), *length);
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

fn run_dispatch(executor: &mut Executor, dispatch: &Dispatch, progress: &Progress) -> Result<()> {
    progress.begin_dispatch(&dispatch.label, &dispatch.launch.kernel);
    let mut launch = dispatch.launch.clone();
    let sanitizer = launch.checks.as_ref().map(|checks| Arc::clone(&checks.sanitizer));
    let mut checker = sanitizer.as_ref().map(|sanitizer| sanitizer.checker());
    if let Some(checker) = &mut checker {
        launch.checker = &raw mut ***checker;
    }
    // SAFETY: the dispatch holds its buffers and, through its pipeline, the loaded library. The checker is locked
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
