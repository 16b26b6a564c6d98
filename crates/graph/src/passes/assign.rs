//! Which backend runs which node: the first, in order of priority, that takes part and supports it.

use super::{alias_of, consumers};
use crate::{Backend, Graph, GraphError, NodeId, Op, OpQuery};

/// The backend of each node, as an index into `backends`.
pub(crate) fn assign(graph: &Graph, backends: &[Box<dyn Backend>]) -> Result<Vec<usize>, GraphError> {
    let last = backends.len() - 1;
    let mut assigned = vec![last; graph.nodes().len()];
    let state_backends = assign_states(graph, backends)?;
    for (id, node) in graph.nodes().iter().enumerate() {
        assigned[id] = match &node.op {
            Op::Input(_) => continue,
            _ if alias_of(graph, NodeId(id)).is_some() => assigned[node.inputs[0].0],
            op => match op.state_layer() {
                Some(layer) => state_backends[layer].unwrap_or(last),
                None => first_supporting(graph, &[NodeId(id)], backends)?,
            },
        };
    }
    // The host fills inputs wherever they are read; their home is with their first reader.
    for (id, readers) in consumers(graph).iter().enumerate() {
        if let (Op::Input(_), Some(first)) = (&graph.nodes()[id].op, readers.first()) {
            assigned[id] = assigned[first.0];
        }
    }
    Ok(assigned)
}

/// A layer's state is in one place, so all operations on it are too.
fn assign_states(graph: &Graph, backends: &[Box<dyn Backend>]) -> Result<Vec<Option<usize>>, GraphError> {
    let mut ops = vec![Vec::new(); graph.states().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        if let Some(layer) = node.op.state_layer() {
            ops[layer].push(NodeId(id));
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
    let supports = |backend: usize| nodes.iter().all(|&id| supports(graph, id, backends[backend].as_ref()));
    candidates.iter().copied().find(|&backend| supports(backend)).ok_or_else(|| {
        let node = graph.node(nodes[0]);
        GraphError::Unsupported {
            node: node.label.clone(),
            op: format!("{} {} {}", node.op.name(), node.dtype, node.shape),
            backends: candidates.iter().map(|&backend| backends[backend].name().to_string()).collect(),
        }
    })
}

/// Whether partial offload leaves this node to the accelerators: the last layers and what follows them.
fn on_accelerator(graph: &Graph, id: NodeId) -> bool {
    let Some(layers) = graph.params().participation.layers else { return true };
    let total = graph.states().len();
    match graph.node(id).layer {
        Some(layer) => layer + layers >= total,
        None => {
            let head = graph.nodes()[..id.0].iter().any(|node| node.layer.is_some());
            if head { layers > 0 } else { layers >= total }
        }
    }
}

fn supports(graph: &Graph, id: NodeId, backend: &dyn Backend) -> bool {
    let node = graph.node(id);
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
