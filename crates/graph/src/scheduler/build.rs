//! From a graph to something that runs: passes, buffers and states.

use super::{Scheduler, failure};
use crate::passes::{assign::assign, fuse::fuse, plan::plan, root_of, split::split};
use crate::{
    Backend, BufferId, Graph, GraphError, InputKind, NodeCall, NodeId, Op, Operand, StateId, StatePart,
    StateSpec,
};

/// A graph with everything that its execution needs.
pub(super) struct Built {
    pub graph: Graph,
    /// The backend of each node.
    pub assigned: Vec<usize>,
    pub inputs: Vec<InputWrite>,
    pub splits: Vec<BuiltSplit>,
    /// Backend and place of each output.
    pub outputs: Vec<(usize, Operand)>,
    /// All buffers, by backend.
    buffers: Vec<(usize, BufferId)>,
}

pub(super) struct InputWrite {
    pub kind: InputKind,
    pub backend: usize,
    pub operand: Operand,
}

pub(super) struct BuiltSplit {
    pub backend: usize,
    pub copies: Vec<Copy>,
    pub steps: Vec<Step>,
}

/// A value that is brought from another backend before a split.
pub(super) struct Copy {
    pub from_backend: usize,
    pub from: Operand,
    pub to: Operand,
}

pub(super) struct Step {
    pub id: NodeId,
    inputs: Vec<Operand>,
    output: Operand,
    state: Option<StateId>,
}

impl Step {
    pub fn call<'a>(&'a self, graph: &'a Graph, epoch: u64) -> NodeCall<'a> {
        NodeCall {
            id: self.id,
            node: graph.node(self.id),
            graph,
            inputs: &self.inputs,
            output: self.output,
            state: self.state,
            epoch,
        }
    }
}

/// Where a layer's state is.
pub(super) struct LayerState {
    pub backend: usize,
    pub id: StateId,
    pub spec: StateSpec,
}

impl Scheduler {
    /// Runs the passes and allocates.
    pub(super) fn build(&mut self, graph: Graph) -> Result<(), GraphError> {
        let assigned = assign(&graph, &self.backends)?;
        let graph = fuse(&graph, &assigned, &self.backends);
        let assigned = assign(&graph, &self.backends)?;
        let splits = split(&graph, &assigned);
        let plan = plan(&graph, &assigned, &splits);
        self.place_states(&graph, &assigned)?;

        // From here on the buffers are known to `built`, so that an error frees those that there are.
        self.built = Some(Built {
            graph,
            assigned,
            inputs: Vec::new(),
            splits: Vec::new(),
            outputs: Vec::new(),
            buffers: Vec::new(),
        });
        let Some(built) = &mut self.built else { return Err(GraphError::NotRun) };
        let mut bytes = vec![0; self.backends.len()];
        for slot in &plan.slots {
            let backend = &mut self.backends[slot.backend];
            let buffer =
                if slot.fresh { backend.alloc_fresh(slot.bytes) } else { backend.alloc_buffer(slot.bytes) };
            let buffer = match buffer {
                Ok(buffer) => buffer,
                Err(source) => {
                    let error = failure(backend.as_ref(), "buffer", source);
                    self.free_built();
                    return Err(error);
                }
            };
            built.buffers.push((slot.backend, buffer));
            bytes[slot.backend] += slot.bytes;
        }
        let operand = |built: &Built, id: NodeId, backend: usize| -> Result<Operand, GraphError> {
            let (root, offset) = root_of(&built.graph, id);
            let node = built.graph.node(id);
            let Some(&slot) = plan.places.get(&(root, backend)) else {
                return Err(GraphError::Placement {
                    node: node.label.clone(),
                    expected: self.backends[backend].name().into(),
                    found: self.backends[built.assigned[root.0]].name().into(),
                });
            };
            let buffer = built.buffers[slot].1;
            Ok(Operand { buffer, offset, dtype: node.dtype, shape: node.shape, producer: root })
        };
        let mut places: Vec<_> = plan.places.keys().copied().collect();
        places.sort_unstable();
        let mut inputs = Vec::new();
        for (id, backend) in places {
            if let Op::Input(kind) = built.graph.node(id).op {
                inputs.push(InputWrite { kind, backend, operand: operand(built, id, backend)? });
            }
        }
        let mut built_splits = Vec::with_capacity(splits.len());
        for split in splits {
            let mut copies = Vec::with_capacity(split.imports.len());
            for import in split.imports {
                let from_backend = built.assigned[import.0];
                let from = operand(built, import, from_backend)?;
                copies.push(Copy { from_backend, from, to: operand(built, import, split.backend)? });
            }
            let mut steps = Vec::with_capacity(split.nodes.len());
            for id in split.nodes {
                let node = built.graph.node(id);
                let inputs = node.inputs.iter().map(|&input| operand(built, input, split.backend));
                steps.push(Step {
                    id,
                    inputs: inputs.collect::<Result<_, _>>()?,
                    output: operand(built, id, split.backend)?,
                    state: node.op.state_layer().and_then(|layer| self.states[layer].as_ref()).map(|s| s.id),
                });
            }
            built_splits.push(BuiltSplit { backend: split.backend, copies, steps });
        }
        let mut outputs = Vec::new();
        for &output in built.graph.outputs() {
            let backend = built.assigned[output.0];
            outputs.push((backend, operand(built, output, backend)?));
        }
        (built.inputs, built.splits, built.outputs) = (inputs, built_splits, outputs);
        self.stats.builds += 1;
        self.stats.splits = built.splits.len();
        for (peak, bytes) in self.stats.peak_bytes.iter_mut().zip(bytes) {
            *peak = (*peak).max(bytes);
        }
        Ok(())
    }

    /// Gives the current build's buffers back.
    pub(super) fn free_built(&mut self) {
        if let Some(built) = self.built.take() {
            for (backend, buffer) in built.buffers {
                self.backends[backend].free_buffer(buffer);
            }
        }
    }

    /// Makes every layer's state be on the backend of its operations, with the shape that the graph says. What it
    /// holds is kept: rows are moved between backends, and carried over where their width and type stay.
    fn place_states(&mut self, graph: &Graph, assigned: &[usize]) -> Result<(), GraphError> {
        let mut homes = vec![None; graph.states().len()];
        for (node, &backend) in graph.nodes().iter().zip(assigned) {
            if let Some(layer) = node.op.state_layer() {
                homes[layer] = Some(backend);
            }
        }
        self.states.resize_with(self.states.len().max(homes.len()), || None);
        for (layer, (home, spec)) in homes.into_iter().zip(graph.states()).enumerate() {
            let Some(home) = home else { continue };
            if self.states[layer].as_ref().is_some_and(|old| old.backend == home && old.spec == *spec) {
                continue;
            }
            let backend = &mut self.backends[home];
            let label = format!("state of layer {layer}");
            let id = backend.alloc_state(spec).map_err(|source| failure(backend.as_ref(), &label, source))?;
            let new = LayerState { backend: home, id, spec: *spec };
            if let Some(old) = self.states[layer].take() {
                let moved = carry_over(&mut self.backends, &old, &new, &label);
                self.backends[old.backend].free_state(old.id);
                self.states[layer] = Some(new);
                moved?;
            } else {
                self.states[layer] = Some(new);
            }
        }
        Ok(())
    }
}

/// Copies the rows that both states have, where columns and types are equal.
fn carry_over(
    backends: &mut [Box<dyn Backend>],
    old: &LayerState,
    new: &LayerState,
    label: &str,
) -> Result<(), GraphError> {
    const CHUNK: usize = 1 << 20;
    for part in [StatePart::Key, StatePart::Value, StatePart::Recurrent] {
        let (Some((old_rows, cols, dtype)), Some((new_rows, new_cols, new_dtype))) =
            (old.spec.part(part), new.spec.part(part))
        else {
            continue;
        };
        let Some(row) = dtype.row_bytes(cols).filter(|&row| row > 0) else { continue };
        if (cols, dtype) != (new_cols, new_dtype) {
            continue;
        }
        let rows = old_rows.min(new_rows);
        let step = (CHUNK / row).max(1);
        let mut bytes = vec![0; step.min(rows) * row];
        for first in (0..rows).step_by(step) {
            let chunk = &mut bytes[..step.min(rows - first) * row];
            let from = &mut backends[old.backend];
            let read = from.read_state(old.id, part, first, chunk);
            read.map_err(|source| failure(from.as_ref(), label, source))?;
            let to = &mut backends[new.backend];
            let written = to.write_state(new.id, part, first, chunk);
            written.map_err(|source| failure(to.as_ref(), label, source))?;
        }
    }
    Ok(())
}
