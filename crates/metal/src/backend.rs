//! The backend: what the graph asks of it.

use crate::Error;
use crate::capability;
use crate::device::{Buffer, Device, MathMode, Pipeline};
use crate::error::backend_error;
use crate::fusion::{Fusion, Held};
use crate::largest::{LargestRows, Rows};
use crate::library::{Compiled, LIBRARIES, Sources};
use crate::ops::{self, Kernels};
use crate::pass::{Pass, invariant};
use crate::pipelines::{Loader, PipelineId, Pipelines};
use crate::pool::Pool;
use crate::profile::Profile;
use crate::recorder::{Counts, Recorder, SubmissionOf};
use crate::requirements::{check_device, usable_memory};
use crate::residency::Residency;
use crate::states::States;
use crate::switches::Switches;
use crate::tables::RopeTables;
use crate::tensor::{Memory, Slice};
use crate::trace::Trace;
use crate::warmup;
use crate::weights::{WeightBytes, Weights};
use crate::work::{self, Work};
use bytes::Bytes;
use graph::{
    Backend, BackendError, BufferId, FusedOp, Graph, Largest, NodeCall, NodeId, OpQuery, StateId, StatePart,
    StateSpec, WeightData,
};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// How to start the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetalOptions {
    /// The backend's name, as in `--device`.
    pub name: &'static str,
    /// How long a command buffer may take at least before the device counts as hung, unless the switches say otherwise.
    pub timeout: Duration,
    /// What the environment asks for.
    pub switches: Switches,
}

/// How long a GPU that draws a screen besides may take for a command buffer, were it ever so short.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Everything that encoding needs, beside the kernels.
pub(crate) struct Core<D: Device> {
    pub pipelines: Pipelines<D>,
    pub recorder: Recorder<D::Buffer>,
    pub pool: Pool<D::Buffer>,
    pub weights: Weights<D::Buffer>,
    pub states: States<D::Buffer>,
    pub tables: RopeTables<D::Buffer>,
    pub work: Work,
    pub switches: Switches,
    pub device: D,
}

impl<D: Device> Core<D> {
    /// Most threads of a threadgroup of a kernel: of the device, or fewer, where the kernel needs many registers.
    pub fn most_threads(&self, kernel: PipelineId) -> usize {
        let own = self.pipelines.get(kernel).max_threads_per_threadgroup();
        own.min(self.device.limits().max_threads_per_threadgroup)
    }
}

/// Runs graphs on a Metal device. Executing a node only records it; [`synchronize`](Backend::synchronize) submits what
/// was recorded, as one command buffer with one concurrent encoder, or as several where that would take long, and waits for it.
///
/// It alone owns its queue: nobody else's work stands between two of its command buffers.
pub struct MetalBackend<D: Device> {
    pub(crate) name: &'static str,
    /// Before the queue that it belongs to.
    pub(crate) residency: Residency<D::Buffer>,
    /// Before what its work uses.
    pub(crate) queue: D::Queue,
    pub(crate) core: Core<D>,
    pub(crate) timeout: Duration,
    pub(crate) kernels: Kernels,
    warm_up: PipelineId,
    fusion: Fusion,
    held: Vec<Held>,
    pub(crate) largest: LargestRows<D::Buffer>,
    pub(crate) profile: Profile,
    pub(crate) trace: Option<Trace<D::Buffer>>,
    /// The first touch of mapped weights, under way.
    pub(crate) warming: Vec<SubmissionOf<D>>,
    /// Work that had not ended when its deadline passed: it may still touch the memory that it was given.
    pub(crate) hung: Vec<SubmissionOf<D>>,
    /// The first error of the device: after it, nothing that is on the device can be trusted.
    pub(crate) failed: Option<String>,
}

impl<D: Device> MetalBackend<D> {
    /// Starts the backend: compiles all libraries and makes all pipelines.
    ///
    /// # Errors
    /// [`Error::Device`] with the compiler's text or the name of the kernel that is missing.
    pub fn new(device: D, options: MetalOptions) -> Result<MetalBackend<D>, Error> {
        MetalBackend::with_embedded(device, options, &[])
    }

    /// The same with libraries that were compiled ahead of time for devices of this kind, as
    /// [`EMBEDDED`](crate::library::EMBEDDED) for Apple's.
    ///
    /// # Errors
    /// As for [`MetalBackend::new`].
    pub fn with_embedded(
        device: D,
        options: MetalOptions,
        embedded: Compiled,
    ) -> Result<MetalBackend<D>, Error> {
        check_device(&device)?;
        let switches = options.switches;
        let math = if switches.strict { MathMode::Safe } else { MathMode::Fast };
        let prebuilt = switches.library.as_deref().map(|path| prebuilt(&device, path)).transpose()?;
        let sources = Sources::new(&switches, LIBRARIES)?;
        let mut loader = Loader::new(&device, math, sources, prebuilt).with_embedded(embedded);
        loader.compile(LIBRARIES)?;
        let kernels = Kernels::load(&mut loader)?;
        let warm_up = warmup::load(&mut loader)?;
        let pipelines = loader.finish()?;
        let queue = device.new_queue(options.name)?;
        if let Some(path) = &switches.capture {
            device.start_capture(path)?;
        }
        let trace = switches.trace.as_deref().map(Trace::new);
        let work = Work::of(device.limits(), switches.cut.unwrap_or(work::LIMIT));
        let core = Core {
            pipelines,
            recorder: Recorder::new(switches.serial),
            pool: Pool::new(),
            weights: Weights::new(switches.weight_copy),
            states: States::new(),
            tables: RopeTables::new(),
            work,
            switches,
            device,
        };
        Ok(MetalBackend {
            name: options.name,
            residency: Residency::new(&core.device, &queue),
            queue,
            core,
            timeout: options.timeout,
            kernels,
            warm_up,
            fusion: Fusion::default(),
            held: Vec::new(),
            largest: LargestRows::default(),
            profile: Profile::default(),
            trace,
            warming: Vec::new(),
            hung: Vec::new(),
            failed: None,
        })
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.core.device
    }

    /// The registry of kernels.
    pub fn pipelines(&self) -> &Pipelines<D> {
        &self.core.pipelines
    }

    /// What was recorded and submitted since the start.
    pub fn counts(&self) -> Counts {
        self.core.recorder.counts()
    }

    /// The names of the kernels whose dispatches were recorded and not yet submitted, in order.
    pub fn recorded_kernels(&self) -> impl Iterator<Item = &str> {
        self.core.recorder.pipelines().map(|id| self.core.pipelines.get(id).name())
    }

    /// Where the weights lie.
    pub fn weight_bytes(&self) -> WeightBytes {
        self.core.weights.bytes()
    }

    /// The times that `SMELT_OP_PROFILE` and `SMELT_METAL_PHASE_PROFILE` measured, as tables.
    pub fn profile(&self) -> String {
        self.profile.report()
    }

    /// An error once the device has failed.
    fn healthy(&self) -> Result<(), BackendError> {
        match &self.failed {
            None => Ok(()),
            Some(first) => Err(BackendError::Device(format!(
                "'{}' takes no more work since it failed: {first}",
                self.name
            ))),
        }
    }

    /// Touches mapped weights once, without waiting for it.
    fn warm_up(&mut self, weights: &[D::Buffer]) -> Result<(), BackendError> {
        let core = &self.core;
        let failed = |error| backend_error(error, "warm-up of the weights", size_of::<u32>());
        let submit = || warmup::submit(&core.device, &self.queue, &core.pipelines, self.warm_up, weights);
        let submission = D::scope(submit).map_err(failed)?;
        self.warming.push(submission);
        Ok(())
    }

    /// Encodes a node with those that were held for it.
    fn encode(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        if let Some(last) = self.fusion.holds(call.id) {
            let held = Held { id: call.id, inputs: call.inputs.to_vec(), output: call.output };
            self.held.push(held);
            // Traces show every value, so nothing is held for them.
            debug_assert!(last > call.id, "a chain ends after its nodes");
            return Ok(());
        }
        let held = std::mem::take(&mut self.held);
        if let Some(stray) = held.iter().find(|held| self.fusion.holds(held.id) != Some(call.id)) {
            let expected = format!("the last node of the chain of node {}", stray.id.0);
            return Err(invariant("order of nodes", expected, format!("node {}", call.id.0)));
        }
        if !held.is_empty() && ops::is_apart(call, &held) {
            return ops::encode_chain(&mut Pass::new(call, &mut self.core, &self.kernels), &held);
        }
        for Held { id, inputs, output } in &held {
            let alone = NodeCall { id: *id, node: call.graph.node(*id), inputs, output: *output, ..*call };
            ops::encode(&mut Pass::new(&alone, &mut self.core, &self.kernels))?;
        }
        ops::encode(&mut Pass::new(call, &mut self.core, &self.kernels))
    }

    /// Copies the node's value aside, for the trace.
    fn capture(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        let Some(trace) = self.trace.as_mut().filter(|_| call.output.bytes() > 0) else { return Ok(()) };
        let core = &mut self.core;
        let bytes = call.output.bytes();
        let value = Pass::new(call, core, &self.kernels).output()?;
        let failed = |error| backend_error(error, "a copy for the trace", bytes);
        let copy = Memory::new(core.device.new_buffer("trace", bytes).map_err(failed)?);
        let copy = Slice { memory: copy, offset: 0, length: bytes };
        core.recorder.copy(value.slice.clone(), copy.clone());
        trace.add(call.epoch, call.id.0, &call.node.label, &value, copy);
        Ok(())
    }

    /// Drops what was recorded and not submitted.
    pub(crate) fn discard(&mut self) {
        self.core.recorder.clear();
        self.held.clear();
        if let Some(trace) = &mut self.trace {
            trace.clear();
        }
    }

    /// Memory that the host may touch now: nothing that waits for submission uses it.
    fn idle(&self, slice: &Slice<D::Buffer>) -> Result<(), BackendError> {
        if self.core.recorder.uses(slice.memory.id()) {
            return Err(invariant("access by the host", "memory whose work is done", "work that is pending"));
        }
        Ok(())
    }

    fn read(&self, slice: &Slice<D::Buffer>, dst: &mut [u8]) -> Result<(), BackendError> {
        self.healthy()?;
        self.idle(slice)?;
        slice.memory.buffer().read(slice.offset, dst).map_err(|error| BackendError::Device(error.to_string()))
    }

    fn write(&self, slice: &Slice<D::Buffer>, src: &[u8]) -> Result<(), BackendError> {
        self.healthy()?;
        self.idle(slice)?;
        slice
            .memory
            .buffer()
            .write(slice.offset, src)
            .map_err(|error| BackendError::Device(error.to_string()))
    }
}

/// The library that `SMELT_METALLIB_FILE` names.
fn prebuilt<D: Device>(device: &D, path: &Path) -> Result<D::Library, Error> {
    let data = std::fs::read(path).map_err(|error| Error::Environment {
        variable: "SMELT_METALLIB_FILE",
        expected: "a file that can be read",
        found: format!("{}: {error}", path.display()),
    })?;
    Ok(device.new_library_with_data(&path.display().to_string(), &data)?)
}

impl<D: Device> Backend for MetalBackend<D> {
    fn name(&self) -> &str {
        self.name
    }

    fn supports_op(&self, query: &OpQuery<'_>) -> bool {
        capability::supports(query)
    }

    fn supports_fused(&self, fused: FusedOp) -> bool {
        capability::supports_fused(fused)
    }

    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.core.pool.alloc(&self.core.device, bytes)
    }

    fn free_buffer(&mut self, buffer: BufferId) {
        self.core.pool.free(buffer);
    }

    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.core.pool.alloc_fresh(&self.core.device, bytes)
    }

    fn register_part(&mut self, part: &Bytes, weights: &[Range<usize>]) -> Result<(), BackendError> {
        let mapped = self.core.weights.add_part(&self.core.device, part, weights);
        if mapped.is_empty() {
            return Ok(());
        }
        self.residency.map(&mapped);
        self.warm_up(&mapped)
    }

    fn unmapped_bytes(&self) -> usize {
        self.core.weights.unmapped()
    }

    fn usable_memory(&self) -> Option<usize> {
        Some(usable_memory(&self.core.device))
    }

    fn register_weight(&mut self, name: &str, data: WeightData) -> Result<(), BackendError> {
        self.core.weights.register(&self.core.device, name, data)
    }

    fn has_weight(&self, name: &str) -> bool {
        self.core.weights.contains(name)
    }

    fn packed_bytes(&self) -> usize {
        self.core.weights.bytes().copied
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts();
        vec![
            ("submissions", counts.submissions),
            ("dispatches", counts.dispatches),
            ("barriers", counts.barriers),
            ("weight bytes read", counts.weight_bytes),
            ("activation bytes read", counts.read_bytes),
            ("bytes written", counts.written_bytes),
            ("device nanoseconds", counts.device_ns),
        ]
    }

    fn alloc_state(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        let state = self.core.states.alloc(&self.core.device, spec)?;
        self.residency.keep(&self.core.states.buffers(state), &[]);
        Ok(state)
    }

    fn free_state(&mut self, state: StateId) {
        self.residency.keep(&[], &self.core.states.buffers(state));
        self.core.states.free(state);
    }

    fn read_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        dst: &mut [u8],
    ) -> Result<(), BackendError> {
        let slice = self.core.states.rows(state, part, first_row, dst.len())?;
        self.read(&slice, dst)
    }

    fn write_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        src: &[u8],
    ) -> Result<(), BackendError> {
        let slice = self.core.states.rows(state, part, first_row, src.len())?;
        self.write(&slice, src)
    }

    fn prepare_node(&mut self, graph: &Graph, node: NodeId) -> Result<(), BackendError> {
        // Traces show every value, so nothing is computed on the way to another.
        let chains = if self.trace.is_some() { &[] } else { ops::CHAINS };
        self.largest.clear();
        self.fusion.prepare(graph, node, chains);
        Ok(())
    }

    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        self.healthy()?;
        self.largest.found = None;
        let start = self.core.switches.op_profile.then(Instant::now);
        let done = self.encode(call).and_then(|()| self.capture(call));
        if let Some(start) = start {
            self.profile.encoded(call.node.op.name(), start.elapsed());
        }
        if done.is_err() {
            // The device never sees half a split.
            self.discard();
        }
        done
    }

    fn read_host(&mut self, buffer: BufferId, offset: usize, dst: &mut [u8]) -> Result<(), BackendError> {
        let slice = self.core.pool.slice(buffer, offset, dst.len())?;
        self.read(&slice, dst)
    }

    fn largest(
        &mut self,
        buffer: BufferId,
        offset: usize,
        shape: [usize; 2],
        count: usize,
    ) -> Result<Option<Vec<Largest>>, BackendError> {
        self.healthy()?;
        let Some(rows) = Rows::new(buffer, offset, shape) else { return Ok(None) };
        self.idle(&rows.slice(&self.core)?)?;
        if self.largest.found != Some(rows) {
            self.largest.asked = Some(rows);
            self.find_largest(rows)?;
        }
        self.largest.read(&self.core, count)
    }

    fn write_host(&mut self, buffer: BufferId, offset: usize, src: &[u8]) -> Result<(), BackendError> {
        self.largest.found = None;
        let slice = self.core.pool.slice(buffer, offset, src.len())?;
        self.write(&slice, src)
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.healthy()?;
        if let Some(held) = self.held.first() {
            let found = format!("node {} held for a later one", held.id.0);
            self.discard();
            return Err(invariant("end of a split", "every chain complete", found));
        }
        // What was asked of these rows will be asked again.
        let written = |rows: &Rows| {
            rows.slice(&self.core).is_ok_and(|slice| self.core.recorder.uses(slice.memory.id()))
        };
        match self.largest.asked.filter(written) {
            Some(rows) => self.find_largest(rows),
            None => self.finish(),
        }
    }
}

impl<D: Device> Drop for MetalBackend<D> {
    fn drop(&mut self) {
        self.end();
    }
}
