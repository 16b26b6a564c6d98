//! The recording backend.

use super::reference::{Value, apply};
use super::{Control, Event, Fault};
use crate::{
    Backend, BackendError, BufferId, DType, FusedOp, Graph, NodeCall, NodeId, Op, OpQuery, Operand, StateId,
    StatePart, StateSpec, WeightData,
};
use quant::Format;
use std::any::Any;
use std::collections::{BTreeMap, HashMap};

/// What memory holds that nobody wrote, and what is read of a result that is pending. As f32, a NaN.
const POISON: u8 = 0xff;

type Refuses = Box<dyn Fn(&OpQuery<'_>) -> bool + Send>;

/// A backend that executes when it is synchronised, not before.
///
/// - Results are computed by [`synchronize`](Backend::synchronize); a read before it gives NaNs.
/// - New and recycled buffers hold NaNs. A freed buffer is an unknown one.
/// - A result that overlaps an input is an error where [`Op::may_alias`] does not allow it.
/// - A write of the host to a buffer or state with pending work is an error.
///
/// It knows f32 weights and states, and all operations but the fused ones; of those, `Gated` if it was
/// [claimed](TestBackend::claiming).
pub struct TestBackend {
    name: String,
    control: Control,
    refuses: Vec<Refuses>,
    claims: Vec<FusedOp>,
    /// Values come from others of its kind without a wait.
    linked: bool,
    /// Every buffer ever, and whether it is in use.
    buffers: Vec<(Vec<u8>, bool)>,
    weights: BTreeMap<String, WeightData>,
    states: HashMap<StateId, TestState>,
    next_state: usize,
    pending: Vec<Pending>,
    /// Splits that it can run again, if it remembers any.
    splits: Option<HashMap<u64, Vec<Pending>>>,
}

/// The matrices of a state, by part.
pub(super) struct TestState {
    pub parts: HashMap<StatePart, Vec<u8>>,
    pub spec: StateSpec,
}

#[derive(Clone)]
struct Pending {
    op: Op,
    label: String,
    inputs: Vec<Operand>,
    output: Operand,
    state: Option<StateId>,
    weights: Vec<WeightData>,
    page_len: usize,
}

impl Pending {
    fn uses(&self, buffer: BufferId) -> bool {
        self.output.buffer == buffer || self.inputs.iter().any(|input| input.buffer == buffer)
    }
}

impl TestState {
    pub fn new(spec: &StateSpec) -> TestState {
        let parts = [StatePart::Key, StatePart::Value, StatePart::Recurrent].into_iter();
        let parts = parts.filter_map(|part| {
            let (rows, cols, dtype) = spec.part(part)?;
            Some((part, vec![0; rows * dtype.row_bytes(cols)?]))
        });
        TestState { parts: parts.collect(), spec: *spec }
    }
}

impl TestBackend {
    pub(super) fn new(name: &str, control: Control) -> TestBackend {
        TestBackend {
            name: name.into(),
            control,
            refuses: Vec::new(),
            claims: Vec::new(),
            linked: false,
            buffers: Vec::new(),
            weights: BTreeMap::new(),
            states: HashMap::new(),
            next_state: 0,
            pending: Vec::new(),
            splits: None,
        }
    }

    /// Refuses operations for which this is true, besides those that it does not know.
    pub fn refusing(mut self, refuses: impl Fn(&OpQuery<'_>) -> bool + Send + 'static) -> TestBackend {
        self.refuses.push(Box::new(refuses));
        self
    }

    /// Claims a fused operation.
    pub fn claiming(mut self, fused: FusedOp) -> TestBackend {
        self.claims.push(fused);
        self
    }

    /// Runs splits again without being given their nodes.
    pub fn remembering(mut self) -> TestBackend {
        self.splits = Some(HashMap::new());
        self
    }

    /// Takes values from other backends of its kind without the host's waiting for them.
    pub fn linked(mut self) -> TestBackend {
        self.linked = true;
        self
    }

    fn run_pending(&mut self) -> Result<(), BackendError> {
        let pending = std::mem::take(&mut self.pending);
        pending.iter().try_for_each(|node| self.execute(node))
    }

    fn alloc(&mut self, bytes: usize, fresh: bool) -> Result<BufferId, BackendError> {
        if self.control.is_faulty(&self.name, |fault| matches!(fault, Fault::Alloc(least) if bytes >= *least))
        {
            return Err(BackendError::OutOfMemory { what: "a buffer".into(), bytes });
        }
        let free = |(memory, used): &(Vec<u8>, bool)| !used && memory.len() == bytes;
        let found = if fresh { None } else { self.buffers.iter().position(free) };
        let index = found.unwrap_or_else(|| {
            self.buffers.push((vec![POISON; bytes], true));
            self.buffers.len() - 1
        });
        let (memory, used) = &mut self.buffers[index];
        memory.fill(POISON);
        *used = true;
        let buffer = BufferId(index);
        self.record(Event::Alloc { buffer, bytes, fresh, recycled: found.is_some() });
        Ok(buffer)
    }

    fn bytes(&mut self, buffer: BufferId, offset: usize, len: usize) -> Result<&mut [u8], BackendError> {
        let (memory, _) = self
            .buffers
            .get_mut(buffer.0)
            .filter(|(_, used)| *used)
            .ok_or(BackendError::UnknownHandle { kind: "buffer", id: buffer.0 })?;
        let expected = memory.len();
        let end = offset.saturating_add(len);
        memory.get_mut(offset..end).ok_or_else(|| BackendError::Length {
            what: format!("buffer {}", buffer.0),
            expected,
            found: end,
        })
    }

    fn state_rows(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        len: usize,
    ) -> Result<&mut [u8], BackendError> {
        let unknown = BackendError::UnknownHandle { kind: "state", id: state.0 };
        let state = self.states.get_mut(&state).ok_or(unknown)?;
        let row = state.spec.part(part).and_then(|(_, cols, dtype)| dtype.row_bytes(cols)).unwrap_or(0);
        let bytes = state.parts.get_mut(&part).map(Vec::as_mut_slice).unwrap_or_default();
        let (expected, start) = (bytes.len(), first_row.saturating_mul(row));
        let end = start.saturating_add(len);
        let rows = bytes.get_mut(start..end).filter(|_| row > 0 && len.is_multiple_of(row));
        rows.ok_or_else(|| BackendError::Length { what: format!("{part:?} rows"), expected, found: end })
    }

    fn record(&self, event: Event) {
        self.control.record(&self.name, event);
    }

    fn check(&self, fault: Fault) -> Result<(), BackendError> {
        if self.control.is_faulty(&self.name, |f| *f == fault) {
            return Err(BackendError::Device(format!("{fault:?} fails as told")));
        }
        Ok(())
    }

    fn nothing_pending(&self, what: &str, hit: bool) -> Result<(), BackendError> {
        if hit {
            return Err(BackendError::Device(format!("{what} is written while work on it is pending")));
        }
        Ok(())
    }

    fn value(&mut self, operand: &Operand) -> Result<Value, BackendError> {
        let bytes = self.bytes(operand.buffer, operand.offset, operand.bytes())?;
        Value::from_bytes(operand.shape, operand.dtype, bytes)
    }

    fn execute(&mut self, node: &Pending) -> Result<(), BackendError> {
        let inputs = node.inputs.iter().map(|input| self.value(input)).collect::<Result<Vec<_>, _>>()?;
        let state = node.state.and_then(|state| self.states.get_mut(&state));
        let result = apply(&node.op, &inputs, &node.weights, state, node.output.shape, node.page_len)
            .map_err(|message| BackendError::Device(format!("{}: {message}", node.label)))?;
        let bytes = result.to_bytes();
        self.bytes(node.output.buffer, node.output.offset, bytes.len())?.copy_from_slice(&bytes);
        Ok(())
    }
}

/// Whether a result may lie where it does, next to an input.
fn check_alias(call: &NodeCall<'_>) -> Result<(), BackendError> {
    let range = |operand: &Operand| operand.offset..operand.offset + operand.bytes();
    let output = range(&call.output);
    for (index, input) in call.inputs.iter().enumerate() {
        let other = range(input);
        let overlap = output.start.max(other.start) < output.end.min(other.end);
        if input.buffer == call.output.buffer
            && overlap
            && !(output == other && call.node.op.may_alias(index))
        {
            return Err(BackendError::Invariant {
                what: "place of the result".into(),
                expected: format!("apart from input {index}"),
                found: format!("{output:?} over {other:?}"),
            });
        }
    }
    Ok(())
}

impl Backend for TestBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn supports_op(&self, query: &OpQuery<'_>) -> bool {
        let known = match query.op {
            Op::Gated(activation) => self.claims.contains(&FusedOp::Gated(*activation)),
            Op::FusedQkv(_) | Op::QkvBiasRopeStore(_) | Op::FusedFfn(_) => false,
            Op::AllReduce | Op::AllGather(_) => false,
            _ => true,
        };
        let state = match query.state {
            Some(StateSpec::Kv { key, value, .. }) => (*key, *value) == (DType::F32, DType::F32),
            _ => true,
        };
        let weights = query.weights.iter().all(|weight| weight.format == Format::F32);
        known && state && weights && !self.refuses.iter().any(|refuses| refuses(query))
    }

    fn supports_fused(&self, fused: FusedOp) -> bool {
        self.claims.contains(&fused)
    }

    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.alloc(bytes, false)
    }

    fn free_buffer(&mut self, buffer: BufferId) {
        if let Some((_, used)) = self.buffers.get_mut(buffer.0) {
            *used = false;
        }
        let pending = self.pending.iter().any(|node| node.uses(buffer));
        self.record(Event::Free { buffer, pending });
    }

    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.alloc(bytes, true)
    }

    fn register_weight(&mut self, name: &str, data: WeightData) -> Result<(), BackendError> {
        self.check(Fault::Register(name.into()))?;
        self.weights.insert(name.into(), data);
        Ok(())
    }

    fn usable_memory(&self) -> Option<usize> {
        self.control.room(&self.name)
    }

    fn has_weight(&self, name: &str) -> bool {
        self.weights.contains_key(name)
    }

    fn alloc_state(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        self.check(Fault::AllocState)?;
        let id = StateId(self.next_state);
        self.next_state += 1;
        self.states.insert(id, TestState::new(spec));
        self.record(Event::AllocState(id));
        Ok(id)
    }

    fn free_state(&mut self, state: StateId) {
        self.states.remove(&state);
        self.record(Event::FreeState(state));
    }

    fn read_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        dst: &mut [u8],
    ) -> Result<(), BackendError> {
        self.check(Fault::ReadState)?;
        self.record(Event::ReadState(state, part, dst.len()));
        if self.pending.iter().any(|node| node.state == Some(state)) {
            dst.fill(POISON);
            return Ok(());
        }
        dst.copy_from_slice(self.state_rows(state, part, first_row, dst.len())?);
        Ok(())
    }

    fn write_state(
        &mut self,
        state: StateId,
        part: StatePart,
        first_row: usize,
        src: &[u8],
    ) -> Result<(), BackendError> {
        self.check(Fault::WriteState)?;
        self.record(Event::WriteState(state, part, src.len()));
        let hit = self.pending.iter().any(|node| node.state == Some(state));
        self.nothing_pending("a state", hit)?;
        self.state_rows(state, part, first_row, src.len())?.copy_from_slice(src);
        Ok(())
    }

    fn prepare_node(&mut self, graph: &Graph, node: NodeId) -> Result<(), BackendError> {
        self.record(Event::Prepare(node));
        self.check(Fault::Prepare(graph.node(node).label.clone()))
    }

    fn remember_split(&mut self, split: u64, nodes: usize) {
        let first = self.pending.len() - nodes;
        if let Some(splits) = &mut self.splits {
            splits.insert(split, self.pending[first..].to_vec());
        }
    }

    fn knows_split(&self, split: u64) -> bool {
        self.splits.as_ref().is_some_and(|splits| splits.contains_key(&split))
    }

    fn repeat_split(&mut self, split: u64) -> Result<(), BackendError> {
        let known = self.splits.as_ref().and_then(|splits| splits.get(&split));
        let id = usize::try_from(split).unwrap_or(usize::MAX);
        self.pending.extend_from_slice(known.ok_or(BackendError::UnknownHandle { kind: "split", id })?);
        Ok(())
    }

    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        self.record(Event::Execute {
            id: call.id,
            label: call.node.label.clone(),
            op: call.node.op.name(),
            inputs: call.inputs.to_vec(),
            output: call.output,
            state: call.state,
            epoch: call.epoch,
        });
        self.check(Fault::Execute(call.node.label.clone()))?;
        check_alias(call)?;
        for operand in call.inputs.iter().chain([&call.output]) {
            self.bytes(operand.buffer, operand.offset, operand.bytes())?;
        }
        if call.state.is_some_and(|state| !self.states.contains_key(&state)) {
            let id = call.state.map_or(0, |state| state.0);
            return Err(BackendError::UnknownHandle { kind: "state", id });
        }
        let weights = call.node.op.weights().into_iter().map(|weight| {
            let name = &call.graph.weight(weight).name;
            let weight = self.weights.get(name).cloned();
            weight.ok_or_else(|| BackendError::MissingWeight { name: name.clone() })
        });
        let weights = weights.collect::<Result<_, _>>()?;
        self.pending.push(Pending {
            op: call.node.op.clone(),
            label: call.node.label.clone(),
            inputs: call.inputs.to_vec(),
            output: call.output,
            state: call.state,
            weights,
            page_len: call.graph.params().cache.page_len,
        });
        Ok(())
    }

    fn read_host(&mut self, buffer: BufferId, offset: usize, dst: &mut [u8]) -> Result<(), BackendError> {
        self.check(Fault::ReadHost)?;
        let pending = self.pending.iter().any(|node| node.output.buffer == buffer);
        self.record(Event::ReadHost { buffer, offset, bytes: dst.len(), pending });
        let bytes = self.bytes(buffer, offset, dst.len())?;
        if pending {
            dst.fill(POISON)
        } else {
            dst.copy_from_slice(bytes)
        }
        Ok(())
    }

    fn write_host(&mut self, buffer: BufferId, offset: usize, src: &[u8]) -> Result<(), BackendError> {
        self.check(Fault::WriteHost)?;
        self.record(Event::WriteHost { buffer, offset, bytes: src.len() });
        let hit = self.pending.iter().any(|node| node.uses(buffer));
        self.nothing_pending("a buffer", hit)?;
        self.bytes(buffer, offset, src.len())?.copy_from_slice(src);
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.record(Event::Synchronize(self.pending.len()));
        if let Err(error) = self.check(Fault::Synchronize) {
            self.pending.clear();
            return Err(error);
        }
        self.run_pending()
    }

    fn copy_from(
        &mut self,
        from: &mut dyn Backend,
        source: &Operand,
        target: &Operand,
    ) -> Result<bool, BackendError> {
        let from = from.as_any().and_then(|from| from.downcast_mut::<TestBackend>());
        let Some(from) = from.filter(|_| self.linked) else { return Ok(false) };
        from.run_pending()?;
        let bytes = from.bytes(source.buffer, source.offset, source.bytes())?.to_vec();
        let hit = self.pending.iter().any(|node| node.uses(target.buffer));
        self.nothing_pending("a buffer", hit)?;
        self.record(Event::CopyFrom(from.name.clone(), bytes.len()));
        self.bytes(target.buffer, target.offset, bytes.len())?.copy_from_slice(&bytes);
        Ok(true)
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }
}
