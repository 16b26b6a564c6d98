//! A backend on the simulator, and single nodes to run on it.

#![allow(dead_code, reason = "not every test uses all of it")]

use graph::ops::GetRows;
use graph::{
    Backend, BackendError, BufferId, CacheParams, DType, Graph, GraphBuilder, GraphParams, InputKind,
    NodeCall, NodeId, Op, Operand, Participation, Shape, WeightInfo,
};
use metal::{MetalBackend, MetalOptions, Switches};
use metal_sim::device::SimDevice;
use quant::Format;
use std::time::Duration;

/// The backend's name.
pub const NAME: &str = "metal-sim";

/// The backend as an empty environment makes it.
pub fn start() -> MetalBackend<SimDevice> {
    start_with(Switches::default())
}

pub fn start_with(switches: Switches) -> MetalBackend<SimDevice> {
    start_on(SimDevice::from_environment().expect("clang is installed"), switches)
}

/// The backend on a device of its own.
pub fn start_on(device: SimDevice, switches: Switches) -> MetalBackend<SimDevice> {
    let timeout = Duration::from_secs(100);
    MetalBackend::new(device, MetalOptions { name: NAME, timeout, switches }).expect("the kernels compile")
}

/// The backend with a deadline for its submissions.
pub fn start_within(timeout: Duration) -> MetalBackend<SimDevice> {
    start_with(Switches { timeout: Some(timeout), ..Switches::default() })
}

/// Of a batch of one sequence.
pub fn params(tokens: usize) -> GraphParams {
    GraphParams {
        tokens,
        outputs: tokens,
        sequences: 1,
        max_pages: 1,
        cache: CacheParams { key: DType::F32, value: DType::F32, page_len: 16, pages: vec![1] },
        participation: Participation { accelerators: vec![NAME.into()], ..Participation::default() },
        head: true,
        fuse_qkv: false,
        fuse_ffn: false,
    }
}

pub fn info(name: &str, format: Format, rows: usize, cols: usize) -> WeightInfo {
    WeightInfo { name: name.into(), format, rows, cols }
}

/// A node that multiplies a row with a factor.
pub struct Node {
    pub graph: Graph,
    pub id: NodeId,
    pub factor: f32,
    shape: Shape,
}

impl Node {
    pub fn new(cols: usize) -> Node {
        let factor = 3.0;
        let mut b = GraphBuilder::new(&params(1), vec![]);
        let table = Some(b.weight(&info("table", Format::F32, 2, cols)));
        let tokens = b.input(InputKind::Tokens);
        let x = b.op("rows", Op::GetRows(GetRows { table }), &[tokens]).unwrap();
        let id = b.op("scaled", Op::Scale(factor), &[x]).unwrap();
        Node { graph: b.finish(&[id]), id, factor, shape: Shape::new(1, cols) }
    }

    /// Bytes of the row.
    pub fn bytes(&self) -> usize {
        self.shape.cols * size_of::<f32>()
    }

    /// Writes a row of ones.
    pub fn fill(&self, backend: &mut dyn Backend, buffer: BufferId) {
        backend.write_host(buffer, 0, &1f32.to_le_bytes().repeat(self.shape.cols)).unwrap();
    }

    /// Executes the node from one buffer to another.
    pub fn execute(
        &self,
        backend: &mut dyn Backend,
        from: BufferId,
        to: BufferId,
    ) -> Result<(), BackendError> {
        self.execute_at(backend, from, 0, to)
    }

    /// Executes the node from some byte of a buffer on.
    pub fn execute_at(
        &self,
        backend: &mut dyn Backend,
        from: BufferId,
        first: usize,
        to: BufferId,
    ) -> Result<(), BackendError> {
        let operand = |buffer, offset, producer| Operand {
            buffer,
            offset,
            dtype: DType::F32,
            shape: self.shape,
            producer,
        };
        let node = self.graph.node(self.id);
        let inputs = [operand(from, first, node.inputs[0])];
        backend.execute_node(&NodeCall {
            id: self.id,
            node,
            graph: &self.graph,
            inputs: &inputs,
            output: operand(to, 0, self.id),
            state: None,
            epoch: 1,
        })
    }

    /// The row in a buffer.
    pub fn floats(&self, backend: &mut dyn Backend, buffer: BufferId) -> Vec<f32> {
        let mut bytes = vec![0; self.bytes()];
        backend.read_host(buffer, 0, &mut bytes).unwrap();
        let chunks = bytes.chunks_exact(size_of::<f32>());
        chunks.map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
    }
}
