//! What happens to a graph between building and running, once per build: assign, fuse, split, plan.

pub(crate) mod assign;
pub(crate) mod fuse;
pub(crate) mod plan;
pub(crate) mod split;

use crate::{Graph, NodeId, Op};

/// The nodes that read each node, in order; a node that reads it twice is there twice.
pub(crate) fn consumers(graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut consumers = vec![Vec::new(); graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        for input in &node.inputs {
            consumers[input.0].push(NodeId(id));
        }
    }
    consumers
}

/// The node whose buffer a node's value lies in, and the byte offset there, if the node is a mere view: a reshape, or
/// a window of whole rows.
pub(crate) fn alias_of(graph: &Graph, id: NodeId) -> Option<(NodeId, usize)> {
    let node = graph.node(id);
    match node.op {
        Op::Reshape => Some((node.inputs[0], 0)),
        Op::View(view) => {
            let from = graph.node(node.inputs[0]);
            let whole_rows = view.first_col == 0 && view.cols == from.shape.cols;
            whole_rows.then_some(())?;
            Some((node.inputs[0], from.dtype.row_bytes(from.shape.cols)?.checked_mul(view.first_row)?))
        }
        _ => None,
    }
}

/// The node that a chain of views ends at, and the byte offset there.
pub(crate) fn root_of(graph: &Graph, mut id: NodeId) -> (NodeId, usize) {
    let mut offset = 0;
    while let Some((from, more)) = alias_of(graph, id) {
        offset += more;
        id = from;
    }
    (id, offset)
}
