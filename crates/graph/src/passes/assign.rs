//! Which backend runs which node: the first, in order of priority, that takes part and supports it.

use super::split::executes;
use super::{alias_of, root_of};
use crate::{Backend, BackendError, Graph, GraphError, Node, NodeId, Op, OpQuery, Participation};
use std::ops::Range;

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

/// A name that no backend has is an error, and not an accelerator that is silently left out. So is a split that leaves
/// layers to nobody.
fn check_participation(graph: &Graph, backends: &[Box<dyn Backend>]) -> Result<(), GraphError> {
    let Participation { accelerators, split, .. } = &graph.params().participation;
    if let Some(name) = accelerators.iter().find(|&name| backends.iter().all(|b| b.name() != name)) {
        return Err(GraphError::UnknownBackend { name: name.clone(), backends: names(backends) });
    }
    let (layers, shared) = (accelerated(graph).len(), split.iter().fold(0usize, |a, &b| a.saturating_add(b)));
    if split.is_empty() || (split.len() == accelerators.len() && shared == layers) {
        return Ok(());
    }
    let message = format!(
        "expected {layers} layers split over {} accelerators, found {shared} over {}",
        accelerators.len(),
        split.len()
    );
    Err(GraphError::Build { node: "participation".into(), message })
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
    let participation = &graph.params().participation;
    let allowed = |backend: usize| {
        // A part of a layer is of no use to who has whole weights.
        backend + 1 == backends.len() && participation.tensor_parallel.is_none()
            || nodes.iter().all(|&id| may_run(graph, id, backends[backend].name()))
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

/// The layers that are on accelerators.
fn accelerated(graph: &Graph) -> Range<usize> {
    let total = graph.states().len();
    total - graph.params().participation.layers.unwrap_or(total).min(total)..total
}

/// Whether a node may go to the accelerator of this name: one that takes part, and that partial offload and the split of
/// the layers leave the node to. What comes before the first layer (the embedding) only goes to an accelerator when all
/// layers do.
pub(crate) fn may_run(graph: &Graph, id: NodeId, accelerator: &str) -> bool {
    let Participation { accelerators, split, layers, .. } = &graph.params().participation;
    let Some(position) = accelerators.iter().position(|name| name == accelerator) else { return false };
    let range = accelerated(graph);
    // Without layers there is nothing before or behind them.
    let place = match graph.node(id).layer {
        Some(layer) if range.contains(&layer) => Place::Layer(layer - range.start),
        Some(_) => return false,
        None if graph.nodes()[..id.0].iter().any(|node| node.layer.is_some()) => Place::Behind,
        None => Place::Before,
    };
    let offloaded = match place {
        Place::Layer(_) => true,
        Place::Before => range.start == 0,
        Place::Behind => layers.is_none() || !range.is_empty(),
    };
    offloaded && (split.is_empty() || home(split, place) == Some(position))
}

/// Where a node stands among the accelerated layers.
#[derive(Clone, Copy)]
enum Place {
    Before,
    Layer(usize),
    Behind,
}

/// Whose share of a split this is.
fn home(split: &[usize], place: Place) -> Option<usize> {
    match place {
        Place::Before => split.iter().position(|&layers| layers > 0),
        Place::Behind => split.iter().rposition(|&layers| layers > 0),
        Place::Layer(layer) => {
            let mut end = 0usize;
            split.iter().position(|&layers| {
                end = end.saturating_add(layers);
                layer < end
            })
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
