//! The backend: memory, encoding, submission.

use crate::Error;
use crate::capability;
use crate::device::{Buffer, Device, MathMode, Submission};
use crate::ops::{self, Kernels};
use crate::pass::Pass;
use crate::pipelines::{Loader, Pipelines};
use crate::pool::Pool;
use crate::recorder::{Counts, Recorder};
use crate::states::States;
use crate::switches::Switches;
use crate::tables::RopeTables;
use crate::weights::{WeightBytes, Weights};
use bytes::Bytes;
use graph::{
    Backend, BackendError, BufferId, FusedOp, Graph, NodeCall, NodeId, Op, OpQuery, StateId, StatePart,
    StateSpec, WeightData,
};

/// How to start the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetalOptions {
    /// The backend's name, as in `--device`.
    pub name: &'static str,
    /// What the environment asks for.
    pub switches: Switches,
}

/// Everything that encoding needs, beside the kernels.
pub(crate) struct Core<D: Device> {
    pub device: D,
    pub pipelines: Pipelines<D>,
    pub recorder: Recorder<D::Buffer>,
    pub pool: Pool<D::Buffer>,
    pub weights: Weights<D::Buffer>,
    pub states: States<D::Buffer>,
    pub tables: RopeTables<D::Buffer>,
    pub switches: Switches,
}

/// Runs graphs on a Metal device. Executing a node only records it; [`synchronize`](Backend::synchronize) submits what
/// was recorded, as one command buffer with one concurrent encoder, and waits for it.
pub struct MetalBackend<D: Device> {
    name: &'static str,
    core: Core<D>,
    kernels: Kernels,
    queue: D::Queue,
    /// The first error of the device: after it, nothing that is on the device can be trusted.
    failed: Option<String>,
}

impl<D: Device> MetalBackend<D> {
    /// Starts the backend: compiles all libraries and makes all pipelines.
    ///
    /// # Errors
    /// [`Error::Device`] with the compiler's text or the name of the kernel that is missing.
    pub fn new(device: D, options: MetalOptions) -> Result<MetalBackend<D>, Error> {
        let switches = options.switches;
        let math = if switches.strict { MathMode::Safe } else { MathMode::Fast };
        let mut loader = Loader::new(&device, math);
        let kernels = Kernels::load(&mut loader)?;
        let pipelines = loader.finish();
        let queue = device.new_queue(options.name)?;
        let core = Core {
            pipelines,
            recorder: Recorder::new(switches.serial),
            pool: Pool::new(),
            weights: Weights::new(switches.weight_copy),
            states: States::new(),
            tables: RopeTables::new(),
            device,
            switches,
        };
        Ok(MetalBackend { name: options.name, core, kernels, queue, failed: None })
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

    /// Where the weights lie.
    pub fn weight_bytes(&self) -> WeightBytes {
        self.core.weights.bytes()
    }

    /// Maps a part of a model's file, so that the weights in it need not be copied. Whether the device could.
    pub fn add_part(&mut self, part: &Bytes) -> bool {
        self.core.weights.add_part(&self.core.device, part).is_some()
    }

    /// An error once the device has failed.
    fn healthy(&self) -> Result<(), BackendError> {
        match &self.failed {
            None => Ok(()),
            Some(first) => Err(BackendError::Device(format!("unhealthy since: {first}"))),
        }
    }

    /// Submits what was recorded and waits.
    fn submit(&mut self) -> Result<(), BackendError> {
        let submitted = self.core.recorder.submit(&self.queue, &self.core.pipelines, self.name);
        let done = submitted.and_then(|submission| match submission {
            None => Ok(()),
            Some(submission) => submission.wait(self.core.switches.timeout).map(|_| ()),
        });
        done.map_err(|error| {
            let message = error.to_string();
            self.failed = Some(message.clone());
            BackendError::Device(message)
        })
    }
}

impl<D: Device> Backend for MetalBackend<D> {
    fn name(&self) -> &str {
        self.name
    }

    fn supports_op(&self, query: &OpQuery<'_>) -> bool {
        self.failed.is_none() && capability::supports(query)
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

    fn register_weight(&mut self, name: &str, data: WeightData) -> Result<(), BackendError> {
        self.core.weights.register(&self.core.device, name, data)
    }

    fn has_weight(&self, name: &str) -> bool {
        self.core.weights.contains(name)
    }

    fn packed_bytes(&self) -> usize {
        let bytes = self.core.weights.bytes();
        bytes.copied + bytes.joined
    }

    fn alloc_state(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        self.core.states.alloc(&self.core.device, spec)
    }

    fn free_state(&mut self, state: StateId) {
        self.core.states.free(state);
    }

    fn read_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        dst: &mut [u8],
    ) -> Result<(), BackendError> {
        self.healthy()?;
        let slice = self.core.states.rows(state, part, first_row, dst.len())?;
        slice.memory.buffer().read(slice.offset, dst).map_err(|error| BackendError::Device(error.to_string()))
    }

    fn write_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        src: &[u8],
    ) -> Result<(), BackendError> {
        self.healthy()?;
        let slice = self.core.states.rows(state, part, first_row, src.len())?;
        slice
            .memory
            .buffer()
            .write(slice.offset, src)
            .map_err(|error| BackendError::Device(error.to_string()))
    }

    fn prepare_node(&mut self, graph: &Graph, node: NodeId) -> Result<(), BackendError> {
        let weights = match &graph.node(node).op {
            Op::FusedQkv(op) => &op.weights[..],
            Op::FusedFfn(op) => &op.weights[..],
            _ => return Ok(()),
        };
        let infos: Vec<_> = weights.iter().map(|&id| graph.weight(id)).collect();
        self.core.weights.join(&self.core.device, &infos)
    }

    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        self.healthy()?;
        ops::encode(&mut Pass::new(call, &mut self.core, &self.kernels))
    }

    fn read_host(&mut self, buffer: BufferId, offset: usize, dst: &mut [u8]) -> Result<(), BackendError> {
        self.healthy()?;
        let slice = self.core.pool.slice(buffer, offset, dst.len())?;
        slice.memory.buffer().read(slice.offset, dst).map_err(|error| BackendError::Device(error.to_string()))
    }

    fn write_host(&mut self, buffer: BufferId, offset: usize, src: &[u8]) -> Result<(), BackendError> {
        self.healthy()?;
        let slice = self.core.pool.slice(buffer, offset, src.len())?;
        slice
            .memory
            .buffer()
            .write(slice.offset, src)
            .map_err(|error| BackendError::Device(error.to_string()))
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.healthy()?;
        self.submit()
    }
}
