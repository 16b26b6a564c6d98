//! Which backend runs which node: the first, in order of priority, that takes part and supports it.

use super::split::executes;
use super::{alias_of, root_of};
use crate::{Backend, BackendError, Graph, GraphError, Node, NodeId, Op, OpQuery};

/// The backend of each node, as an index into `backends`.
///
/// Inputs are filled by the host wherever they are read; the backend said here is that of their first reader. Views
/// are where the value is that they look at.
pub(crate) fn assign(graph: &Graph, backends: &[Box<dyn Backend>]) -> Result<Vec<usize>, GraphError> {
    check_participation(graph, backends)?;
    let last = backends.len() - 1;
    let mut assigned = vec![last; graph.nodes().len()];
    let state_backends = assign_states(graph, backends)?;
    let mut homeless: Vec<bool> = graph.nodes().iter().map(|n| matches!(n.op, Op::Input(_))).collect();
    for id in (0..graph.nodes().len()).map(NodeId).filter(|&id| executes(graph, id)) {
        let node = graph.node(id);
        assigned[id.0] = match node.op.state_layer() {
            Some(layer) => state_backends.get(layer).copied().flatten().unwrap_or(last),
            None => first_supporting(graph, &[id], backends)?,
        };
        check_weights(graph, node, backends[assigned[id.0]].as_ref())?;
        for &input in &node.inputs {
            let (root, _) = root_of(graph, input);
            if std::mem::take(&mut homeless[root.0]) {
                assigned[root.0] = assigned[id.0];
            }
        }
    }
    for id in (0..graph.nodes().len()).map(NodeId).filter(|&id| alias_of(graph, id).is_some()) {
        assigned[id.0] = assigned[root_of(graph, id).0.0];
    }
    Ok(assigned)
}

fn names(backends: &[Box<dyn Backend>]) -> Vec<String> {
    backends.iter().map(|backend| backend.name().to_string()).collect()
}

/// A name that no backend has is an error, and not an accelerator that is silently left out.
fn check_participation(graph: &Graph, backends: &[Box<dyn Backend>]) -> Result<(), GraphError> {
    let wanted = &graph.params().participation.accelerators;
    match wanted.iter().find(|&name| backends.iter().all(|backend| backend.name() != name)) {
        Some(name) => Err(GraphError::UnknownBackend { name: name.clone(), backends: names(backends) }),
        None => Ok(()),
    }
}

/// What the gate promised: the weights of a node are registered where it runs.
fn check_weights(graph: &Graph, node: &Node, backend: &dyn Backend) -> Result<(), GraphError> {
    let mut weights = node.op.weights().into_iter().map(|weight| &graph.weight(weight).name);
    match weights.find(|name| !backend.has_weight(name)) {
        Some(name) => Err(GraphError::Backend {
            backend: backend.name().into(),
            node: node.label.clone(),
            source: BackendError::MissingWeight { name: name.clone() },
        }),
        None => Ok(()),
    }
}

/// A layer's state is in one place, so all operations on it are too.
fn assign_states(graph: &Graph, backends: &[Box<dyn Backend>]) -> Result<Vec<Option<usize>>, GraphError> {
    let mut ops = vec![Vec::new(); graph.states().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        if let Some(ops) = node.op.state_layer().and_then(|layer| ops.get_mut(layer)) {
            ops.push(NodeId(id));
        }
    }
    ops.iter()
        .map(|ops| if ops.is_empty() { Ok(None) } else { first_supporting(graph, ops, backends).map(Some) })
        .collect()
}

/// The first backend that takes part and supports all of these nodes.
fn first_supporting(
    graph: &Graph,
    nodes: &[NodeId],
    backends: &[Box<dyn Backend>],
) -> Result<usize, GraphError> {
    let allowed = |backend: usize| {
        backend + 1 == backends.len()
            || graph.params().participation.accelerators.iter().any(|name| name == backends[backend].name())
                && nodes.iter().all(|&id| on_accelerator(graph, id))
    };
    let candidates: Vec<usize> = (0..backends.len()).filter(|&backend| allowed(backend)).collect();
    let refused = |backend: usize| {
        nodes.iter().copied().find(|&id| !supports(graph, graph.node(id), backends[backend].as_ref()))
    };
    let mut culprit = nodes[0];
    for &candidate in &candidates {
        match refused(candidate) {
            None => return Ok(candidate),
            Some(id) => culprit = id,
        }
    }
    let node = graph.node(culprit);
    Err(GraphError::Unsupported {
        node: node.label.clone(),
        op: format!("{} {} {}", node.op.name(), node.dtype, node.shape),
        backends: candidates.iter().map(|&backend| backends[backend].name().to_string()).collect(),
    })
}

/// Whether partial offload leaves this node to the accelerators: the last layers and what follows them. What comes
/// before the first layer (the embedding) only goes along when all layers do.
pub(crate) fn on_accelerator(graph: &Graph, id: NodeId) -> bool {
    let Some(layers) = graph.params().participation.layers else { return true };
    let total = graph.states().len();
    match graph.node(id).layer {
        Some(layer) => layer.saturating_add(layers) >= total,
        None => {
            let head = graph.nodes()[..id.0].iter().any(|node| node.layer.is_some());
            if head { layers > 0 } else { layers >= total }
        }
    }
}

/// Asks a backend for a node, which need not be in the graph yet.
pub(crate) fn supports(graph: &Graph, node: &Node, backend: &dyn Backend) -> bool {
    let inputs: Vec<_> = node.inputs.iter().map(|&input| graph.node(input).dtype).collect();
    let weights: Vec<_> = node.op.weights().into_iter().map(|weight| graph.weight(weight)).collect();
    backend.supports_op(&OpQuery {
        op: &node.op,
        output: node.dtype,
        shape: node.shape,
        inputs: &inputs,
        weights: &weights,
        state: node.op.state_layer().and_then(|layer| graph.state(layer)),
    })
}
