//! Runs built graphs on backends.

mod build;
mod gate;
mod states;
mod trace;

use crate::{Backend, BackendError, Batch, Graph, GraphError, GraphParams, Largest, Operand};
use build::Built;
use states::LayerState;
use std::ops::Range;

/// Whether [`Scheduler::prepare`] had to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// The parameters equal those of the last build, which is used again.
    Reused,
    /// A new graph was built, assigned and planned.
    Rebuilt,
}

/// Counters of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Graphs built.
    pub builds: u64,
    /// Forwards that finished.
    pub forwards: u64,
    /// Splits of the current graph.
    pub splits: usize,
    /// The most bytes of buffers that a graph had on each backend, in order of priority.
    pub peak_bytes: Vec<usize>,
}

/// Owns the backends, the current build and the layers' states.
///
/// Use: [`register_weight`](Scheduler::register_weight) for every weight, then, for every forward,
/// [`prepare`](Scheduler::prepare), [`run`](Scheduler::run) and [`read_output`](Scheduler::read_output).
pub struct Scheduler {
    backends: Vec<Box<dyn Backend>>,
    built: Option<Built>,
    /// The state of each layer.
    states: Vec<Option<LayerState>>,
    /// Layers whose state the last build dropped.
    dropped_states: Vec<usize>,
    /// Why accelerators lack weights.
    refused_weights: Vec<GraphError>,
    /// Whether the outputs are those of a finished forward.
    ran: bool,
    epoch: u64,
    /// Splits of all builds so far.
    splits_built: u64,
    staging: Vec<u8>,
    stats: Stats,
}

impl Scheduler {
    /// A scheduler over backends in order of priority. The last one takes what no other does, and need not be named
    /// in [`GraphParams::participation`].
    ///
    /// # Panics
    /// If there are no backends.
    pub fn new(backends: Vec<Box<dyn Backend>>) -> Scheduler {
        assert!(!backends.is_empty(), "a scheduler needs at least one backend");
        let stats = Stats { peak_bytes: vec![0; backends.len()], ..Stats::default() };
        Scheduler {
            backends,
            built: None,
            states: Vec::new(),
            dropped_states: Vec::new(),
            refused_weights: Vec::new(),
            ran: false,
            epoch: 0,
            splits_built: 0,
            staging: Vec::new(),
            stats,
        }
    }

    /// Makes the graph of these parameters current: the last one if they are equal, or else what `build` gives.
    pub fn prepare(
        &mut self,
        params: &GraphParams,
        build: impl FnOnce(&GraphParams) -> Result<Graph, GraphError>,
    ) -> Result<Prepared, GraphError> {
        self.prepare_with(params, build, &mut |_, _| {})
    }

    /// The same; `progress` is told how many nodes of how many their backends have
    /// [prepared](Backend::prepare_node), which takes long where weights are brought into another order.
    pub fn prepare_with(
        &mut self,
        params: &GraphParams,
        build: impl FnOnce(&GraphParams) -> Result<Graph, GraphError>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Prepared, GraphError> {
        if self.built.as_ref().is_some_and(|built| built.graph.params() == params) {
            return Ok(Prepared::Reused);
        }
        self.ran = false;
        let graph = build(params)?;
        self.free_built();
        self.build(graph, progress)?;
        Ok(Prepared::Rebuilt)
    }

    /// Runs the current graph on a batch, to the end: when it returns, all work is done, and after a success outputs
    /// can be read. After an error nothing can be read until the next success.
    ///
    /// The batch must have been [validated](Batch::validate) for the graph's parameters; here only lengths are
    /// checked.
    pub fn run(&mut self, batch: &Batch) -> Result<(), GraphError> {
        self.ran = false;
        self.epoch += 1;
        let Some(built) = &self.built else { return Err(GraphError::NotPrepared) };
        let mut pending = vec![false; self.backends.len()];
        let done = execute(built, &mut self.backends, &mut pending, &mut self.staging, batch, self.epoch);
        // Work that was begun is ended on every path, so that nothing writes into buffers later. After an error that
        // is every backend's: which of them have what in flight is their affair.
        let mut ended = Ok(());
        for (backend, pending) in self.backends.iter_mut().zip(pending) {
            if pending || done.is_err() {
                let result = if done.is_ok() { backend.synchronize() } else { backend.abandon() };
                ended = ended.and(result.map_err(|source| failure(backend.as_ref(), "synchronize", source)));
            }
        }
        done.and(ended)?;
        self.ran = true;
        self.stats.forwards += 1;
        Ok(())
    }

    /// Copies rows of an output of the last forward to the host, `rows.len() * columns` elements.
    pub fn read_output(
        &mut self,
        index: usize,
        rows: Range<usize>,
        dst: &mut [f32],
    ) -> Result<(), GraphError> {
        let (backend, operand) = self.output_rows(index, &rows)?;
        let elements = rows.len() * operand.shape.cols;
        if dst.len() != elements {
            return Err(GraphError::Output { index, what: "elements", expected: elements, found: dst.len() });
        }
        if dst.is_empty() {
            return Ok(());
        }
        let backend = &mut self.backends[backend];
        let read = backend.read_host(operand.buffer, operand.offset, bytemuck::cast_slice_mut(dst));
        read.map_err(|source| failure(backend.as_ref(), &format!("output {index}"), source))
    }

    /// The `count` largest elements of each of some rows of an output of the last forward, or all where a row is shorter, if
    /// the backend that has them can tell without copying all to the host.
    pub fn largest_of_output(
        &mut self,
        index: usize,
        rows: Range<usize>,
        count: usize,
    ) -> Result<Option<Vec<Largest>>, GraphError> {
        let (backend, operand) = self.output_rows(index, &rows)?;
        let cols = operand.shape.cols;
        if rows.is_empty() || cols == 0 || count == 0 {
            return Ok(None);
        }
        let backend = &mut self.backends[backend];
        let found = backend.largest(operand.buffer, operand.offset, [rows.len(), cols], count);
        found.map_err(|source| failure(backend.as_ref(), &format!("output {index}"), source))
    }

    /// Where rows of an output of the last forward are: the backend, and the place of the first row.
    fn output_rows(&self, index: usize, rows: &Range<usize>) -> Result<(usize, Operand), GraphError> {
        let Some(built) = self.built.as_ref().filter(|_| self.ran) else { return Err(GraphError::NotRun) };
        let check = |what, expected, found, fits: bool| {
            if fits { Ok(()) } else { Err(GraphError::Output { index, what, expected, found }) }
        };
        let outputs = built.outputs.len();
        let Some(&(backend, operand)) = built.outputs.get(index) else {
            let what = "index below the number of outputs";
            return Err(GraphError::Output { index, what, expected: outputs, found: index });
        };
        let shape = operand.shape;
        check("end of the rows", shape.rows, rows.end, rows.end <= shape.rows)?;
        check("start of the rows", rows.end, rows.start, rows.start <= rows.end)?;
        let offset = operand.offset + rows.start * shape.cols * size_of::<f32>();
        Ok((backend, Operand { offset, ..operand }))
    }

    /// The layers whose state could not be carried over in the last rebuild, since its columns or types changed: what
    /// their sequences had stored is lost.
    pub fn dropped_states(&self) -> &[usize] {
        &self.dropped_states
    }

    /// The current graph, as it runs: fused.
    pub fn graph(&self) -> Option<&Graph> {
        self.built.as_ref().map(|built| &built.graph)
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Bytes of the copies of weights that backends have made.
    pub fn packed_bytes(&self) -> usize {
        self.backends.iter().map(|backend| backend.packed_bytes()).sum()
    }

    /// What each backend counted since its start, by its name, in order of priority.
    pub fn counters(&self) -> Vec<(&str, Vec<(&'static str, u64)>)> {
        self.backends.iter().map(|backend| (backend.name(), backend.counters())).collect()
    }

    /// The names of the backends, in order of priority.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        self.backends.iter().map(|backend| backend.name())
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.free_built();
        for state in self.states.drain(..).flatten() {
            self.backends[state.backend].free_state(state.id);
        }
    }
}

/// An error of a backend, with its name and what it did.
fn failure(backend: &dyn Backend, node: &str, source: BackendError) -> GraphError {
    GraphError::Backend { backend: backend.name().into(), node: node.into(), source }
}

/// The inner loop: fills inputs, then runs split after split. A backend's work is synchronised before another one
/// reads its results, unless the two [order that themselves](Backend::copy_from); `pending` tells which backends have
/// work that is not.
fn execute(
    built: &Built,
    backends: &mut [Box<dyn Backend>],
    pending: &mut [bool],
    staging: &mut Vec<u8>,
    batch: &Batch,
    epoch: u64,
) -> Result<(), GraphError> {
    for input in &built.inputs {
        let values = batch.input(input.kind).unwrap_or_default();
        let expected = input.operand.shape.elements();
        if values.len() != expected {
            return Err(GraphError::Input { what: input.kind.name(), expected, found: values.len() });
        }
        if values.is_empty() {
            continue;
        }
        let backend = &mut backends[input.backend];
        let written =
            backend.write_host(input.operand.buffer, input.operand.offset, bytemuck::cast_slice(values));
        written.map_err(|source| failure(backend.as_ref(), &input.kind.name(), source))?;
    }
    let mut previous = None;
    for split in &built.splits {
        let mut linked = false;
        for copy in split.copies.iter().filter(|copy| copy.from.bytes() > 0) {
            let label = &built.graph.node(copy.from.producer).label;
            // The two order the copy with their work, so that nothing waits.
            if copy_between(backends, copy, split.backend, label)? {
                linked |= previous == Some(copy.from_backend);
                continue;
            }
            synchronize(backends, pending, copy.from_backend)?;
            staging.resize(copy.from.bytes(), 0);
            let from = &mut backends[copy.from_backend];
            let read = from.read_host(copy.from.buffer, copy.from.offset, staging);
            read.map_err(|source| failure(from.as_ref(), label, source))?;
            let to = &mut backends[split.backend];
            let written = to.write_host(copy.to.buffer, copy.to.offset, staging);
            written.map_err(|source| failure(to.as_ref(), label, source))?;
        }
        if let Some(previous) = previous.filter(|&previous| previous != split.backend && !linked) {
            synchronize(backends, pending, previous)?;
        }
        previous = Some(split.backend);
        let backend = &mut backends[split.backend];
        pending[split.backend] = true;
        if backend.knows_split(split.number) {
            let repeated = backend.repeat_split(split.number);
            repeated.map_err(|source| failure(backend.as_ref(), "a split as before", source))?;
            continue;
        }
        for step in &split.steps {
            let call = step.call(&built.graph, epoch);
            backend
                .execute_node(&call)
                .map_err(|source| failure(backend.as_ref(), &call.node.label, source))?;
        }
        backend.remember_split(split.number, split.steps.len());
    }
    Ok(())
}

/// Brings a value to the backend of a split from the one that made it, if these two can do so by themselves.
fn copy_between(
    backends: &mut [Box<dyn Backend>],
    copy: &build::Copy,
    to: usize,
    label: &str,
) -> Result<bool, GraphError> {
    let Ok([to, from]) = backends.get_disjoint_mut([to, copy.from_backend]) else { return Ok(false) };
    to.copy_from(from.as_mut(), &copy.from, &copy.to).map_err(|source| failure(to.as_ref(), label, source))
}

fn synchronize(
    backends: &mut [Box<dyn Backend>],
    pending: &mut [bool],
    backend: usize,
) -> Result<(), GraphError> {
    if std::mem::take(&mut pending[backend]) {
        let backend = &mut backends[backend];
        backend.synchronize().map_err(|source| failure(backend.as_ref(), "synchronize", source))?;
    }
    Ok(())
}
