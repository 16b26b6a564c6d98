//! Submission: from the recording to the device and back, with a deadline.

use crate::backend::MetalBackend;
use crate::device::{self, Device, Status, Submission};
use crate::largest::Rows;
use graph::BackendError;
use std::ops::Range;
use std::time::{Duration, Instant};

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
        let done = self.submit();
        self.discard();
        done
    }

    /// Submits what was recorded, waits for it, and writes the trace. The recording is the caller's to clear.
    fn submit(&mut self) -> Result<(), BackendError> {
        self.end_warm_up()?;
        let commands = self.core.recorder.len();
        if commands == 0 {
            return Ok(());
        }
        if self.core.switches.phase_profile {
            for (range, name) in self.core.recorder.phases() {
                let busy = self.run(range, &name)?;
                self.profile.phase(&name, busy);
            }
        } else {
            self.run(0..commands, self.name)?;
        }
        let Some(trace) = &mut self.trace else { return Ok(()) };
        trace.drain().map_err(|error| BackendError::Device(format!("SMELT_TRACE: {error}")))
    }

    /// Runs a range of the recording as one command buffer; the time that the device was busy.
    fn run(&mut self, commands: Range<usize>, label: &str) -> Result<Duration, BackendError> {
        let count = commands.len();
        let core = &mut self.core;
        // What the device refuses to encode never ran: it harms nothing but this forward.
        let submission = core
            .recorder
            .submit(commands, &self.queue, &core.pipelines, label)
            .map_err(|error| BackendError::Device(error.to_string()))?;
        let start = Instant::now();
        let interval = submission.wait(self.timeout);
        let waited = start.elapsed();
        if core.switches.op_profile {
            self.profile.waited(waited);
            if let Ok(interval) = &interval {
                let (busy, waited) = (interval.duration().as_secs_f64() * 1e3, waited.as_secs_f64() * 1e3);
                eprintln!("{label}: {count} commands, device {busy:.3} ms, waited {waited:.3} ms");
            }
        }
        match interval {
            Ok(interval) => {
                self.core.recorder.ended(interval.duration());
                Ok(interval.duration())
            }
            Err(error) => Err(self.latch(submission, error)),
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
    fn latch(&mut self, submission: crate::recorder::SubmissionOf<D>, error: device::Error) -> BackendError {
        if !matches!(submission.status(), Status::Completed | Status::Failed) {
            self.hung.push(submission);
        }
        let message = error.to_string();
        self.failed.get_or_insert_with(|| message.clone());
        BackendError::Device(message)
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
