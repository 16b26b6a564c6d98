//! A run of nodes that was recorded, made into launches, and started again and again.

use crate::buffers::Buffers;
use crate::checks::Check;
use crate::driver::{CudaGraph, Launch, Stream};
use crate::largest::Rows;
use crate::ops::device_error;
use crate::step::Step;
use graph::{BackendError, BufferId};
use std::sync::Arc;

/// Launches that messages name.
const LAST_LABELS: usize = 8;

/// A place that the host writes before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upload {
    pub(crate) buffer: BufferId,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// What runs between two synchronisations.
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
    /// What was written before, in order: the first launch brings it to its places.
    pub(crate) uploads: Vec<Upload>,
    pub(crate) launches: Vec<Launch>,
    /// Labels of the last launches, for messages.
    labels: Arc<str>,
    pub(crate) checks: Vec<Check>,
    /// The rows whose largest elements the last launches find.
    pub(crate) largest: Option<Rows>,
    /// How many launches that are.
    last: usize,
    graph: Option<CudaGraph>,
    runs: u32,
}

/// How launches start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    /// One by one.
    Never,
    /// As a graph from the second run on: what runs once is not worth one.
    FromSecond,
}

impl Program {
    pub(crate) fn new(
        steps: Vec<Step>,
        uploads: Vec<Upload>,
        launches: Vec<Launch>,
        checks: Vec<Check>,
    ) -> Program {
        let mut labels: Vec<&str> = launches.iter().map(|launch| launch.label.as_str()).collect();
        labels.dedup();
        let labels = labels[labels.len().saturating_sub(LAST_LABELS)..].join(", ").into();
        Program { steps, uploads, launches, labels, checks, largest: None, last: 0, graph: None, runs: 0 }
    }

    /// Makes launches that find the largest elements of these rows the last ones.
    pub(crate) fn end_with(&mut self, launches: Vec<Launch>, rows: Rows) {
        self.launches.truncate(self.launches.len() - self.last);
        self.last = launches.len();
        self.launches.extend(launches);
        self.largest = Some(rows);
        self.graph = None;
    }

    /// Checks what the host wrote.
    pub(crate) fn check(&self, buffers: &Buffers) -> Result<(), BackendError> {
        self.checks.iter().try_for_each(|check| check.run(buffers))
    }

    /// Starts everything.
    pub(crate) fn start(&mut self, stream: &Stream, replay: Replay) -> Result<(), BackendError> {
        self.runs = self.runs.saturating_add(1);
        if replay == Replay::Never || self.runs == 1 {
            return self.launches.iter().try_for_each(|launch| {
                stream
                    .launch(launch)
                    .map_err(|error| BackendError::Device(format!("launch of '{}': {error}", launch.label)))
            });
        }
        if self.graph.is_none() {
            self.graph = Some(stream.capture(&self.launches).map_err(device_error)?);
        }
        match &self.graph {
            Some(graph) => stream.replay(graph).map_err(device_error),
            None => Ok(()),
        }
    }

    /// The labels of the last launches, for messages.
    pub(crate) fn last_labels(&self) -> &Arc<str> {
        &self.labels
    }
}
