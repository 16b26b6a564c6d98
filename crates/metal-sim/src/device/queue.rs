//! Queues: one thread each that executes command buffers in order.

use std::ptr;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use metal::device::{Error, GpuInterval, Limits, Progress, Queue, Result, Status, Submission};

use super::Settings;
use super::buffer::SimBuffer;
use super::encoder::{Command, Dispatch, SimCommandBuffer};
use super::pipeline::SimPipeline;
use crate::runtime::Executor;

/// A queue of command buffers.
pub struct SimQueue {
    limits: Limits,
    budget: Duration,
    sender: Sender<Work>,
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
    pub(super) fn new(label: &str, limits: Limits, settings: Settings) -> Result<Self> {
        let failed = |error| Error::Device(format!("queue '{label}': {error}"));
        let (sender, receiver) = mpsc::channel();
        let executor = Executor::new(settings.threads).map_err(failed)?;
        thread::Builder::new()
            .name(format!("metal-sim {label}"))
            .spawn(move || run_queue(&receiver, executor))
            .map_err(failed)?;
        Ok(Self { limits, budget: settings.budget, sender })
    }
}

impl Queue for SimQueue {
    type Buffer = SimBuffer;
    type Pipeline = SimPipeline;
    type CommandBuffer = SimCommandBuffer;

    fn new_command_buffer(&self, label: &str) -> Result<SimCommandBuffer> {
        Ok(SimCommandBuffer::new(label, self.limits.clone(), self.budget, self.sender.clone()))
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
    // SAFETY: the dispatch holds its buffers and, through its pipeline, the loaded library.
    unsafe { executor.execute(dispatch.launch.clone()) }
        .map_err(|failure| progress.execution_error(&failure.kernel, failure.reason))
}

/// Seconds since the process first asked.
fn now() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Work on its way. A clone is another handle on the same work.
#[derive(Clone)]
pub struct SimSubmission(pub(super) Progress);

impl Submission for SimSubmission {
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
