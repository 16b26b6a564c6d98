//! A run of nodes that was recorded, made into launches, and started again and again.

use crate::CudaError;
use crate::buffers::Buffers;
use crate::checks::Check;
use crate::driver::{CudaGraph, Launch, Stream};
use crate::inputs::Upload;
use crate::largest::Rows;
use crate::nccl::{Communicator, Exchange};
use crate::ops::{RowProduct, device_error};
use crate::step::{Calls, Step};
use graph::{BackendError, NodeId};
use std::sync::Arc;

/// Launches that messages name.
const LAST_LABELS: usize = 8;

/// What runs on the stream.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Kernel(Launch),
    /// Together with other GPUs.
    Exchange(Exchange),
}

impl Work {
    fn label(&self) -> &str {
        match self {
            Work::Kernel(launch) => &launch.label,
            Work::Exchange(exchange) => &exchange.label,
        }
    }

    fn start(&self, stream: &Stream, communicator: Option<&Communicator>) -> Result<(), CudaError> {
        match (self, communicator) {
            (Work::Kernel(launch), _) => stream.launch(launch),
            (Work::Exchange(exchange), Some(communicator)) => stream.exchange(communicator, exchange),
            (Work::Exchange(_), None) => {
                let message = "the GPU was not connected with others".to_owned();
                Err(CudaError::Driver { call: "an exchange of values", message })
            }
        }
    }
}

/// What runs between two synchronisations.
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
    /// What tells their calls.
    pub(crate) calls: Calls,
    /// What was written before, in order: the first launch brings it to its places.
    pub(crate) uploads: Vec<Upload>,
    pub(crate) launches: Vec<Work>,
    /// Labels of the last launches, for messages.
    labels: Arc<str>,
    pub(crate) checks: Vec<Check>,
    /// The rows whose largest elements the last launches find.
    pub(crate) largest: Option<Rows>,
    /// How many launches that are.
    last: usize,
    /// The launch whose place the first of them took.
    replaced: Option<Work>,
    /// The blocks of the launch that took it: each finds the largest result of its own.
    pub(crate) finding_blocks: Option<usize>,
    /// The last launch of the steps, if it is a product of one row.
    pub(crate) row_product: Option<RowProduct>,
    /// The split whose nodes the steps are, if they are those of one.
    pub(crate) split: Option<u64>,
    /// Whether some of the launches are exchanges.
    exchanges: bool,
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
    /// The node that it begins with, or what stands for one where it has none.
    pub(crate) fn first(&self) -> NodeId {
        self.steps.first().map_or(NodeId(usize::MAX), |step| step.id)
    }

    pub(crate) fn new(
        steps: Vec<Step>,
        uploads: Vec<Upload>,
        launches: Vec<Work>,
        checks: Vec<Check>,
        row_product: Option<RowProduct>,
    ) -> Program {
        let mut labels: Vec<&str> = launches.iter().map(Work::label).collect();
        labels.dedup();
        let labels = labels[labels.len().saturating_sub(LAST_LABELS)..].join(", ").into();
        let exchanges = launches.iter().any(|work| matches!(work, Work::Exchange(_)));
        Program {
            calls: Calls::new(&steps),
            steps,
            uploads,
            launches,
            labels,
            checks,
            largest: None,
            last: 0,
            replaced: None,
            finding_blocks: None,
            row_product,
            split: None,
            exchanges,
            graph: None,
            runs: 0,
        }
    }

    /// Takes the launches away that find largest elements. Returns the last launch of the steps.
    pub(crate) fn end_with_steps(&mut self) -> Option<&Launch> {
        self.launches.truncate(self.launches.len() - self.last);
        self.launches.extend(self.replaced.take());
        self.finding_blocks = None;
        (self.last, self.largest, self.graph) = (0, None, None);
        match self.launches.last() {
            Some(Work::Kernel(launch)) => Some(launch),
            _ => None,
        }
    }

    /// Makes launches that find the largest elements of these rows the last ones. The first of them takes the place of the last
    /// launch of the steps where it `replaces` it.
    pub(crate) fn end_with(&mut self, launches: Vec<Launch>, rows: Rows, replaces: bool) {
        if replaces {
            self.replaced = self.launches.pop();
            self.finding_blocks = launches.first().map(|launch| launch.grid[0] as usize);
        }
        self.last = launches.len();
        // NCCL's kernels do not say when what follows may begin.
        let follows_exchange = matches!(self.launches.last(), Some(Work::Exchange(_)));
        for (index, launch) in launches.into_iter().enumerate() {
            let alone = launch.alone || (index == 0 && follows_exchange);
            self.launches.push(Work::Kernel(Launch { alone, ..launch }));
        }
        self.largest = Some(rows);
    }

    /// Checks what the host wrote.
    pub(crate) fn check(&self, buffers: &Buffers) -> Result<(), BackendError> {
        self.checks.iter().try_for_each(|check| check.run(buffers))
    }

    /// Starts everything.
    pub(crate) fn start(
        &mut self,
        stream: &Stream,
        communicator: Option<&Communicator>,
        replay: Replay,
    ) -> Result<(), BackendError> {
        self.runs = self.runs.saturating_add(1);
        let meet = || match communicator.filter(|_| self.exchanges) {
            Some(communicator) => communicator.meet().map_err(device_error),
            None => Ok(()),
        };
        if replay == Replay::Never || self.runs == 1 {
            meet()?;
            return self.launches.iter().try_for_each(|work| {
                work.start(stream, communicator)
                    .map_err(|error| BackendError::Device(format!("launch of '{}': {error}", work.label())))
            });
        }
        if self.graph.is_none() {
            self.graph = Some(
                stream
                    .capture(|| self.launches.iter().try_for_each(|work| work.start(stream, communicator)))
                    .map_err(device_error)?,
            );
        }
        // Each time: one of the GPUs may have failed before it came here.
        meet()?;
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
