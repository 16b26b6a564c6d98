//! The backend: options, the table of what it can run, and dispatch.

use crate::buffers::{BufferPool, States};
use crate::cache::is_cache_type;
use crate::error::CpuError;
use crate::exec::{Exec, Temporaries, Workers, invariant};
use crate::pack_cache::PackCache;
use crate::pool::Pool;
use crate::quantize::QuantCache;
use crate::rope::RopeCache;
use crate::simd::{Kernels, SimdLevel};
use crate::weights::Weights;
use crate::{attention, cache, elementwise, experts, fused, matmul, norm, rope, rows, shape, topk};
use graph::ops::Activation;
use graph::{
    Backend, BackendError, BufferId, DType, FusedOp, Graph, NodeCall, NodeId, Op, OpQuery, StateId,
    StatePart, StateSpec, WeightData,
};
use quant::Format;
use std::sync::Arc;

/// What activations are when they meet quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Activations {
    /// 8-bit integers with a scale for every 32.
    #[default]
    Quantized,
    /// f32; weights are decoded. Slower, and exact but for rounding: for judging the effect of the other.
    F32,
}

/// How to start the backend. What is not given is taken from the environment, or else chosen by the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads; by default [`crate::default_threads`].
    pub threads: Option<usize>,
    /// Form of the activations; by default `SMELT_CPU_ACTIVATIONS` (`quantized` or `f32`), else quantised.
    pub activations: Option<Activations>,
    /// Instructions to use; by default `SMELT_CPU` (a [`SimdLevel::name`]), else the best that there are.
    pub level: Option<SimdLevel>,
    /// Whether weights are brought into the order of the kernels when a graph is built, which costs time and memory
    /// once, or in passing, at every product; by default `SMELT_CPU_REPACK` (`1` or `0`), else the former.
    pub repack: Option<bool>,
}

/// Runs every operation on the processor. Each node has run when
/// [`execute_node`](graph::Backend::execute_node) returns.
pub struct CpuBackend {
    kernels: &'static Kernels,
    activations: Activations,
    repack: bool,
    pack_cache: Option<Arc<PackCache>>,
    pool: Pool,
    workers: Workers,
    buffers: BufferPool,
    states: States,
    weights: Weights,
    quant: QuantCache,
    rope: RopeCache,
    temporaries: Temporaries,
}

impl CpuBackend {
    /// Starts the backend and its threads.
    ///
    /// # Errors
    /// [`CpuError`]: an environment variable means nothing, the processor lacks the level, or no threads.
    pub fn new(options: CpuOptions) -> Result<CpuBackend, CpuError> {
        let level = match options.level {
            Some(level) => level,
            None => SimdLevel::by_default()?,
        };
        let activations = match options.activations {
            Some(activations) => activations,
            None => activations_from(std::env::var("SMELT_CPU_ACTIVATIONS").ok())?.unwrap_or_default(),
        };
        let repack = match options.repack {
            Some(repack) => repack,
            None => repack_from(std::env::var("SMELT_CPU_REPACK").ok())?.unwrap_or(true),
        };
        let kernels = Kernels::of(level).ok_or_else(|| unavailable(level))?;
        let pool = Pool::new(options.threads)?;
        Ok(CpuBackend {
            kernels,
            activations,
            repack,
            pack_cache: None,
            workers: Workers::new(pool.threads()),
            pool,
            buffers: BufferPool::new(),
            states: States::new(),
            weights: Weights::default(),
            quant: QuantCache::new(),
            rope: RopeCache::new(),
            temporaries: Temporaries::default(),
        })
    }

    /// Threads that take part in an operation.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instructions in use.
    pub fn level(&self) -> SimdLevel {
        self.kernels.level
    }

    /// The form of the activations.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// Whether weights are packed when a graph is built: not where products are not made from integers, or where the
    /// kernels read weights as they lie in the file.
    pub fn repacks(&self) -> bool {
        self.repack && self.kernels.packs && self.activations == Activations::Quantized
    }

    /// Takes packed weights from a cache from now on, and tells it of those that it lacks. The cache's identity must be
    /// that of the model whose weights are registered.
    pub fn set_pack_cache(&mut self, cache: Arc<PackCache>) {
        self.pack_cache = Some(cache);
    }

    /// Forgets what was derived from buffers.
    fn forget(&mut self) {
        self.quant.clear();
        self.rope.clear();
    }

    fn dispatch(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        let mut exec = Exec {
            call,
            kernels: self.kernels,
            activations: self.activations,
            pool: &mut self.pool,
            workers: &self.workers,
            quant: &mut self.quant,
            rope: &mut self.rope,
            temporaries: &mut self.temporaries,
            buffers: &self.buffers,
            states: &self.states,
            weights: &self.weights,
        };
        let exec = &mut exec;
        match &call.node.op {
            Op::Input(kind) => {
                Err(invariant("operation", "one that computes", format!("input {}", kind.name())))
            }
            Op::AllReduce | Op::AllGather(_) => {
                Err(invariant("operation", "one that the backend claims", call.node.op.name()))
            }
            Op::Add => elementwise::binary(exec, false),
            Op::Mul => elementwise::binary(exec, true),
            Op::Scale(factor) => elementwise::with_factor(exec, exec.kernels.scale, *factor),
            Op::Activation(kind) => elementwise::activation(exec, *kind),
            Op::SoftCap(cap) => elementwise::soft_cap(exec, *cap),
            Op::Gated(kind) => elementwise::gated(exec, *kind),
            Op::ClampedSwiGlu(op) => elementwise::clamped_swiglu(exec, op),
            Op::RmsNorm(op) => norm::rms_norm(exec, op),
            Op::QkNorm(op) => norm::qk_norm(exec, op),
            Op::Softmax(op) => norm::softmax(exec, op),
            Op::MatMul(op) => matmul::matmul(exec, op),
            Op::BatchMatMul(op) => matmul::batch_matmul(exec, op),
            Op::GetRows(op) => rows::get_rows(exec, op),
            Op::TopK(op) => topk::top_k(exec, op),
            Op::GatherCols => topk::gather_cols(exec),
            Op::ExpertMatMul(op) => experts::expert_matmul(exec, op),
            Op::CombineExperts => experts::combine(exec),
            Op::Rope(op) => rope::rope(exec, op),
            Op::KvStore(op) => cache::kv_store(exec, op),
            Op::KvLoad(op) => cache::kv_load(exec, op),
            Op::Attention(op) => attention::attention(exec, op),
            Op::View(op) => shape::view(exec, op),
            Op::Reshape => shape::reshape(exec),
            Op::Permute(op) => shape::permute(exec, op),
            Op::FusedQkv(op) => fused::qkv(exec, op),
            Op::QkvBiasRopeStore(op) => fused::qkv_bias_rope_store(exec, op),
            Op::FusedFfn(op) => fused::ffn(exec, op),
        }
    }
}

impl SimdLevel {
    /// The level of a backend that is not told which: `SMELT_CPU`, or the best that there is.
    ///
    /// # Errors
    /// [`CpuError::Environment`], and [`CpuError::Unavailable`] if this processor lacks what the variable asks for.
    pub fn by_default() -> Result<SimdLevel, CpuError> {
        let level = level_from(std::env::var("SMELT_CPU").ok())?.unwrap_or_else(SimdLevel::detect);
        if level.is_available() { Ok(level) } else { Err(unavailable(level)) }
    }
}

fn unavailable(level: SimdLevel) -> CpuError {
    CpuError::Unavailable { level, best: SimdLevel::detect() }
}

/// The level that `SMELT_CPU` asks for.
fn level_from(value: Option<String>) -> Result<Option<SimdLevel>, CpuError> {
    let parse = |found: String| {
        let unknown = |()| CpuError::Environment {
            variable: "SMELT_CPU",
            expected: SimdLevel::NAMES,
            found: found.clone(),
        };
        found.parse().map_err(unknown)
    };
    value.map(parse).transpose()
}

/// The form that `SMELT_CPU_ACTIVATIONS` asks for.
fn activations_from(value: Option<String>) -> Result<Option<Activations>, CpuError> {
    let parse = |found: String| match found.as_str() {
        "quantized" => Ok(Activations::Quantized),
        "f32" => Ok(Activations::F32),
        _ => Err(CpuError::Environment {
            variable: "SMELT_CPU_ACTIVATIONS",
            expected: "quantized or f32",
            found,
        }),
    };
    value.map(parse).transpose()
}

/// Whether `SMELT_CPU_REPACK` asks for packed weights.
fn repack_from(value: Option<String>) -> Result<Option<bool>, CpuError> {
    let parse = |found: String| match found.as_str() {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(CpuError::Environment { variable: "SMELT_CPU_REPACK", expected: "0 or 1", found }),
    };
    value.map(parse).transpose()
}

/// Weights that products can be made with: all but the activation format.
fn is_matrix(format: Format) -> bool {
    format != Format::Q8_K
}

/// Weights that are decoded when they are registered.
fn is_vector(format: Format) -> bool {
    matches!(format, Format::F32 | Format::F16 | Format::BF16)
}

/// Whether keys and values have types that the cache kernels know, in heads of whole blocks.
fn is_cache(spec: Option<&StateSpec>, head_dims: Option<[usize; 2]>) -> bool {
    let Some(spec) = spec else { return false };
    let parts = [StatePart::Key, StatePart::Value].map(|part| spec.part(part));
    parts.into_iter().enumerate().all(|(i, part)| {
        part.is_some_and(|(_, cols, dtype)| {
            let width = head_dims.map_or(cols, |dims| dims[i]);
            is_cache_type(dtype) && dtype.row_bytes(width).is_some()
        })
    })
}

/// The capability table. Types of activations and results are checked for all operations alike: f32, with i32 for
/// what comes from the host; shape operations move any elements that are no blocks.
fn supports(query: &OpQuery<'_>) -> bool {
    let weights_are = |is: fn(Format) -> bool| query.weights.iter().all(|weight| is(weight.format));
    // The first `n` weights are matrices, the others vectors.
    let matrices = |n: usize| {
        let (matrices, vectors) = query.weights.split_at(n.min(query.weights.len()));
        matrices.iter().all(|w| is_matrix(w.format)) && vectors.iter().all(|w| is_vector(w.format))
    };
    let inputs_are_plain = query.inputs.iter().all(|dtype| matches!(dtype, DType::F32 | DType::I32));
    let activations = query.output == DType::F32 && inputs_are_plain;
    match query.op {
        Op::Input(_) => query.output == DType::I32,
        Op::View(_) | Op::Reshape => !matches!(query.output, DType::Packed(_)),
        Op::Add | Op::Mul | Op::Scale(_) | Op::Activation(_) | Op::SoftCap(_) | Op::Gated(_) => activations,
        Op::ClampedSwiGlu(_) | Op::GatherCols | Op::CombineExperts => activations,
        Op::TopK(_) => query.output == DType::I32 && inputs_are_plain,
        Op::Softmax(_) | Op::BatchMatMul(_) | Op::Permute(_) | Op::Rope(_) => activations,
        Op::RmsNorm(_) | Op::QkNorm(_) => activations && weights_are(is_vector),
        Op::MatMul(_) | Op::ExpertMatMul(_) => activations && matrices(1),
        Op::GetRows(_) => activations,
        Op::KvStore(_) | Op::KvLoad(_) => activations && is_cache(query.state, None),
        Op::Attention(op) => {
            activations && weights_are(is_vector) && is_cache(query.state, Some([op.head_dim, op.value_dim]))
        }
        Op::FusedQkv(_) => activations && matrices(3) && is_cache(query.state, None),
        Op::QkvBiasRopeStore(_) => activations && weights_are(is_vector) && is_cache(query.state, None),
        Op::FusedFfn(_) => activations && matrices(2),
        // There is one CPU: who lets several devices share a model brings their results together.
        Op::AllReduce | Op::AllGather(_) => false,
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        "cpu"
    }

    fn supports_op(&self, query: &OpQuery<'_>) -> bool {
        supports(query)
    }

    fn supports_fused(&self, fused: FusedOp) -> bool {
        match fused {
            FusedOp::Gated(Activation::Silu | Activation::Gelu | Activation::Sigmoid) => true,
        }
    }

    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.buffers.alloc(bytes)
    }

    fn free_buffer(&mut self, buffer: BufferId) {
        self.forget();
        self.buffers.free(buffer);
    }

    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.buffers.alloc_fresh(bytes)
    }

    fn register_weight(&mut self, name: &str, data: WeightData) -> Result<(), BackendError> {
        self.weights.register(self.kernels, name, data)
    }

    fn has_weight(&self, name: &str) -> bool {
        self.weights.contains(name)
    }

    fn alloc_state(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        self.states.alloc(spec)
    }

    fn free_state(&mut self, state: StateId) {
        self.states.free(state);
    }

    fn read_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        dst: &mut [u8],
    ) -> Result<(), BackendError> {
        self.states.read(state, part, first_row, dst)
    }

    fn write_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        src: &[u8],
    ) -> Result<(), BackendError> {
        self.states.write(state, part, first_row, src)
    }

    fn packed_bytes(&self) -> usize {
        self.weights.packed_bytes()
    }

    fn prepare_node(&mut self, graph: &Graph, node: NodeId) -> Result<(), BackendError> {
        if !self.repacks() {
            return Ok(());
        }
        let matrices = match &graph.node(node).op {
            Op::MatMul(op) => std::slice::from_ref(&op.weight),
            Op::FusedQkv(op) => &op.weights,
            Op::FusedFfn(op) => &op.weights,
            Op::ExpertMatMul(op) if experts::packs(graph.weight(op.weight).rows, op.experts) => {
                std::slice::from_ref(&op.weight)
            }
            _ => return Ok(()),
        };
        for &matrix in matrices {
            let name = &graph.weight(matrix).name;
            self.weights.pack(self.kernels, name, &mut self.pool, self.pack_cache.as_deref())?;
        }
        Ok(())
    }

    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        let done = self.dispatch(call);
        if done.is_err() {
            // What a failed operation left half done must not be found later.
            self.forget();
        }
        done
    }

    fn read_host(&mut self, buffer: BufferId, offset: usize, dst: &mut [u8]) -> Result<(), BackendError> {
        self.buffers.read(buffer, offset, dst)
    }

    fn write_host(&mut self, buffer: BufferId, offset: usize, src: &[u8]) -> Result<(), BackendError> {
        self.forget();
        self.buffers.write(buffer, offset, src)
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_values_are_checked() {
        assert_eq!(level_from(None), Ok(None));
        for level in SimdLevel::ALL {
            assert_eq!(level_from(Some(level.name().into())), Ok(Some(level)));
        }
        assert!(
            matches!(level_from(Some("mmx".into())), Err(CpuError::Environment { found, .. }) if found == "mmx")
        );
        assert_eq!(activations_from(Some("f32".into())), Ok(Some(Activations::F32)));
        assert_eq!(activations_from(Some("quantized".into())), Ok(Some(Activations::Quantized)));
        assert!(matches!(activations_from(Some(String::new())), Err(CpuError::Environment { .. })));
        assert_eq!(repack_from(None), Ok(None));
        assert_eq!(repack_from(Some("1".into())), Ok(Some(true)));
        assert_eq!(repack_from(Some("0".into())), Ok(Some(false)));
        for other in ["", "2", "yes", "01"] {
            let error = repack_from(Some(other.into())).unwrap_err().to_string();
            assert_eq!(error, format!("SMELT_CPU_REPACK: expected 0 or 1, found '{other}'"));
        }
    }

    #[test]
    fn a_level_that_the_processor_lacks_is_refused() {
        for level in SimdLevel::ALL {
            let options = CpuOptions { threads: Some(1), level: Some(level), ..CpuOptions::default() };
            match CpuBackend::new(options) {
                Ok(backend) => assert_eq!((backend.level(), backend.threads()), (level, 1)),
                Err(error) => {
                    assert!(!level.is_available());
                    assert_eq!(error, CpuError::Unavailable { level, best: SimdLevel::detect() });
                }
            }
        }
        let options = CpuOptions { threads: Some(0), ..CpuOptions::default() };
        assert!(matches!(CpuBackend::new(options), Err(CpuError::Pool(_))));
    }
}
