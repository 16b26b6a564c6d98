//! The seam between the graph and the hardware: what an executor must provide.

use crate::{BackendError, DType, FusedOp, Graph, Node, NodeId, Op, Shape, StatePart, StateSpec, WeightInfo};
use bytes::Bytes;
use quant::Format;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A buffer in a backend's own pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub usize);

/// A persistent region in a backend: the state of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub usize);

/// The bytes of a weight, shared with the mapped file that they come from.
#[derive(Clone, Debug)]
pub struct WeightData {
    /// How the elements are stored.
    pub format: Format,
    /// Output features; 1 for a vector.
    pub rows: usize,
    /// Input features, contiguous in memory.
    pub cols: usize,
    /// `rows` rows of `format.row_bytes(cols)` bytes.
    pub bytes: Bytes,
    /// For a backend that keeps a copy of its own and will hardly read `bytes` again.
    pub release: Option<Release>,
}

/// Tells whoever owns a weight's bytes that they need not stay in memory. They can still be read: what was given up
/// is fetched again. Or says that nobody but the backend owns them.
#[derive(Clone)]
pub struct Release(Option<Arc<dyn Fn() + Send + Sync>>);

impl Release {
    /// What to do when the bytes are given up.
    pub fn new(release: impl Fn() + Send + Sync + 'static) -> Release {
        Release(Some(Arc::new(release)))
    }

    /// For bytes that were made for the backend, which reads them in one form alone: a backend that has its copy in that form
    /// drops them.
    pub fn of_copy() -> Release {
        Release(None)
    }

    /// Whether the bytes are the backend's to drop.
    pub fn is_of_copy(&self) -> bool {
        self.0.is_none()
    }

    /// Gives the bytes up, for now.
    pub fn release(&self) {
        if let Some(release) = &self.0 {
            release();
        }
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Release")
    }
}

/// One of the largest elements of a row. An element that is no finite number comes before all others, and among equals the
/// first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Largest {
    /// Its column.
    pub index: usize,
    /// Its value.
    pub value: f32,
}

/// What a backend is asked when the graph is built: one operation with all its types.
#[derive(Clone, Copy, Debug)]
pub struct OpQuery<'a> {
    /// The operation.
    pub op: &'a Op,
    /// Type of the result.
    pub output: DType,
    /// Shape of the result.
    pub shape: Shape,
    /// Types of the inputs, in order.
    pub inputs: &'a [DType],
    /// The weights that it reads, in the order of [`Op::weights`].
    pub weights: &'a [&'a WeightInfo],
    /// The state that it touches, if any.
    pub state: Option<&'a StateSpec>,
}

/// Where a value lies: a range of a buffer of the executing backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The buffer, in the pool of the backend that executes the node.
    pub buffer: BufferId,
    /// First byte of the value in the buffer.
    pub offset: usize,
    /// Element type.
    pub dtype: DType,
    /// Rows and columns, row-major without gaps.
    pub shape: Shape,
    /// The node whose value it is; a view's own id, not its base's. Within one forward a node's value never changes,
    /// so a backend may keep what it derived from it (quantised activations) under this key.
    pub producer: NodeId,
}

impl Operand {
    /// Bytes of the value. 0 for a value without rows or columns, whose buffer is a dummy of the smallest size.
    pub fn bytes(&self) -> usize {
        self.shape.bytes(self.dtype).unwrap_or(0)
    }
}

/// One node, ready to execute.
#[derive(Clone, Copy, Debug)]
pub struct NodeCall<'a> {
    /// The node's number in the graph.
    pub id: NodeId,
    /// The node.
    pub node: &'a Node,
    /// The graph that it belongs to, for the names and shapes of weights.
    pub graph: &'a Graph,
    /// Its inputs, in order.
    pub inputs: &'a [Operand],
    /// Where the result goes. It may share the buffer (and offset) of an input that dies here, where
    /// [`Op::may_alias`] allows it for that input.
    pub output: Operand,
    /// The state of the node's layer, for operations that touch it.
    pub state: Option<StateId>,
    /// Counts the forwards of the scheduler: what was kept under a producer's id is stale when it differs.
    pub epoch: u64,
}

/// An executor: a pool of buffers, the weights and per-layer states it holds, and the operations it can run.
///
/// The scheduler calls these from one thread at a time. Work may be asynchronous: results are only read, by the
/// host or by another backend, after [`synchronize`](Backend::synchronize).
pub trait Backend: Send {
    /// A short name, as in `--device`: `cpu`, `metal`, `cuda`.
    fn name(&self) -> &str;

    /// Whether the backend can run an operation with these types. Asked when a graph is built, and the only way to
    /// refuse: a refused node goes to the next backend and makes a split.
    fn supports_op(&self, query: &OpQuery<'_>) -> bool;

    /// Whether the backend has a kernel for a fused operation; the fusion pass only forms those.
    fn supports_fused(&self, fused: FusedOp) -> bool;

    /// Takes a buffer of at least `bytes` bytes from the pool, recycled or new. The contents are unspecified.
    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError>;

    /// Gives a buffer back to the pool, fresh ones too. Giving it back twice is no error. It is for the pool to bound
    /// what it keeps: buffers of ever new sizes come with every rebuild.
    fn free_buffer(&mut self, buffer: BufferId);

    /// Like [`alloc_buffer`](Backend::alloc_buffer), but never recycled: for staging between splits, whose writer
    /// may run while recycled buffers are still to be read. The buffer can be recycled once it was freed, which the
    /// scheduler does at a rebuild, when all work is done.
    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError>;

    /// Told of the bytes of a file, or of one of its parts, before the weights that lie in it are registered: the place
    /// to map what it will read, so that it need not be copied: `weights` are the ranges of those that it will be given. The
    /// bytes stay where they are while a clone of `part` does, and so does the rest of the host's page that they end in.
    ///
    /// # Errors
    /// Only what makes the backend unusable: a part that cannot be mapped is none.
    fn register_part(&mut self, _part: &Bytes, _weights: &[Range<usize>]) -> Result<(), BackendError> {
        Ok(())
    }

    /// Bytes of weights that lie in a registered part and were copied all the same, since they could not be mapped. They are
    /// in memory twice.
    fn unmapped_bytes(&self) -> usize {
        0
    }

    /// Makes a weight available under its name in the file. Registering a name again replaces it.
    fn register_weight(&mut self, name: &str, data: WeightData) -> Result<(), BackendError>;

    /// Whether a weight of this name is registered.
    fn has_weight(&self, name: &str) -> bool;

    /// Bytes of copies that the backend has made of weights, in an order of its own.
    fn packed_bytes(&self) -> usize {
        0
    }

    /// Bytes of a memory of its own that weights, states and activations can take; `None` if it uses the host's.
    fn usable_memory(&self) -> Option<usize> {
        None
    }

    /// Numbers that tell what the backend did since its start, by name: dispatches, barriers, bytes.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Creates a persistent region, filled with zeros.
    fn alloc_state(&mut self, spec: &StateSpec) -> Result<StateId, BackendError>;

    /// Gives a region back. Giving it back twice is no error.
    fn free_state(&mut self, state: StateId);

    /// Copies rows of a state's part to the host, after a [`synchronize`](Backend::synchronize). `dst` is a whole
    /// number of rows.
    fn read_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        dst: &mut [u8],
    ) -> Result<(), BackendError>;

    /// Copies rows from the host into a state's part.
    fn write_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        src: &[u8],
    ) -> Result<(), BackendError>;

    /// Told of every node that the backend will execute, each time a graph was built: the place for what is done once
    /// and takes long, such as bringing a weight into the order of the kernels. The same nodes come again with the
    /// next build, so what was done is not done twice. An error fails the build.
    fn prepare_node(&mut self, _graph: &Graph, _node: NodeId) -> Result<(), BackendError> {
        Ok(())
    }

    /// Runs a node, or records it for the next [`synchronize`](Backend::synchronize).
    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError>;

    /// Told that the last `nodes` nodes were a whole split: whenever the scheduler names this split again, it would give the
    /// same nodes with the same operands and states. A number stands for one split for good. A backend that keeps what it
    /// made of them can save itself the comparison.
    fn remember_split(&mut self, _split: u64, _nodes: usize) {}

    /// Whether [`repeat_split`](Backend::repeat_split) can run this split.
    fn knows_split(&self, _split: u64) -> bool {
        false
    }

    /// Does what executing all nodes of a split did that the backend [knows](Backend::knows_split).
    ///
    /// # Errors
    /// As [`execute_node`](Backend::execute_node); [`BackendError::UnknownHandle`] for a split that it does not know.
    fn repeat_split(&mut self, split: u64) -> Result<(), BackendError> {
        let id = usize::try_from(split).unwrap_or(usize::MAX);
        Err(BackendError::UnknownHandle { kind: "split", id })
    }

    /// Copies `dst.len()` bytes of a buffer to the host, from byte `offset` on.
    fn read_host(&mut self, buffer: BufferId, offset: usize, dst: &mut [u8]) -> Result<(), BackendError>;

    /// The `count` largest elements of each of several rows of floats, `[rows, columns]`, from byte `offset` of a buffer on,
    /// in order: what choosing a token needs of its logits, without the way to the host for all of them. Fewer where a row is
    /// shorter. `None` if the backend has no kernel for it or for so many, or if it gave up: it may where many elements are
    /// alike.
    ///
    /// # Errors
    /// As [`read_host`](Backend::read_host).
    fn largest(
        &mut self,
        _buffer: BufferId,
        _offset: usize,
        _shape: [usize; 2],
        _count: usize,
    ) -> Result<Option<Vec<Largest>>, BackendError> {
        Ok(None)
    }

    /// Copies `src` into a buffer, from byte `offset` on.
    fn write_host(&mut self, buffer: BufferId, offset: usize, src: &[u8]) -> Result<(), BackendError>;

    /// Brings a value from a buffer of another backend into one of its own, behind the work that makes it there and before
    /// what reads it here, without the host's waiting for either. `false`, with nothing done, where there is no such way
    /// between the two: the value then goes through the host.
    ///
    /// # Errors
    /// Of either backend.
    fn copy_from(
        &mut self,
        _from: &mut dyn Backend,
        _source: &Operand,
        _target: &Operand,
    ) -> Result<bool, BackendError> {
        Ok(false)
    }

    /// The backend itself, for others of its kind that can [copy from it](Backend::copy_from).
    fn as_any(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// Copies `rows` rows of all parts of a state from one place to another in it, behind everything that was executed.
    ///
    /// # Errors
    /// As [`read_state`](Backend::read_state).
    fn copy_state_rows(
        &mut self,
        state: StateId,
        spec: &StateSpec,
        from: usize,
        to: usize,
        rows: usize,
    ) -> Result<(), BackendError> {
        let mut bytes = Vec::new();
        for part in [StatePart::Key, StatePart::Value] {
            let Some((_, cols, dtype)) = spec.part(part) else { continue };
            bytes.resize(dtype.row_bytes(cols).unwrap_or(0).saturating_mul(rows), 0);
            self.read_state(state, part, from, &mut bytes)?;
            self.write_state(state, part, to, &bytes)?;
        }
        Ok(())
    }

    /// Waits, at most until a deadline, for everything that was executed, and reports its failures.
    fn synchronize(&mut self) -> Result<(), BackendError>;

    /// Ends a forward that failed, on whichever backend: waits for what was started, and what was only recorded need not run.
    ///
    /// # Errors
    /// As [`synchronize`](Backend::synchronize).
    fn abandon(&mut self) -> Result<(), BackendError> {
        self.synchronize()
    }
}
