//! Submission: from the recording to the device and back, with a deadline.

use crate::backend::MetalBackend;
use crate::device::{self, Device, Status, Submission};
use crate::largest::Rows;
use crate::recorder::{Part, SubmissionOf};
use crate::work::deadline;
use graph::BackendError;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Command buffers on their way at a time: one that runs, and one behind it, so that the device is never idle between two. More would
/// only be work that goes on after an error.
const IN_FLIGHT: usize = 2;

/// How long the first touch of all weights may take: it reads a file from disk.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(300);

/// How long the end of the program waits for work that hung.
const LAST_WAIT: Duration = Duration::from_secs(1);

impl<D: Device> MetalBackend<D> {
    /// Ends the recording with a search for the largest elements of rows, and submits it.
    pub(crate) fn find_largest(&mut self, rows: Rows) -> Result<(), BackendError> {
        self.largest.found = None;
        let recorded = self.largest.record(&mut self.core, self.kernels.topk.largest, rows);
        if let Err(error) = recorded {
            self.discard();
            return Err(error);
        }
        self.finish()?;
        self.largest.found = Some(rows);
        Ok(())
    }

    /// Submits what was recorded and waits for it.
    pub(crate) fn finish(&mut self) -> Result<(), BackendError> {
        let done = D::scope(|| self.submit());
        self.residency.used();
        self.discard();
        done
    }

    /// Submits what was recorded, waits for it, and writes the trace. The recording is the caller's to clear.
    fn submit(&mut self) -> Result<(), BackendError> {
        self.end_warm_up()?;
        let core = &self.core;
        let (parts, most) = match core.switches.phase_profile {
            // One at a time: what each takes by itself is the question.
            true => (core.recorder.phases(), 1),
            false => (core.recorder.parts(self.name, core.work.limit()), IN_FLIGHT),
        };
        let (mut handed, mut done) = (VecDeque::with_capacity(most), Ok(()));
        for part in &parts {
            done = self.hand_over(part).map(|submission| handed.push_back((part, submission)));
            if done.is_ok() && handed.len() == most {
                let first = handed.pop_front();
                done = first.map_or(Ok(()), |(part, submission)| self.wait(part, submission));
            }
            if done.is_err() {
                break;
            }
        }
        // What is on its way uses memory that is free once this returns, so its end is waited for after an error, too.
        for (part, submission) in handed {
            done = done.and(self.wait(part, submission));
        }
        done?;
        let Some(trace) = &mut self.trace else { return Ok(()) };
        trace.drain().map_err(|error| BackendError::Device(format!("SMELT_TRACE: {error}")))
    }

    /// Hands a part of the recording to the device.
    fn hand_over(&mut self, part: &Part) -> Result<SubmissionOf<D>, BackendError> {
        let core = &mut self.core;
        // What the device refuses to encode never ran: it harms nothing but this forward.
        let submission = core.recorder.submit(part, &self.queue, &core.pipelines);
        submission.map_err(|error| BackendError::Device(error.to_string()))
    }

    /// Waits for a part of the recording: all before it have ended, so that its deadline begins now. Once the device has failed
    /// nothing is waited for.
    fn wait(&mut self, part: &Part, submission: SubmissionOf<D>) -> Result<(), BackendError> {
        if self.failed.is_some() {
            self.keep(submission);
            return Ok(());
        }
        let start = Instant::now();
        let interval = submission.wait(self.deadline(part.time));
        let waited = start.elapsed();
        let switches = &self.core.switches;
        if switches.op_profile {
            self.profile.waited(waited);
            if let Ok(interval) = &interval {
                let (busy, waited) = (interval.duration().as_secs_f64() * 1e3, waited.as_secs_f64() * 1e3);
                let (label, count) = (&part.label, part.commands.len());
                eprintln!("{label}: {count} commands, device {busy:.3} ms, waited {waited:.3} ms");
            }
        }
        let busy = match interval {
            Ok(interval) => interval.duration(),
            Err(error) => return Err(self.latch(submission, error)),
        };
        if switches.phase_profile {
            self.profile.phase(&part.label, busy);
        }
        self.core.recorder.ended(busy);
        Ok(())
    }

    /// How long work may take once the device can turn to it: what was asked for, or the device's own time, and more for work that
    /// is much by estimate.
    fn deadline(&self, estimate: Duration) -> Duration {
        match self.core.switches.timeout {
            Some(asked) => asked,
            None => deadline(estimate, self.timeout),
        }
    }

    /// Waits for the first touch of the weights.
    fn end_warm_up(&mut self) -> Result<(), BackendError> {
        for submission in std::mem::take(&mut self.warming) {
            if let Err(error) = submission.wait(WARM_UP_TIMEOUT) {
                return Err(self.latch(submission, error));
            }
        }
        Ok(())
    }

    /// Remembers the first error of the device: every later call repeats it.
    fn latch(&mut self, submission: SubmissionOf<D>, error: device::Error) -> BackendError {
        self.keep(submission);
        let message = error.to_string();
        self.failed.get_or_insert_with(|| message.clone());
        BackendError::Device(message)
    }

    /// Keeps work that a device which has failed may still be at.
    fn keep(&mut self, submission: SubmissionOf<D>) {
        if !matches!(submission.status(), Status::Completed | Status::Failed) {
            self.hung.push(submission);
        }
    }

    /// The end: what was measured is told, and memory that the device may still touch is kept.
    pub(crate) fn end(&mut self) {
        if self.core.switches.capture.is_some() {
            self.core.device.stop_capture();
        }
        let report = self.profile.report();
        if !report.is_empty() {
            eprint!("{report}");
        }
        let pending = std::mem::take(&mut self.warming).into_iter().chain(std::mem::take(&mut self.hung));
        let ended = pending.map(|submission| {
            // Its error was told before, or nobody is left to hear it.
            let _ = submission.wait(LAST_WAIT);
            matches!(submission.status(), Status::Completed | Status::Failed)
        });
        // All of them are waited for, so no short cut.
        if ended.fold(false, |hangs, ended| hangs | !ended) {
            // The mapping of the file would be gone under a device that reads it.
            self.core.weights.leak();
        }
    }
}
