//! Queues: one thread each that executes command buffers in order.

use std::collections::VecDeque;
use std::ptr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use metal::device::{Error, GpuInterval, Limits, Queue, Result, Status, Submission};

use super::Settings;
use super::buffer::SimBuffer;
use super::encoder::{Command, Dispatch, SimCommandBuffer};
use super::pipeline::SimPipeline;
use crate::runtime::Executor;

/// How many dispatches an error names.
const LABELS: usize = 8;

/// A queue of command buffers.
pub struct SimQueue {
    limits: Limits,
    budget: Duration,
    sender: Sender<Work>,
}

/// A committed command buffer.
pub(super) struct Work {
    pub commands: Vec<Command>,
    pub submission: SimSubmission,
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
        let Work { commands, submission } = work;
        submission.update(|state| {
            state.status = Status::Running;
            state.interval.start = now();
        });
        let mut failure = None;
        for command in &commands {
            let result = match command {
                Command::Dispatch(dispatch) => run_dispatch(&mut executor, dispatch, &submission),
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
            if let Err(error) = result {
                failure = Some(error);
                break;
            }
        }
        // Buffers go before anyone learns that the work is done.
        drop(commands);
        submission.update(|state| {
            state.interval.end = now();
            state.status = if failure.is_some() { Status::Failed } else { Status::Completed };
            state.failure = failure;
        });
    }
}

fn run_dispatch(executor: &mut Executor, dispatch: &Dispatch, submission: &SimSubmission) -> Result<()> {
    submission.update(|state| {
        if state.last_dispatches.len() == LABELS {
            state.last_dispatches.pop_front();
        }
        state.last_dispatches.push_back(dispatch.label.clone());
    });
    // SAFETY: the dispatch holds its buffers and, through its pipeline, the loaded library.
    unsafe { executor.execute(dispatch.launch.clone()) }.map_err(|failure| Error::Execution {
        label: submission.shared.label.clone(),
        kernel: failure.kernel,
        reason: failure.reason,
        last_dispatches: submission.lock().last_dispatches.iter().cloned().collect(),
    })
}

/// Seconds since the process first asked.
fn now() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Work on its way. A clone is another handle on the same work.
#[derive(Clone)]
pub struct SimSubmission {
    shared: Arc<Shared>,
}

struct Shared {
    label: String,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    status: Status,
    interval: GpuInterval,
    last_dispatches: VecDeque<String>,
    failure: Option<Error>,
}

impl SimSubmission {
    pub(super) fn new(label: &str) -> Self {
        Self {
            shared: Arc::new(Shared {
                label: label.to_owned(),
                state: Mutex::new(State {
                    status: Status::Scheduled,
                    interval: GpuInterval::default(),
                    last_dispatches: VecDeque::new(),
                    failure: None,
                }),
                changed: Condvar::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.shared.changed.notify_all();
    }
}

impl Submission for SimSubmission {
    fn label(&self) -> &str {
        &self.shared.label
    }

    fn status(&self) -> Status {
        self.lock().status
    }

    fn wait(&self, timeout: Duration) -> Result<GpuInterval> {
        let is_open = |state: &mut State| matches!(state.status, Status::Scheduled | Status::Running);
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(self.lock(), timeout, is_open)
            .unwrap_or_else(PoisonError::into_inner);
        match (&state.status, &state.failure) {
            (Status::Completed, _) => Ok(state.interval),
            (Status::Failed, Some(failure)) => Err(failure.clone()),
            _ => Err(Error::Timeout {
                label: self.shared.label.clone(),
                waited: timeout,
                last_dispatches: state.last_dispatches.iter().cloned().collect(),
            }),
        }
    }
}
