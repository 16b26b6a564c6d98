//! Runs one node on one backend.

use bytes::Bytes;
use cpu::{Activations, CpuBackend, CpuOptions, SimdLevel};
use graph::ops::{GetRows, TopK};
use graph::{
    Backend, BackendError, CacheParams, DType, Graph, GraphBuilder, GraphParams, GroupId, InputKind,
    NodeCall, NodeId, Op, OpQuery, Operand, Participation, Shape, StateId, StatePart, StateSpec, WeightData,
    WeightId, WeightInfo,
};
use metal::device::Device;
use metal::{MetalBackend, MetalOptions, Switches};
use metal_sim::device::SimDevice;
use quant::Format;
use sim_ptx::PtxDevice;
use std::sync::Mutex;
use std::time::Duration;

/// A backend under test.
pub struct Tested {
    /// Its name in messages.
    pub name: String,
    /// Whether activations are quantised where they meet quantised weights.
    pub quantised: bool,
    /// Whether products of several rows of activations are of half-precision factors, and sums depend on the batch.
    pub half: bool,
    /// The backend.
    pub backend: Box<dyn Backend>,
}

/// The CPU with these settings.
pub fn cpu(level: SimdLevel, activations: Activations, threads: usize) -> CpuBackend {
    let options = CpuOptions {
        threads: Some(threads),
        activations: Some(activations),
        level: Some(level),
        ..CpuOptions::default()
    };
    CpuBackend::new(options).unwrap()
}

/// Every backend of this machine; with `SMELT_TEST_BACKEND`, those whose names begin with its value.
pub fn backends() -> Vec<Tested> {
    let wanted = std::env::var("SMELT_TEST_BACKEND").unwrap_or_default();
    let is_wanted = |name: &str| name.starts_with(&wanted);
    let mut all = Vec::new();
    if is_wanted(CUDA) {
        match cuda::CudaBackend::new() {
            Ok(backend) => {
                let backend = Box::new(backend);
                all.push(Tested { name: CUDA.into(), quantised: false, half: true, backend });
            }
            // No machine with a GPU. What is tested without one is in the crate's own tests.
            Err(error) => eprintln!("cuda is not tested: {error}"),
        }
    }
    for level in SimdLevel::ALL.into_iter().filter(|level| level.is_available()) {
        for activations in [Activations::Quantized, Activations::F32] {
            let name = format!("cpu-{level} {activations:?}");
            if is_wanted(&name) {
                all.push(Tested {
                    name,
                    quantised: activations == Activations::Quantized,
                    half: false,
                    backend: Box::new(cpu(level, activations, 2)),
                });
            }
        }
    }
    if is_wanted(METAL) {
        let backend = Box::new(metal(Switches::default()));
        all.push(Tested { name: METAL.into(), quantised: false, half: false, backend });
    }
    // Only by its whole name: it needs a GPU.
    if ptx_wanted() {
        let backend = Box::new(metal_on_ptx(Switches::default()));
        all.push(Tested { name: METAL_PTX.into(), quantised: false, half: false, backend });
    }
    assert!(!all.is_empty(), "SMELT_TEST_BACKEND: no backend '{wanted}' on this machine");
    all
}

/// What a backend has no kernel for, and leaves to the next: names of operations, and [`SINKS`].
const MISSING: [(&str, &[&str]); 0] = [];

/// Attention with sinks.
pub const SINKS: &str = "attention sinks";

/// The backends that have an operation, or [`SINKS`]. That the others refuse it is tested in `support.rs`.
pub fn backends_with(what: &str) -> Vec<Tested> {
    backends().into_iter().filter(|tested| tested.has(what)).collect()
}

impl Tested {
    /// Whether the backend has an operation, or [`SINKS`].
    pub fn has(&self, what: &str) -> bool {
        !MISSING.iter().any(|(name, missing)| self.name == *name && missing.contains(&what))
    }

    /// Whether it is a CPU: only there are the bits the same whatever stands beside a row, and however steps are fused.
    pub fn is_cpu(&self) -> bool {
        self.name.starts_with("cpu")
    }

    /// Whether it is the Metal backend.
    pub fn is_metal(&self) -> bool {
        self.name.starts_with("metal")
    }

    /// Fails unless two ways to compute the same agree: to the bit on a CPU; elsewhere sums may be in another order.
    #[track_caller]
    pub fn agree(&self, what: &str, found: &[f32], expected: &[f32]) {
        if self.is_cpu() {
            assert!(found == expected, "{} {what}", self.name);
        } else {
            let expected: Vec<f64> = expected.iter().copied().map(f64::from).collect();
            check(&format!("{} {what}", self.name), found, &expected, 1e-11);
        }
    }
}

/// How long a submission may take: the simulator shares its processors with the other tests.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The name of the CUDA backend.
const CUDA: &str = "cuda";

/// The name of the Metal backend on the simulated device.
pub const METAL: &str = "metal-sim";

/// The name of the Metal backend on an NVIDIA GPU.
const METAL_PTX: &str = "metal-ptx";

/// The Metal backend on the simulated device.
pub fn metal(switches: Switches) -> MetalBackend<SimDevice> {
    let device =
        SimDevice::from_environment().unwrap_or_else(|error| panic!("these tests need clang: {error}"));
    metal_on(device, METAL, switches)
}

/// The Metal backend on the GPU that `SMELT_TEST_BACKEND` asks for, or else on the simulated device: for tests of kernels,
/// which every device must pass.
pub fn metal_on_any(switches: Switches) -> Box<dyn Backend> {
    match ptx_wanted() {
        true => Box::new(metal_on_ptx(switches)),
        false => Box::new(metal(switches)),
    }
}

fn ptx_wanted() -> bool {
    std::env::var("SMELT_TEST_BACKEND").is_ok_and(|wanted| wanted == METAL_PTX)
}

/// The Metal backend on an NVIDIA GPU. It needs clang, too, or libraries that were compiled elsewhere (docs/metal-sim.md).
pub fn metal_on_ptx(switches: Switches) -> MetalBackend<PtxDevice> {
    let device = PtxDevice::first().unwrap_or_else(|error| panic!("SMELT_TEST_BACKEND: {error}"));
    metal_on(device, METAL_PTX, switches)
}

/// The Metal backend on this device.
pub fn metal_on<D: Device>(device: D, name: &'static str, switches: Switches) -> MetalBackend<D> {
    // One at a time, so that the first test compiles the kernels and the others find them in the cache.
    static COMPILING: Mutex<()> = Mutex::new(());
    let _guard = COMPILING.lock();
    // So that changed kernels can be tested without a build (see docs/metal.md).
    let sources = Switches::from_environment().unwrap().sources;
    let switches = Switches { sources, ..switches };
    MetalBackend::new(device, MetalOptions { name, timeout: TIMEOUT, switches })
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Pseudo-random numbers, the same in every run (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// About normal, with variance 1.
    pub fn float(&mut self) -> f32 {
        let sum: f64 = (0..12).map(|_| (self.bits() >> 11) as f64 / (1u64 << 53) as f64).sum();
        (sum - 6.0) as f32
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Normalised mean squared error.
pub fn nmse(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let error: f64 = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    let size: f64 = expected.iter().map(|e| e * e).sum();
    if error == 0.0 { 0.0 } else { error / size }
}

/// Fails if the error is above the bound (or is no number).
#[track_caller]
pub fn check(what: &str, found: &[f32], expected: &[f64], bound: f64) {
    let error = nmse(found, expected);
    assert!(error <= bound, "{what}: normalised mean squared error {error:.3e}, bound {bound:.1e}");
}

/// Parameters of a batch: one sequence, whatever the operation needs not to know about.
pub fn params(tokens: usize) -> GraphParams {
    GraphParams {
        tokens,
        outputs: 1,
        sequences: 1,
        max_pages: 1,
        cache: CacheParams { key: DType::F32, value: DType::F32, page_len: 32, pages: vec![64] },
        participation: Participation::cpu_only(),
        head: true,
        fuse_qkv: false,
        fuse_ffn: false,
    }
}

enum Source {
    Floats(Vec<f32>),
    Ints(Vec<i32>),
}

/// One node: its inputs are entered in order, then it is run.
pub struct Case<'b> {
    backend: &'b mut dyn Backend,
    builder: GraphBuilder,
    state: Option<(usize, StateSpec, StateId)>,
    sources: Vec<(NodeId, Source)>,
    weights: Vec<WeightInfo>,
    /// Counts the nodes run, so that nothing derived from an earlier one is used again.
    epoch: u64,
    /// The input whose memory the result overwrites.
    pub alias: Option<usize>,
    /// How long the node ran.
    pub seconds: f64,
    /// Changes the operands into some that do not fit the node.
    pub bend: Option<Bend>,
    /// Whether the backend need not claim the operation.
    pub unclaimed: bool,
    /// The bytes of the result before the node runs.
    pub before: u8,
}

/// Changes operands: inputs, and the output.
pub type Bend = fn(&mut [Operand], &mut Operand);

/// Forwards, over all cases.
static EPOCH: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

impl<'b> Case<'b> {
    /// A case without state.
    pub fn new(backend: &'b mut dyn Backend, params: &GraphParams) -> Case<'b> {
        Case {
            backend,
            builder: GraphBuilder::new(params, Vec::new()),
            state: None,
            sources: Vec::new(),
            weights: Vec::new(),
            epoch: EPOCH.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            alias: None,
            seconds: 0.0,
            bend: None,
            unclaimed: false,
            // No number.
            before: 0xff,
        }
    }

    /// A case with the state of layer 0.
    pub fn with_state(backend: &'b mut dyn Backend, params: &GraphParams, spec: StateSpec) -> Case<'b> {
        let id = backend.alloc_state(&spec).unwrap();
        let mut case = Case::new(backend, params);
        case.builder = GraphBuilder::new(params, vec![spec]);
        case.builder.set_layer(Some(0));
        case.state = Some((0, spec, id));
        case
    }

    /// The state's cache rows, whole.
    pub fn state_bytes(&mut self, part: StatePart) -> Vec<u8> {
        let (_, spec, id) = self.state.unwrap();
        let (rows, cols, dtype) = spec.part(part).unwrap();
        let mut bytes = vec![0; rows * dtype.row_bytes(cols).unwrap()];
        self.backend.read_state(id, part, 0, &mut bytes).unwrap();
        bytes
    }

    /// Fills a part of the state.
    pub fn set_state(&mut self, part: StatePart, bytes: &[u8]) {
        let (_, _, id) = self.state.unwrap();
        self.backend.write_state(id, part, 0, bytes).unwrap();
    }

    /// An f32 input. In the graph it is a row of a table, in another shape; here its contents are written directly.
    pub fn floats(&mut self, shape: Shape, data: &[f32]) -> NodeId {
        assert_eq!(shape.elements(), data.len());
        let name = format!("table.{}", self.sources.len());
        let info = WeightInfo { name, format: Format::F32, rows: 1, cols: shape.elements() };
        let table = self.builder.weight(&info);
        let index = self.builder.input(InputKind::KvLens);
        let op = Op::GetRows(GetRows { table: Some(table) });
        let row = self.builder.op("row", op, &[index]).unwrap();
        let row = self.builder.op("one", Op::View(first_row(shape.elements())), &[row]).unwrap();
        let node = self.builder.reshape("input", row, shape).unwrap();
        self.sources.push((node, Source::Floats(data.to_vec())));
        node
    }

    /// An input of the batch.
    pub fn ints(&mut self, kind: InputKind, data: &[i32]) -> NodeId {
        let node = self.builder.input(kind);
        assert_eq!(self.builder.shape(node).elements(), data.len(), "{kind:?}");
        self.sources.push((node, Source::Ints(data.to_vec())));
        node
    }

    /// Registers a weight.
    pub fn weight(
        &mut self,
        name: &str,
        format: Format,
        rows: usize,
        cols: usize,
        bytes: Vec<u8>,
    ) -> WeightId {
        let data = WeightData { format, rows, cols, bytes: Bytes::from(bytes), release: None };
        self.backend.register_weight(name, data).unwrap();
        self.info(name, format, rows, cols)
    }

    /// Whether the backend has a weight of this name.
    pub fn has_weight(&self, name: &str) -> bool {
        self.backend.has_weight(name)
    }

    /// Indices of any shape, as an operation of the graph would give them.
    pub fn indices(&mut self, shape: Shape, data: &[i32]) -> NodeId {
        assert_eq!(shape.elements(), data.len());
        let row = self.floats(Shape::new(1, data.len()), &vec![0.0; data.len()]);
        self.sources.pop();
        let top = self.builder.op("top", Op::TopK(TopK { k: data.len() }), &[row]).unwrap();
        let node = self.builder.reshape("indices", top, shape).unwrap();
        self.sources.push((node, Source::Ints(data.to_vec())));
        node
    }

    /// A vector of floats.
    pub fn vector(&mut self, name: &str, data: &[f32]) -> WeightId {
        self.weight(name, Format::F32, 1, data.len(), bytemuck::cast_slice(data).to_vec())
    }

    /// A weight that is in the graph, registered or not.
    pub fn info(&mut self, name: &str, format: Format, rows: usize, cols: usize) -> WeightId {
        let info = WeightInfo { name: name.into(), format, rows, cols };
        self.weights.push(info.clone());
        self.builder.weight(&info)
    }

    /// Runs the node and reads its result.
    pub fn run(self, op: Op, inputs: &[NodeId]) -> Vec<f32> {
        self.try_run(op, inputs).unwrap()
    }

    /// Runs the node; the state, if any, can be looked at afterwards.
    pub fn run_in_place(&mut self, op: Op, inputs: &[NodeId]) -> Result<Vec<f32>, BackendError> {
        let label = op.name().to_string();
        let node = self.builder.op(&label, op, inputs).unwrap();
        let builder = std::mem::replace(&mut self.builder, GraphBuilder::new(&params(1), Vec::new()));
        let graph = builder.finish(&[node]);
        if !self.unclaimed {
            self.check_support(&graph, node);
        }

        let mut operands: Vec<_> = inputs.iter().map(|&input| self.operand(&graph, input)).collect();
        let node_ref = graph.node(node);
        let bytes = node_ref.shape.bytes(node_ref.dtype).unwrap();
        let mut output = match self.alias {
            Some(input) => operands[input],
            None => {
                let buffer = self.backend.alloc_buffer(bytes).unwrap();
                self.backend.write_host(buffer, 0, &vec![self.before; bytes]).unwrap();
                Operand { buffer, offset: 0, dtype: node_ref.dtype, shape: node_ref.shape, producer: node }
            }
        };
        output.producer = node;
        let made = output;
        if let Some(bend) = self.bend {
            bend(&mut operands, &mut output);
        }
        let call = NodeCall {
            id: node,
            node: node_ref,
            graph: &graph,
            inputs: &operands,
            output,
            state: self.state.map(|(_, _, id)| id),
            epoch: self.epoch,
        };
        // Not part of the time: a graph's nodes are prepared once.
        let prepared = self.backend.prepare_node(&graph, node);
        let start = std::time::Instant::now();
        let done = prepared
            .and_then(|()| self.backend.execute_node(&call))
            .and_then(|()| self.backend.synchronize());
        self.seconds = start.elapsed().as_secs_f64();
        let mut result = vec![0.0f32; bytes / 4];
        self.backend.read_host(made.buffer, made.offset, bytemuck::cast_slice_mut(&mut result)).unwrap();
        for operand in operands.iter().chain([&made]) {
            self.backend.free_buffer(operand.buffer);
        }
        done.map(|()| result)
    }

    /// An input's values in a buffer of their own.
    fn operand(&mut self, graph: &Graph, input: NodeId) -> Operand {
        let source = self.sources.iter().find(|(id, _)| *id == input).map(|(_, source)| source).unwrap();
        let bytes: &[u8] = match source {
            Source::Floats(data) => bytemuck::cast_slice(data),
            Source::Ints(data) => bytemuck::cast_slice(data),
        };
        // Not at the buffer's start, to see that offsets count.
        let buffer = self.backend.alloc_buffer(bytes.len() + 64).unwrap();
        self.backend.write_host(buffer, 64, bytes).unwrap();
        let from = graph.node(input);
        Operand { buffer, offset: 64, dtype: from.dtype, shape: from.shape, producer: input }
    }

    /// Adds a node whose result later nodes take, for [`Case::ready`].
    pub fn node(&mut self, op: Op, inputs: &[NodeId]) -> NodeId {
        let label = op.name().to_string();
        self.builder.op(&label, op, inputs).unwrap()
    }

    /// Nodes that were added, in order, with memory of their own: to be executed as often as one likes.
    pub fn ready(mut self, nodes: &[NodeId]) -> Ready {
        let builder = std::mem::replace(&mut self.builder, GraphBuilder::new(&params(1), Vec::new()));
        let graph = builder.finish(nodes);
        let mut results: Vec<Operand> = Vec::new();
        let mut calls = Vec::new();
        for &id in nodes {
            let node = graph.node(id);
            let known = |input| results.iter().find(|result| result.producer == input).copied();
            let inputs = node.inputs.iter();
            let inputs = inputs.map(|&input| known(input).unwrap_or_else(|| self.operand(&graph, input)));
            let inputs: Vec<Operand> = inputs.collect();
            let bytes = node.shape.bytes(node.dtype).unwrap();
            let buffer = self.backend.alloc_buffer(bytes).unwrap();
            let output = Operand { buffer, offset: 0, dtype: node.dtype, shape: node.shape, producer: id };
            results.push(output);
            calls.push((id, inputs, output));
            self.backend.prepare_node(&graph, id).unwrap();
        }
        let state = self.state.take().map(|(_, _, id)| id);
        Ready { graph, calls, state, epoch: self.epoch }
    }

    /// Runs the node.
    pub fn try_run(mut self, op: Op, inputs: &[NodeId]) -> Result<Vec<f32>, BackendError> {
        self.run_in_place(op, inputs)
    }

    fn check_support(&self, graph: &Graph, node: NodeId) {
        let node = graph.node(node);
        let inputs: Vec<DType> = node.inputs.iter().map(|id| graph.node(*id).dtype).collect();
        let weights = node.op.weights();
        let weights: Vec<&WeightInfo> = weights.iter().map(|id| graph.weight(*id)).collect();
        let query = OpQuery {
            op: &node.op,
            output: node.dtype,
            shape: node.shape,
            inputs: &inputs,
            weights: &weights,
            state: self.state.as_ref().map(|(_, spec, _)| spec),
        };
        assert!(self.backend.supports_op(&query), "{} is not supported: {query:?}", self.backend.name());
    }
}

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if let Some((_, _, id)) = self.state {
            self.backend.free_state(id);
        }
    }
}

/// Nodes with their memory: see [`Case::ready`].
pub struct Ready {
    graph: Graph,
    /// Each node with its inputs and its result.
    calls: Vec<(NodeId, Vec<Operand>, Operand)>,
    state: Option<StateId>,
    epoch: u64,
}

impl Ready {
    /// Has the backend execute the nodes; it may run them only when it synchronises.
    pub fn execute(&self, backend: &mut dyn Backend) -> Result<(), BackendError> {
        let Ready { ref graph, ref calls, state, epoch } = *self;
        calls.iter().try_for_each(|&(id, ref inputs, output)| {
            backend.execute_node(&NodeCall { id, node: graph.node(id), graph, inputs, output, state, epoch })
        })
    }

    /// Gives the memory back.
    pub fn free(self, backend: &mut dyn Backend) {
        let mut buffers: Vec<_> = self
            .calls
            .iter()
            .flat_map(|(_, inputs, output)| inputs.iter().chain([output]))
            .map(|o| o.buffer)
            .collect();
        buffers.sort_unstable();
        buffers.dedup();
        buffers.into_iter().for_each(|buffer| backend.free_buffer(buffer));
        if let Some(state) = self.state {
            backend.free_state(state);
        }
    }
}

fn first_row(cols: usize) -> graph::ops::View {
    graph::ops::View { first_row: 0, rows: 1, first_col: 0, cols }
}

/// Blocks of random bits, with scales that make elements of the size of real weights.
pub fn random_weights(format: Format, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let elements = rows * cols;
    match format {
        Format::F32 => bytemuck::cast_slice(&random.floats(elements)).to_vec(),
        Format::F16 => {
            random.floats(elements).iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()
        }
        Format::BF16 => {
            random.floats(elements).iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect()
        }
        _ => {
            let mut bytes = vec![0; rows * format.row_bytes(cols).unwrap()];
            quant::encode(format, &random.floats(elements), &mut bytes).unwrap();
            bytes
        }
    }
}

/// The elements of a weight.
pub fn decoded(format: Format, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![0.0; elements];
    quant::decode(format, bytes, &mut out).unwrap();
    out
}

/// In double precision.
pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

/// A KV state of layer 0.
pub fn kv_state(rows: usize, key_cols: usize, value_cols: usize, dtype: DType) -> StateSpec {
    StateSpec::Kv { group: GroupId(0), rows, key_cols, value_cols, key: dtype, value: dtype }
}
