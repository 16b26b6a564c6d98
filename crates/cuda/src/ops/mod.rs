//! From recorded nodes to launches: what each operation is made of, a file per family as in `graph::ops`, and what is
//! made one launch where nodes follow each other.

mod attention;
mod collective;
mod decode_attention;
mod elementwise;
mod experts;
mod flash;
mod heads;
mod hopper;
mod matmul;
mod norm;
mod rows;

use crate::CudaError;
use crate::buffers::{Buffers, States};
use crate::checks::Check;
use crate::driver::{Device, Launch, Stream, argument};
use crate::inputs::AnglesArgs;
use crate::kernels::{Kernels, Spec};
use crate::nccl::Kind;
use crate::program::Work;
use crate::scratch::{Region, Scratch};
use crate::step::{Step, invariant};
use crate::weights::Weights;
pub(crate) use attention::{WIDEST_KEY, WIDEST_VALUE};
use decode_attention::LastHeads;
use experts::Routed;
pub(crate) use experts::is_tiled;
use graph::{BackendError, DType, NodeId, Op, Operand};
use hopper::Gate;
use matmul::Norm;
pub(crate) use matmul::RowProduct;
use std::collections::HashMap;
use std::sync::Arc;

/// The launches of a run of nodes, and what must hold before they start.
#[derive(Default)]
pub(crate) struct Lowered {
    /// What comes first: the angles of rotations.
    pub(crate) angles: Vec<AnglesArgs>,
    pub(crate) launches: Vec<Work>,
    pub(crate) checks: Vec<Check>,
    /// The last launch, if it is a product of one row.
    pub(crate) row_product: Option<RowProduct>,
}

/// Makes launches of steps.
pub(crate) struct Lowering<'a> {
    pub(crate) device: &'a Arc<Device>,
    pub(crate) stream: &'a Stream,
    pub(crate) kernels: &'a mut Kernels,
    pub(crate) buffers: &'a Buffers,
    pub(crate) states: &'a States,
    pub(crate) weights: &'a mut Weights,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) out: Lowered,
    /// Norms that the products which read them do themselves.
    norms: HashMap<NodeId, Norm>,
    /// Gates that the products which read them do themselves.
    gates: HashMap<NodeId, Gate>,
    /// What the region of halves holds: the value, and of panels how many rows they have, 0 for halves in rows.
    halves: Option<(NodeId, usize)>,
    /// The order of choices of experts that its regions hold.
    routed: Option<Routed>,
    /// Where the angles of a rotation are, by its table and the positions.
    angles: HashMap<(usize, NodeId), u64>,
    label: String,
    /// Whether the next launch begins when all before it is done.
    alone: bool,
    /// Norms, rotations and a store that were launched last.
    last_heads: Option<LastHeads>,
}

/// An error of the device, as the graph knows it.
pub(crate) fn device_error(error: CudaError) -> BackendError {
    match error {
        CudaError::Partner => BackendError::Partner(error.to_string()),
        error => BackendError::Device(error.to_string()),
    }
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(
        device: &'a Arc<Device>,
        stream: &'a Stream,
        kernels: &'a mut Kernels,
        buffers: &'a Buffers,
        states: &'a States,
        weights: &'a mut Weights,
        scratch: &'a mut Scratch,
    ) -> Lowering<'a> {
        Lowering {
            device,
            stream,
            kernels,
            buffers,
            states,
            weights,
            scratch,
            out: Lowered::default(),
            norms: HashMap::new(),
            gates: HashMap::new(),
            halves: None,
            routed: None,
            angles: HashMap::new(),
            label: String::new(),
            alone: false,
            last_heads: None,
        }
    }

    /// Makes launches of all steps.
    pub(crate) fn run(mut self, steps: &[Step]) -> Result<Lowered, BackendError> {
        let mut at = 0;
        while at < steps.len() {
            self.label.clone_from(&steps[at].node.label);
            at += self.step(&steps[at..])?;
        }
        Ok(self.out)
    }

    /// Makes launches of the first step, and of those that follow if they can be one with it. Returns how many.
    fn step(&mut self, steps: &[Step]) -> Result<usize, BackendError> {
        let step = &steps[0];
        if step.output.shape.elements() == 0 && !matches!(step.node.op, Op::KvStore(_)) {
            return Ok(1);
        }
        match &step.node.op {
            Op::Input(kind) => {
                Err(invariant("operation", "one that computes", format!("input {}", kind.name())))
            }
            Op::Add => self.binary(step, elementwise::ADD).map(|()| 1),
            Op::Mul => self.binary(step, elementwise::MUL).map(|()| 1),
            Op::Scale(factor) => self.unary(step, elementwise::SCALE, *factor, 0).map(|()| 1),
            Op::Activation(kind) => {
                self.unary(step, elementwise::ACTIVATION, 0.0, elementwise::activation(*kind)).map(|()| 1)
            }
            Op::SoftCap(cap) => self.unary(step, elementwise::SOFT_CAP, *cap, 0).map(|()| 1),
            Op::Gated(kind) => {
                if let Some(gate) = self.deferred_gate(steps, *kind)? {
                    self.gates.insert(step.id, gate);
                    return Ok(1);
                }
                self.gated(step, *kind).map(|()| 1)
            }
            Op::ClampedSwiGlu(op) => self.clamped_swiglu(step, op).map(|()| 1),
            Op::TopK(op) => self.top_k(step, op.k).map(|()| 1),
            Op::GatherCols => self.gather_cols(step).map(|()| 1),
            Op::ExpertMatMul(op) => self.expert_matmul(step, op).map(|()| 1),
            Op::CombineExperts => self.combine_experts(step).map(|()| 1),
            Op::RmsNorm(op) => {
                if let Some(norm) = self.deferred_norm(steps, op)? {
                    self.norms.insert(step.id, norm);
                    return Ok(1);
                }
                self.rms_norm(step, op).map(|()| 1)
            }
            Op::Softmax(op) => self.softmax(step, op.scale).map(|()| 1),
            Op::MatMul(_) => self.products(steps),
            Op::BatchMatMul(op) => self.batch_matmul(step, op.batch).map(|()| 1),
            Op::GetRows(op) => self.get_rows(step, op.table.is_some()).map(|()| 1),
            Op::QkNorm(_) | Op::Rope(_) | Op::KvStore(_) => self.heads(steps),
            Op::KvLoad(op) => self.kv_load(step, op.part).map(|()| 1),
            Op::Attention(op) if self.is_decode_attention(step, op)? => {
                self.decode_attention(steps, op).map(|()| 1)
            }
            Op::Attention(op) => self.attention(step, op).map(|()| 1),
            Op::View(view) => self.window(step, view).map(|()| 1),
            Op::Reshape => self.copy(step).map(|()| 1),
            Op::Permute(op) => self.permute(step, op.heads).map(|()| 1),
            Op::AllReduce => self.exchange(step, Kind::Sum).map(|()| 1),
            Op::AllGather(_) => self.exchange(step, Kind::Gather).map(|()| 1),
            Op::FusedQkv(op) => self.fused_qkv(step, op).map(|()| 1),
            Op::QkvBiasRopeStore(op) => self.qkv_bias_rope_store(step, op).map(|()| 1),
            Op::FusedFfn(op) => self.fused_ffn(step, op).map(|()| 1),
        }
    }

    /// The address of a value, of this type.
    fn address(&self, what: &str, operand: &Operand, dtype: DType) -> Result<u64, BackendError> {
        if operand.dtype != dtype {
            return Err(invariant(what, dtype, operand.dtype));
        }
        if !operand.offset.is_multiple_of(4) {
            return Err(invariant(what, "an offset that is a multiple of 4", operand.offset));
        }
        self.buffers.address(operand.buffer, operand.offset, operand.bytes(), what)
    }

    /// The address of a value of floats.
    fn floats(&self, operand: &Operand) -> Result<u64, BackendError> {
        self.address("a value", operand, DType::F32)
    }

    /// The address of a value of integers.
    fn ints(&self, operand: &Operand) -> Result<u64, BackendError> {
        self.address("a value", operand, DType::I32)
    }

    /// The address of a norm or a bias.
    fn vector(&mut self, name: &str) -> Result<u64, BackendError> {
        self.weights.vector(name, self.stream)
    }

    /// An address in a scratch region of at least this many bytes.
    fn scratch(&mut self, region: Region, bytes: usize) -> Result<u64, BackendError> {
        self.scratch.get(self.device, self.stream, region, bytes)
    }

    fn check(&mut self, check: Check) {
        if !self.out.checks.contains(&check) {
            self.out.checks.push(check);
        }
    }

    /// Adds a launch.
    fn launch<T: Copy>(
        &mut self,
        spec: Spec,
        grid: [usize; 3],
        threads: u32,
        shared: usize,
        args: T,
    ) -> Result<(), BackendError> {
        let launch = self.make(spec, grid, threads, shared, args)?;
        self.out.row_product = None;
        self.out.launches.push(Work::Kernel(launch));
        Ok(())
    }

    fn make<T: Copy>(
        &mut self,
        spec: Spec,
        grid: [usize; 3],
        threads: u32,
        shared: usize,
        args: T,
    ) -> Result<Launch, BackendError> {
        let function = self.kernels.get(spec).map_err(device_error)?;
        if grid[1].max(grid[2]) > 65_535 || grid[0] > i32::MAX as usize || grid.contains(&0) {
            return Err(invariant("grid", "1 to 65535 blocks", format!("{grid:?}")));
        }
        let most = self.device.shared_memory as usize;
        if shared > most {
            return Err(invariant("shared memory", format!("at most {most} bytes"), shared));
        }
        Ok(Launch {
            function,
            grid: grid.map(|blocks| blocks as u32),
            threads,
            shared: shared as u32,
            argument: argument(args),
            alone: std::mem::take(&mut self.alone),
            orderly: false,
            label: self.label.clone(),
        })
    }

    /// The grid of a kernel that goes through elements in steps.
    fn elements_grid(&self, elements: usize) -> [usize; 3] {
        [elements.div_ceil(256).clamp(1, self.device.multiprocessors as usize * 8), 1, 1]
    }
}
