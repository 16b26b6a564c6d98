//! From a graph to something that runs: passes, states and buffers.

use super::{Scheduler, failure};
use crate::passes::{assign::assign, fuse::fuse, plan::Plan, plan::plan, root_of, split::split};
use crate::{BufferId, DType, Graph, GraphError, InputKind, NodeCall, NodeId, Op, Operand, StateId};

/// A graph with everything that its execution needs.
pub(super) struct Built {
    pub graph: Graph,
    /// The backend of each node.
    pub assigned: Vec<usize>,
    pub inputs: Vec<InputWrite>,
    pub splits: Vec<BuiltSplit>,
    /// Backend and place of each output.
    pub outputs: Vec<(usize, Operand)>,
    /// All buffers, by slot of the plan: the backend and the id there.
    buffers: Vec<(usize, BufferId)>,
}

/// An input on one of the backends that read it.
pub(super) struct InputWrite {
    pub kind: InputKind,
    pub backend: usize,
    pub operand: Operand,
}

pub(super) struct BuiltSplit {
    /// What no other split of this scheduler has, of any build.
    pub number: u64,
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

/// A node with its places.
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

impl Scheduler {
    /// Runs the passes, allocates, and lets the backends prepare their nodes. On an error no graph is current.
    pub(super) fn build(
        &mut self,
        graph: Graph,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), GraphError> {
        check_outputs(&graph)?;
        let assigned = assign(&graph, &self.backends)?;
        let graph = fuse(&graph, &assigned, &self.backends);
        let assigned = assign(&graph, &self.backends)?;
        let splits = split(&graph, &assigned);
        let plan = plan(&graph, &assigned, &splits)?;
        self.place_states(&graph, &assigned)?;

        let mut built = Built {
            graph,
            assigned,
            inputs: Vec::new(),
            splits: Vec::new(),
            outputs: Vec::new(),
            buffers: Vec::with_capacity(plan.slots.len()),
        };
        let placed = self.allocate(&plan, &mut built).and_then(|()| {
            let names: Vec<&str> = self.backends.iter().map(|backend| backend.name()).collect();
            let places = Places { plan: &plan, built: &built, names: &names };
            let inputs = places.inputs()?;
            let outputs = places.outputs()?;
            let state = |layer: usize| self.states.get(layer)?.as_ref().map(|state| state.id);
            let mut built_splits = Vec::with_capacity(splits.len());
            let numbers = self.splits_built..;
            for (number, split) in numbers.zip(&splits) {
                let copies = split.imports.iter().map(|&import| places.copy(import, split.backend));
                let steps = split.nodes.iter().map(|&id| {
                    let layer = built.graph.node(id).op.state_layer();
                    places.step(id, split.backend, layer.and_then(state))
                });
                built_splits.push(BuiltSplit {
                    number,
                    backend: split.backend,
                    copies: copies.collect::<Result<_, _>>()?,
                    steps: steps.collect::<Result<_, _>>()?,
                });
            }
            Ok((inputs, built_splits, outputs))
        });
        let placed = placed.and_then(|(inputs, splits, outputs)| {
            self.prepare_nodes(&built.graph, &splits, progress)?;
            Ok((inputs, splits, outputs))
        });
        match placed {
            Ok((inputs, splits, outputs)) => {
                self.stats.builds += 1;
                self.splits_built += splits.len() as u64;
                self.stats.splits = splits.len();
                for (backend, peak) in self.stats.peak_bytes.iter_mut().enumerate() {
                    let slots = plan.slots.iter().filter(|slot| slot.backend == backend);
                    *peak = (*peak).max(slots.map(|slot| slot.bytes).sum());
                }
                self.built = Some(Built { inputs, splits, outputs, ..built });
                Ok(())
            }
            Err(error) => {
                self.free_buffers(built);
                Err(error)
            }
        }
    }

    /// Tells the backends of the nodes that they will execute.
    fn prepare_nodes(
        &mut self,
        graph: &Graph,
        splits: &[BuiltSplit],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), GraphError> {
        let total = splits.iter().map(|split| split.steps.len()).sum();
        let steps = splits.iter().flat_map(|split| split.steps.iter().map(|step| (split.backend, step.id)));
        for (done, (backend, id)) in steps.enumerate() {
            progress(done, total);
            let backend = &mut self.backends[backend];
            backend
                .prepare_node(graph, id)
                .map_err(|source| failure(backend.as_ref(), &graph.node(id).label, source))?;
        }
        progress(total, total);
        Ok(())
    }

    /// A buffer for each slot of the plan. After an error, `built` has those that there are.
    fn allocate(&mut self, plan: &Plan, built: &mut Built) -> Result<(), GraphError> {
        for slot in &plan.slots {
            let backend = &mut self.backends[slot.backend];
            let buffer =
                if slot.fresh { backend.alloc_fresh(slot.bytes) } else { backend.alloc_buffer(slot.bytes) };
            let buffer = buffer.map_err(|source| failure(backend.as_ref(), "buffers", source))?;
            built.buffers.push((slot.backend, buffer));
        }
        Ok(())
    }

    /// Gives the current build's buffers back.
    pub(super) fn free_built(&mut self) {
        if let Some(built) = self.built.take() {
            self.free_buffers(built);
        }
    }

    fn free_buffers(&mut self, built: Built) {
        for (backend, buffer) in built.buffers {
            self.backends[backend].free_buffer(buffer);
        }
    }
}

/// Outputs are computed f32 values: what the host brought it has no need to read back.
fn check_outputs(graph: &Graph) -> Result<(), GraphError> {
    for (index, &output) in graph.outputs().iter().enumerate() {
        let error = |node: String, found: String| {
            let message = format!("output {index}: expected a computed f32 value, found {found}");
            Err(GraphError::Build { node, message })
        };
        let Some(node) = graph.nodes().get(output.0) else {
            return error("outputs".into(), format!("{} of {} nodes", output.0, graph.nodes().len()));
        };
        let root = graph.node(root_of(graph, output).0);
        if node.dtype != DType::F32 || matches!(root.op, Op::Input(_)) {
            return error(node.label.clone(), format!("{} {}", node.op.name(), node.dtype));
        }
    }
    Ok(())
}

/// Turns the plan's slots into operands.
struct Places<'a> {
    plan: &'a Plan,
    built: &'a Built,
    names: &'a [&'a str],
}

impl Places<'_> {
    /// Where a value lies on a backend. That it lies there at all, in a buffer of that very backend, is checked here,
    /// once per build: what runs is what was checked.
    fn operand(&self, id: NodeId, backend: usize) -> Result<Operand, GraphError> {
        let graph = &self.built.graph;
        let node = graph.node(id);
        let (root, offset) = root_of(graph, id);
        let placement = |found: usize| GraphError::Placement {
            node: node.label.clone(),
            expected: self.names[backend].into(),
            found: self.names[found].into(),
        };
        let slot = self.plan.places.get(&(root, backend));
        let &slot = slot.ok_or_else(|| placement(self.built.assigned[root.0]))?;
        let (found, buffer) = self.built.buffers[slot];
        if found != backend {
            return Err(placement(found));
        }
        Ok(Operand { buffer, offset, dtype: node.dtype, shape: node.shape, producer: id })
    }

    /// Every input on every backend that reads it.
    fn inputs(&self) -> Result<Vec<InputWrite>, GraphError> {
        let mut places: Vec<_> = self.plan.places.keys().copied().collect();
        places.sort_unstable();
        let inputs = places.into_iter().filter_map(|(id, backend)| match self.built.graph.node(id).op {
            Op::Input(kind) => {
                Some(self.operand(id, backend).map(|operand| InputWrite { kind, backend, operand }))
            }
            _ => None,
        });
        inputs.collect()
    }

    fn outputs(&self) -> Result<Vec<(usize, Operand)>, GraphError> {
        let outputs = self.built.graph.outputs().iter().map(|&output| {
            let backend = self.built.assigned[output.0];
            Ok((backend, self.operand(output, backend)?))
        });
        outputs.collect()
    }

    fn copy(&self, import: NodeId, backend: usize) -> Result<Copy, GraphError> {
        let from_backend = self.built.assigned[import.0];
        let from = self.operand(import, from_backend)?;
        Ok(Copy { from_backend, from, to: self.operand(import, backend)? })
    }

    fn step(&self, id: NodeId, backend: usize, state: Option<StateId>) -> Result<Step, GraphError> {
        let inputs = self.built.graph.node(id).inputs.iter().map(|&input| self.operand(input, backend));
        Ok(Step { id, inputs: inputs.collect::<Result<_, _>>()?, output: self.operand(id, backend)?, state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheParams, GraphBuilder, GraphParams, Participation};

    fn built(buffers: Vec<(usize, BufferId)>) -> Built {
        let cache = CacheParams { key: DType::F32, value: DType::F32, page_len: 1, pages: Vec::new() };
        let participation = Participation::cpu_only();
        let params = GraphParams {
            tokens: 1,
            outputs: 1,
            sequences: 1,
            max_pages: 1,
            cache,
            participation,
            head: true,
            fuse_qkv: false,
            fuse_ffn: false,
        };
        let mut builder = GraphBuilder::new(&params, Vec::new());
        builder.input(InputKind::Tokens);
        let graph = builder.finish(&[]);
        let (inputs, splits, outputs) = (Vec::new(), Vec::new(), Vec::new());
        Built { graph, assigned: vec![0], inputs, splits, outputs, buffers }
    }

    fn placement(plan: &Plan, built: &Built) -> GraphError {
        let places = Places { plan, built, names: &["metal", "cpu"] };
        places.operand(NodeId(0), 1).unwrap_err()
    }

    #[test]
    fn a_value_without_a_place_on_the_backend_is_an_error() {
        let expected =
            GraphError::Placement { node: "tokens".into(), expected: "cpu".into(), found: "metal".into() };
        assert_eq!(placement(&Plan::default(), &built(Vec::new())), expected);
        assert_eq!(expected.to_string(), "node 'tokens' runs on cpu, but its buffer is on metal");
    }

    #[test]
    fn a_buffer_of_another_backend_is_an_error() {
        let mut plan = Plan::default();
        plan.places.insert((NodeId(0), 1), 0);
        let error = placement(&plan, &built(vec![(0, BufferId(7))]));
        assert!(matches!(error, GraphError::Placement { found, .. } if found == "metal"));
    }
}
