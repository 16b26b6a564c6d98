//! How far a submission has come: what a device reports and what [`Submission::wait`](super::Submission) waits for.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Error, GpuInterval, Result, Status, Submission};

/// How many dispatches an error names.
const LABELS: usize = 16;

/// The labels of the last dispatches, the latest last.
#[derive(Clone, Debug, Default)]
pub struct LastDispatches(VecDeque<String>);

impl LastDispatches {
    /// Adds a dispatch of a kernel under the encoder's label.
    pub fn push(&mut self, label: &str, kernel: &str) {
        if self.0.len() == LABELS {
            self.0.pop_front();
        }
        self.0.push_back(if label.is_empty() { kernel.to_owned() } else { format!("{label} ({kernel})") });
    }

    /// The labels, for an error.
    pub fn to_vec(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }
}

/// The progress of one submission, shared by the device that makes it and those who wait for it.
#[derive(Clone, Debug)]
pub struct Progress {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    label: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    status: Status,
    interval: GpuInterval,
    last_dispatches: LastDispatches,
    failure: Option<Error>,
}

impl Progress {
    /// A submission that nothing has been done for.
    pub fn new(label: &str, last_dispatches: LastDispatches) -> Self {
        let state = State {
            status: Status::Scheduled,
            interval: GpuInterval::default(),
            last_dispatches,
            failure: None,
        };
        let shared = Shared { label: label.to_owned(), state: Mutex::new(state), changed: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// The labels of the last dispatches so far.
    pub fn last_dispatches(&self) -> Vec<String> {
        self.lock().last_dispatches.to_vec()
    }

    /// A dispatch begins, on a device that knows.
    pub fn begin_dispatch(&self, label: &str, kernel: &str) {
        self.lock().last_dispatches.push(label, kernel);
    }

    /// The device has taken the work up.
    pub fn start(&self) {
        self.update(|state| {
            if state.status == Status::Scheduled {
                state.status = Status::Running;
            }
        });
    }

    /// The work has ended, well or with a failure.
    pub fn finish(&self, result: Result<GpuInterval>) {
        self.update(|state| match result {
            Ok(interval) => (state.status, state.interval) = (Status::Completed, interval),
            Err(failure) => (state.status, state.failure) = (Status::Failed, Some(failure)),
        });
    }

    /// The error of work that failed: `kernel` is empty where the device does not tell it.
    pub fn execution_error(&self, kernel: &str, reason: String) -> Error {
        Error::Execution {
            label: self.shared.label.clone(),
            kernel: kernel.to_owned(),
            reason,
            last_dispatches: self.last_dispatches(),
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

/// What most devices return from a commit.
impl Submission for Progress {
    fn label(&self) -> &str {
        &self.shared.label
    }

    fn status(&self) -> Status {
        self.lock().status
    }

    fn wait(&self, timeout: Duration) -> Result<GpuInterval> {
        let is_open = |state: &mut State| matches!(state.status, Status::Scheduled | Status::Running);
        let waited = self.shared.changed.wait_timeout_while(self.lock(), timeout, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match (state.status, &state.failure) {
            (Status::Completed, _) => Ok(state.interval),
            (Status::Failed, Some(failure)) => Err(failure.clone()),
            _ => Err(Error::Timeout {
                label: self.shared.label.clone(),
                waited: timeout,
                last_dispatches: state.last_dispatches.to_vec(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_ends_with_the_work_or_the_deadline() {
        let progress = Progress::new("token", LastDispatches::default());
        progress.begin_dispatch("", "embed");
        progress.begin_dispatch("layer 0", "norm");
        let late = progress.wait(Duration::from_millis(1));
        let Err(Error::Timeout { last_dispatches, .. }) = late else { panic!("{late:?}") };
        assert_eq!(last_dispatches, ["embed", "layer 0 (norm)"]);
        let worker = progress.clone();
        let interval = GpuInterval { start: 1.0, end: 1.5 };
        let thread = thread::spawn(move || {
            worker.start();
            assert_eq!(worker.status(), Status::Running);
            worker.finish(Ok(interval));
            // A report that comes late changes nothing.
            worker.start();
        });
        assert_eq!(progress.wait(Duration::from_secs(60)), Ok(interval));
        thread.join().expect("the worker's assertion holds");
        assert_eq!(progress.status(), Status::Completed);
    }

    #[test]
    fn a_failure_reaches_everyone_who_waits() {
        let progress = Progress::new("token", LastDispatches::default());
        let failure = progress.execution_error("norm", "fault".to_owned());
        progress.finish(Err(failure.clone()));
        assert_eq!(progress.status(), Status::Failed);
        for _ in 0..2 {
            assert_eq!(progress.wait(Duration::ZERO), Err(failure.clone()));
        }
    }

    #[test]
    fn only_the_last_dispatches_are_kept() {
        let mut last = LastDispatches::default();
        (0..40).for_each(|number| last.push("", &number.to_string()));
        let kept = last.to_vec();
        assert_eq!((kept.len(), kept[0].as_str(), kept[15].as_str()), (16, "24", "39"));
    }
}
