//! The backend: the table of what it can run, and the recording of nodes.

pub(crate) mod connect;

use crate::CudaError;
use crate::buffers::{Buffers, States, cache_type, out_of_memory};
use crate::driver::{self, Device, Event, Pinned, Stream};
use crate::inputs::Inputs;
use crate::kernels::Kernels;
use crate::largest::{LargestRows, Rows};
use crate::nccl::Communicator;
use crate::ops::{Lowering, WIDEST_KEY, WIDEST_VALUE, device_error, is_tiled};
use crate::program::{Program, Replay, Work};
use crate::scratch::Scratch;
use crate::step::{Step, uses};
use crate::tiled;
use crate::weights::{Weights, is_vector};
use graph::ops::Activation;
use graph::{
    Backend, BackendError, BufferId, DType, FusedOp, Graph, Largest, NodeCall, NodeId, Op, OpQuery, Operand,
    StateId, StatePart, StateSpec, WeightData,
};
use std::any::Any;
use std::env;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are read or written at a time where they are many.
const CHUNK: usize = 16 << 20;
/// Memory that is left to others: graphs, code, and what the driver needs.
const RESERVE: usize = 512 << 20;
/// Warps of a block of the product of one row: one block takes a multiprocessor for itself.
const MATVEC_WARPS: u64 = 28;
/// Seconds until a wait is given up.
const TIMEOUT: u64 = 120;

/// Runs operations on one GPU. What is executed is recorded, and runs when results are asked for or at the next
/// [`synchronize`](Backend::synchronize). After a failure of the device every call is an error.
pub struct CudaBackend {
    name: String,
    device: Arc<Device>,
    /// Bytes that were free at the start.
    free: usize,
    deadline: Duration,
    replay: Replay,
    /// Programs, which begin with different nodes. All refer to the current build.
    programs: Vec<Program>,
    recording: Recording,
    /// How often each value of the graph is read; of the current build.
    uses: Option<Vec<usize>>,
    /// What was started and nobody waited for.
    pending: Pending,
    /// Labels of what was started last.
    last: Arc<str>,
    failed: Option<String>,
    inputs: Inputs,
    chunk: Option<Pinned>,
    /// Where the work is that made a value for another GPU.
    sent: Event,
    /// Where a value from another GPU is here.
    received: Event,
    /// The backends whose memory the GPU was let read.
    links: Vec<String>,
    /// Its place among the GPUs that it shares every layer with. The graphs that refer to it are dropped before.
    communicator: Option<Communicator>,
    // The stream ends before the memory that its work uses, and modules after all launches.
    stream: Stream,
    scratch: Scratch,
    largest: LargestRows,
    buffers: Buffers,
    states: States,
    weights: Weights,
    kernels: Kernels,
}

/// The nodes since the last run: the first `matched` steps of the program that begins with the same node, or, where they
/// differ from every program, the steps themselves.
#[derive(Default)]
struct Recording {
    /// The number of the program.
    program: Option<usize>,
    matched: usize,
    fresh: Vec<Step>,
    /// The split whose nodes these are, if they are those of one.
    split: Option<u64>,
}

/// Work that was started and nobody waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// None that reads what the host writes, or writes what it reads.
    Nothing,
    Work,
    /// Work that ends with largest elements, which the host sees arrive: sooner than it is told of the stream's end.
    Result,
}

impl Recording {
    /// Steps.
    fn len(&self) -> usize {
        if self.fresh.is_empty() { self.matched } else { self.fresh.len() }
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn number(variable: &'static str, default: u64) -> Result<u64, CudaError> {
    match env::var(variable) {
        Ok(found) => {
            found.parse().map_err(|_| CudaError::Environment { variable, expected: "a whole number", found })
        }
        Err(_) => Ok(default),
    }
}

impl CudaBackend {
    /// Opens the GPU that `SMELT_CUDA_DEVICE` numbers, or the first; its name is `cuda`.
    ///
    /// # Errors
    /// [`CudaError`]: what is missing or too old, or a variable of the environment that means nothing.
    pub fn new() -> Result<CudaBackend, CudaError> {
        CudaBackend::named("cuda".into(), CudaBackend::default_device()?)
    }

    /// Opens the GPU with this number among those that the driver shows, from 0 on; its name is `cuda:` and the number.
    ///
    /// # Errors
    /// As for [`new`](CudaBackend::new).
    pub fn open(ordinal: usize) -> Result<CudaBackend, CudaError> {
        CudaBackend::named(format!("cuda:{ordinal}"), ordinal)
    }

    /// GPUs that the driver shows.
    ///
    /// # Errors
    /// [`CudaError`]: no driver, or no GPU.
    pub fn count() -> Result<usize, CudaError> {
        driver::count()
    }

    /// The number of the GPU that [`new`](CudaBackend::new) opens.
    ///
    /// # Errors
    /// [`CudaError::Environment`].
    pub fn default_device() -> Result<usize, CudaError> {
        Ok(usize::try_from(number("SMELT_CUDA_DEVICE", 0)?).unwrap_or(usize::MAX))
    }

    fn named(name: String, ordinal: usize) -> Result<CudaBackend, CudaError> {
        let deadline = Duration::from_secs(number("SMELT_CUDA_TIMEOUT", TIMEOUT)?);
        let replay = match number("SMELT_CUDA_GRAPH", 1)? {
            0 => Replay::Never,
            _ => Replay::FromSecond,
        };
        let device = Device::open(ordinal)?;
        let warps = number("SMELT_CUDA_MATVEC_WARPS", MATVEC_WARPS)?;
        let warps = usize::try_from(warps).unwrap_or(usize::MAX).clamp(1, 32);
        let kernels = Kernels::new(&device, number("SMELT_CUDA_HOPPER", 1)? != 0, warps)?;
        let (free, _) = device.memory()?;
        Ok(CudaBackend {
            name,
            sent: Event::new(&device)?,
            received: Event::new(&device)?,
            links: Vec::new(),
            communicator: None,
            free,
            deadline,
            replay,
            programs: Vec::new(),
            recording: Recording::default(),
            uses: None,
            pending: Pending::Nothing,
            last: "".into(),
            failed: None,
            inputs: Inputs::new(&device)?,
            chunk: None,
            stream: Stream::new(&device)?,
            scratch: Scratch::default(),
            largest: LargestRows::default(),
            buffers: Buffers::new(&device),
            states: States::new(&device),
            weights: Weights::new(&device, deadline),
            kernels,
            device,
        })
    }

    /// A line about the GPU.
    pub fn description(&self) -> String {
        let (free, total) = self.device.memory().unwrap_or((0, 0));
        let gib = |bytes: usize| bytes as f64 / (1u64 << 30) as f64;
        format!(
            "{}, compute capability {}.{}, {} multiprocessors, {:.1} GiB of memory, {:.1} GiB free",
            self.device.name,
            self.device.capability.0,
            self.device.capability.1,
            self.device.multiprocessors,
            gib(total),
            gib(free)
        )
    }

    /// Bytes of weights, caches and activations that could be had at the start.
    fn usable(&self) -> usize {
        self.free.saturating_sub(RESERVE)
    }

    /// Fails if the device has failed before; makes its context the thread's own.
    fn healthy(&self) -> Result<(), BackendError> {
        self.not_failed()?;
        self.device.bind().map_err(device_error)
    }

    fn not_failed(&self) -> Result<(), BackendError> {
        match &self.failed {
            Some(message) => {
                Err(BackendError::Device(format!("stopped after an earlier failure: {message}")))
            }
            None => Ok(()),
        }
    }

    /// Remembers a failure of the device.
    fn latch<T>(&mut self, result: Result<T, BackendError>) -> Result<T, BackendError> {
        let (message, own) = match &result {
            Err(BackendError::Device(message)) => (message, true),
            Err(BackendError::Partner(message)) if self.partner_failed() => (message, false),
            _ => return result,
        };
        if self.failed.is_none() {
            let text = match &*self.last {
                "" => message.clone(),
                last => format!("{message}; last dispatches: {last}"),
            };
            self.failed = Some(text.clone());
            if self.communicator.is_some() {
                // An exchange may wait for a GPU that does not come, and freeing memory would wait for it without end: ending
                // the communicator ends it, once nothing has it captured.
                self.programs.clear();
                self.communicator = None;
            }
            return Err(if own { BackendError::Device(text) } else { BackendError::Partner(text) });
        }
        result
    }

    /// Whether a GPU that this one shares every layer with takes no more work.
    fn partner_failed(&self) -> bool {
        self.communicator.as_ref().is_some_and(Communicator::has_failed)
    }

    /// Forgets programs, since what they refer to changes.
    fn invalidate(&mut self) {
        if self.uses.is_none() && self.programs.is_empty() {
            return;
        }
        if self.pending != Pending::Nothing {
            let waited = self.device.bind().map_err(device_error).and_then(|()| self.wait());
            // A failure is latched, and told by the next call.
            let _ = self.latch(waited);
        }
        self.programs.clear();
        self.largest.clear();
        self.uses = None;
        self.scratch.tidy();
    }

    fn wait(&mut self) -> Result<(), BackendError> {
        let (largest, communicator) = (&mut self.largest, self.communicator.as_ref());
        let result_ends = self.pending == Pending::Result;
        let arrived = || result_ends && largest.arrived();
        let is_hopeless = || communicator.is_some_and(Communicator::has_failed);
        let waited = self.stream.wait_or(self.deadline, arrived, is_hopeless);
        self.pending = Pending::Nothing;
        waited.map_err(device_error)
    }

    fn forget_recording(&mut self) {
        self.recording = Recording::default();
        self.inputs.clear();
    }

    /// Starts what was recorded.
    fn flush(&mut self) -> Result<(), BackendError> {
        if self.recording.is_empty() && self.inputs.is_empty() {
            return Ok(());
        }
        let started = self.start();
        self.forget_recording();
        self.latch(started)
    }

    fn start(&mut self) -> Result<(), BackendError> {
        let ready = self.make_ready();
        if let (Err(_), Some(communicator)) = (&ready, &self.communicator) {
            communicator.leave();
        }
        let Some(program) = self.programs.get_mut(ready?) else { return Ok(()) };
        program.start(&self.stream, self.communicator.as_ref(), self.replay)
    }

    /// The number of the program of what was recorded, which can start now.
    fn make_ready(&mut self) -> Result<usize, BackendError> {
        let recording = std::mem::take(&mut self.recording);
        let known = recording.program.and_then(|index| Some((index, self.programs.get(index)?)));
        let steps = match known {
            Some((index, program)) if recording.fresh.is_empty() => {
                if recording.matched == program.steps.len() && program.uploads == self.inputs.uploads() {
                    return self.prepare_program(index, recording.split);
                }
                program.steps[..recording.matched].to_vec()
            }
            _ => recording.fresh,
        };
        if !steps.is_empty() {
            self.weights.end_upload();
        }
        let lowering = Lowering::new(
            &self.device,
            &self.stream,
            &mut self.kernels,
            &self.buffers,
            &self.states,
            &mut self.weights,
            &mut self.scratch,
        );
        let lowered = lowering.run(&steps)?;
        let first = self.inputs.launches(&self.buffers, &mut self.kernels, &lowered.angles)?;
        let inputs = first.len();
        let mut launches = Vec::with_capacity(inputs + lowered.launches.len());
        launches.extend(first.into_iter().map(Work::Kernel));
        launches.extend(lowered.launches);
        // What the inputs say may be read by launches that begin before those before them are done.
        for index in [0, inputs] {
            if let Some(Work::Kernel(launch)) = launches.get_mut(index) {
                launch.alone |= index == 0 || !launch.orderly;
            }
        }
        let program = Program::new(
            steps,
            self.inputs.uploads().to_vec(),
            launches,
            lowered.checks,
            lowered.row_product,
        );
        self.programs.retain(|other| other.first() != program.first());
        self.programs.push(program);
        self.prepare_program(self.programs.len() - 1, recording.split)
    }

    /// Makes a program, whose nodes are those of this split, end with what was asked for, and checks its inputs.
    fn prepare_program(&mut self, index: usize, split: Option<u64>) -> Result<usize, BackendError> {
        let Some(program) = self.programs.get_mut(index) else { return Ok(index) };
        program.split = split.or(program.split);
        program.check(&self.buffers)?;
        self.largest.found = program.largest;
        if let Some(rows) = self.largest.asked.filter(|&rows| program.largest != Some(rows))
            && program.steps.iter().any(|step| step.output.buffer == rows.buffer)
        {
            let (device, stream) = (&self.device, &self.stream);
            let product = program.row_product;
            let last = program.end_with_steps().and_then(|last| product.map(|product| (product, last)));
            let at_hand = (device, stream, &mut self.kernels, &self.buffers, &mut self.scratch);
            let (launches, replaces) = self.largest.launches(rows, last, at_hand)?;
            program.end_with(launches, rows, replaces);
            self.largest.found = Some(rows);
        }
        self.last = Arc::clone(program.last_labels());
        let tells = program.largest.is_some_and(|rows| self.largest.expect(rows, program.finding_blocks));
        self.pending = if tells { Pending::Result } else { Pending::Work };
        Ok(index)
    }

    /// The page-locked memory that large copies go through.
    fn chunk(&mut self) -> Result<&mut Pinned, BackendError> {
        if self.chunk.is_none() {
            let chunk = Pinned::new(&self.device, CHUNK);
            self.chunk = Some(chunk.map_err(|error| out_of_memory("copies", CHUNK, error))?);
        }
        self.chunk.as_mut().ok_or_else(|| BackendError::Device("no memory for copies".into()))
    }

    /// Copies to the device, and waits.
    fn write(&mut self, to: u64, src: &[u8]) -> Result<(), BackendError> {
        self.flush()?;
        let deadline = self.deadline;
        for (index, part) in src.chunks(CHUNK).enumerate() {
            let chunk = self.chunk()?;
            chunk.bytes()[..part.len()].copy_from_slice(part);
            let chunk =
                self.chunk.as_ref().ok_or_else(|| BackendError::Device("no memory for copies".into()))?;
            let copied = self.stream.copy_to(to + (index * CHUNK) as u64, chunk, 0, part.len());
            let copied = copied.and_then(|()| self.stream.wait(deadline)).map_err(device_error);
            self.latch(copied)?;
        }
        self.pending = Pending::Nothing;
        Ok(())
    }

    /// Copies from the device, after all work.
    fn read(&mut self, from: u64, dst: &mut [u8]) -> Result<(), BackendError> {
        self.flush()?;
        let deadline = self.deadline;
        for (index, part) in dst.chunks_mut(CHUNK).enumerate() {
            self.chunk()?;
            let Some(chunk) = self.chunk.as_mut() else { continue };
            let copied = self.stream.copy_from(chunk, from + (index * CHUNK) as u64, part.len());
            let copied = copied.and_then(|()| self.stream.wait(deadline)).map_err(device_error);
            part.copy_from_slice(&chunk.bytes()[..part.len()]);
            self.latch(copied)?;
        }
        self.pending = Pending::Nothing;
        Ok(())
    }

    fn record(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        let recording = &mut self.recording;
        if recording.fresh.is_empty() {
            if recording.matched == 0 {
                recording.program = self.programs.iter().position(|program| program.first() == call.id);
            }
            if let Some(program) = recording.program.and_then(|index| self.programs.get(index)) {
                if program.calls.is(recording.matched, call) {
                    recording.matched += 1;
                    return Ok(());
                }
                recording.fresh = program.steps[..recording.matched].to_vec();
            }
        }
        let uses = self.uses.get_or_insert_with(|| uses(call.graph));
        let used = uses.get(call.id.0).copied().unwrap_or(0);
        recording.fresh.push(Step::new(call, used, &self.weights)?);
        Ok(())
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // Memory must not be freed under running kernels; after a failure there are none.
        if self.failed.is_none() && self.device.bind().is_ok() {
            let _ = self.stream.wait(self.deadline);
        }
    }
}

/// Whether keys and values have types that the cache kernels know, in heads of whole blocks.
fn is_cache(spec: Option<&StateSpec>, head_dims: Option<[usize; 2]>) -> bool {
    let Some(spec) = spec else { return false };
    let parts = [StatePart::Key, StatePart::Value].map(|part| spec.part(part));
    parts.into_iter().enumerate().all(|(i, part)| {
        part.is_some_and(|(_, cols, dtype)| {
            let width = head_dims.map_or(cols, |dims| dims[i]);
            cache_type(dtype).is_some() && dtype.row_bytes(width).is_some()
        })
    })
}

/// The capability table. Types of activations and results are checked for all operations alike: f32, with i32 for
/// what comes from the host; shape operations move any elements of 4 bytes.
fn supports(query: &OpQuery<'_>, connected: bool) -> bool {
    let weights_are = |is: fn(quant::Format) -> bool| query.weights.iter().all(|weight| is(weight.format));
    // The first `n` weights are matrices, the others vectors.
    let matrices = |n: usize| {
        let (matrices, vectors) = query.weights.split_at(n.min(query.weights.len()));
        matrices.iter().all(|w| tiled::shape(w.format, w.rows, w.cols).is_some())
            && vectors.iter().all(|w| is_vector(w.format))
    };
    let activations = query.output == DType::F32
        && query.inputs.iter().all(|dtype| matches!(dtype, DType::F32 | DType::I32));
    match query.op {
        Op::Input(_) => query.output == DType::I32,
        Op::View(_) | Op::Reshape => matches!(query.output, DType::F32 | DType::I32),
        Op::Add | Op::Mul | Op::Scale(_) | Op::Activation(_) | Op::SoftCap(_) | Op::Gated(_) => activations,
        Op::Softmax(_) | Op::BatchMatMul(_) | Op::Permute(_) | Op::Rope(_) => activations,
        Op::RmsNorm(_) | Op::QkNorm(_) => activations && weights_are(is_vector),
        Op::MatMul(_) => activations && matrices(1),
        Op::GetRows(_) => activations,
        Op::KvStore(_) | Op::KvLoad(_) => activations && is_cache(query.state, None),
        Op::Attention(op) => {
            activations
                && weights_are(is_vector)
                && op.head_dim <= WIDEST_KEY
                && op.value_dim <= WIDEST_VALUE
                && is_cache(query.state, Some([op.head_dim, op.value_dim]))
        }
        Op::FusedQkv(_) => activations && matrices(3) && is_cache(query.state, None),
        Op::QkvBiasRopeStore(_) => activations && weights_are(is_vector) && is_cache(query.state, None),
        Op::FusedFfn(_) => activations && matrices(2),
        Op::ClampedSwiGlu(_) | Op::GatherCols | Op::CombineExperts => activations,
        Op::TopK(_) => query.output == DType::I32 && query.inputs == [DType::F32],
        Op::ExpertMatMul(_) => activations && matrices(1),
        Op::AllReduce | Op::AllGather(_) => activations && connected,
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn supports_op(&self, query: &OpQuery<'_>) -> bool {
        supports(query, self.communicator.is_some())
    }

    fn supports_fused(&self, fused: FusedOp) -> bool {
        match fused {
            FusedOp::Gated(Activation::Silu | Activation::Gelu | Activation::Sigmoid) => true,
        }
    }

    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.healthy()?;
        self.buffers.alloc(bytes)
    }

    fn free_buffer(&mut self, buffer: BufferId) {
        self.invalidate();
        self.buffers.free(buffer);
    }

    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.healthy()?;
        self.buffers.alloc_fresh(bytes)
    }

    fn register_weight(&mut self, name: &str, data: WeightData) -> Result<(), BackendError> {
        self.healthy()?;
        self.invalidate();
        let wanted = self.weights.file_bytes().saturating_add(data.bytes.len());
        if wanted > self.usable() {
            return Err(BackendError::OutOfMemory {
                what: format!("weight '{name}' and those before it, of {} free bytes", self.free),
                bytes: wanted,
            });
        }
        self.weights.register(name, data)
    }

    fn has_weight(&self, name: &str) -> bool {
        self.weights.contains(name)
    }

    fn usable_memory(&self) -> Option<usize> {
        Some(self.usable())
    }

    fn packed_bytes(&self) -> usize {
        self.weights.bytes()
    }

    fn alloc_state(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        self.healthy()?;
        let id = self.states.alloc(spec)?;
        let clear = |memory: &crate::driver::DeviceMemory| self.stream.clear(memory.address(), memory.len());
        self.states.memory(id).try_for_each(clear).map_err(device_error)?;
        Ok(id)
    }

    fn free_state(&mut self, state: StateId) {
        self.invalidate();
        self.states.free(state);
    }

    fn read_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        dst: &mut [u8],
    ) -> Result<(), BackendError> {
        self.healthy()?;
        let from = self.states.rows(state, part, first_row, dst.len())?;
        self.read(from, dst)
    }

    fn write_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        src: &[u8],
    ) -> Result<(), BackendError> {
        self.healthy()?;
        let to = self.states.rows(state, part, first_row, src.len())?;
        self.write(to, src)
    }

    fn prepare_node(&mut self, graph: &Graph, node: NodeId) -> Result<(), BackendError> {
        self.healthy()?;
        self.invalidate();
        let op = &graph.node(node).op;
        let matrices = match op {
            Op::MatMul(_) | Op::ExpertMatMul(_) => 1,
            Op::FusedQkv(_) => 3,
            Op::FusedFfn(_) => 2,
            _ => 0,
        };
        for (index, id) in op.weights().into_iter().enumerate() {
            let info = graph.weight(id);
            self.weights.check(&info.name, info.format, info.rows, info.cols)?;
            let is_raw = match op {
                Op::GetRows(_) => true,
                Op::ExpertMatMul(op) => index == 0 && !is_tiled(info.rows, op.experts),
                _ => false,
            };
            let made = if is_raw {
                self.weights.raw(&info.name, &self.stream).map(|_| ())
            } else if index < matrices {
                self.weights.tiled(&info.name, &self.stream, &mut self.kernels).map(|_| ())
            } else {
                self.weights.vector(&info.name, &self.stream).map(|_| ())
            };
            self.latch(made)?;
        }
        Ok(())
    }

    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        // A decode step has hundreds of nodes, and recording them needs no context.
        self.not_failed()?;
        let recorded = self.record(call);
        if recorded.is_err() {
            self.forget_recording();
        }
        recorded
    }

    fn remember_split(&mut self, split: u64, nodes: usize) {
        // Something else may have been recorded before.
        self.recording.split = (nodes > 0 && self.recording.len() == nodes).then_some(split);
    }

    fn knows_split(&self, split: u64) -> bool {
        self.programs.iter().any(|program| program.split == Some(split))
    }

    fn repeat_split(&mut self, split: u64) -> Result<(), BackendError> {
        self.not_failed()?;
        if !self.recording.is_empty() {
            self.flush()?;
        }
        let known = self.programs.iter().enumerate().find(|(_, program)| program.split == Some(split));
        let Some((index, program)) = known else {
            let id = usize::try_from(split).unwrap_or(usize::MAX);
            return Err(BackendError::UnknownHandle { kind: "split", id });
        };
        let matched = program.steps.len();
        self.recording = Recording { program: Some(index), matched, fresh: Vec::new(), split: Some(split) };
        Ok(())
    }

    fn read_host(&mut self, buffer: BufferId, offset: usize, dst: &mut [u8]) -> Result<(), BackendError> {
        self.healthy()?;
        let from = self.buffers.address(buffer, offset, dst.len(), "read from a buffer")?;
        self.read(from, dst)
    }

    fn largest(
        &mut self,
        buffer: BufferId,
        offset: usize,
        shape: [usize; 2],
        count: usize,
    ) -> Result<Option<Vec<Largest>>, BackendError> {
        self.healthy()?;
        self.flush()?;
        let Some(wanted) = Rows::new(buffer, offset, shape, count) else { return Ok(None) };
        if self.largest.found != Some(wanted) {
            let (device, stream) = (&self.device, &self.stream);
            let at_hand = (device, stream, &mut self.kernels, &self.buffers, &mut self.scratch);
            let (launches, _) = self.largest.launches(wanted, None, at_hand)?;
            let started = launches.iter().try_for_each(|launch| stream.launch(launch)).map_err(device_error);
            self.pending = Pending::Work;
            self.latch(started)?;
            (self.largest.asked, self.largest.found) = (Some(wanted), Some(wanted));
        }
        if self.pending != Pending::Nothing {
            let waited = self.wait();
            self.latch(waited)?;
        }
        Ok(self.largest.read(count))
    }

    fn write_host(&mut self, buffer: BufferId, offset: usize, src: &[u8]) -> Result<(), BackendError> {
        // A decode step writes several inputs, and keeping them needs no context.
        self.not_failed()?;
        self.largest.found = None;
        let to = self.buffers.address(buffer, offset, src.len(), "write to a buffer")?;
        // What was recorded reads what was there before.
        if !self.recording.is_empty() {
            self.healthy()?;
            self.flush()?;
        }
        if self.pending != Pending::Nothing {
            self.healthy()?;
            let waited = self.wait();
            self.latch(waited)?;
        }
        self.buffers.note_written(buffer, offset, src);
        if self.inputs.put(buffer, offset, src) {
            return Ok(());
        }
        self.healthy()?;
        self.write(to, src)
    }

    fn copy_from(
        &mut self,
        from: &mut dyn Backend,
        source: &Operand,
        target: &Operand,
    ) -> Result<bool, BackendError> {
        let Some(from) = from.as_any().and_then(|from| from.downcast_mut::<CudaBackend>()) else {
            return Ok(false);
        };
        from.healthy()?;
        from.flush()?;
        let address =
            from.buffers.address(source.buffer, source.offset, source.bytes(), "a value to copy")?;
        let sent = from.stream.record(&from.sent).map_err(device_error);
        from.pending = Pending::Work;
        from.latch(sent)?;

        self.healthy()?;
        // What the host wrote waits for the nodes that read it; what was recorded may read what was here before.
        if !self.recording.is_empty() {
            self.flush()?;
        }
        let to = self.buffers.address(target.buffer, target.offset, source.bytes(), "a place for a value")?;
        if !self.links.contains(&from.name) {
            self.device.link(&from.device).map_err(device_error)?;
            self.links.push(from.name.clone());
        }
        self.pending = Pending::Work;
        let peer = (from.device.as_ref(), address);
        let copied = self.stream.copy_peer(to, peer, source.bytes(), &from.sent, &self.received);
        // The value's place is not used for another before it was read.
        let copied = copied.and_then(|()| from.stream.wait_for(&self.received)).map_err(device_error);
        self.latch(copied)?;
        Ok(true)
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.healthy()?;
        self.flush()?;
        let waited = self.wait();
        self.latch(waited)
    }

    fn abandon(&mut self) -> Result<(), BackendError> {
        self.forget_recording();
        self.healthy()?;
        let waited = self.wait();
        self.latch(waited)
    }
}
