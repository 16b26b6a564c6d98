//! Cuts the nodes into splits: maximal runs of consecutive nodes on one backend.

use super::{alias_of, root_of};
use crate::{Graph, NodeId, Op};
use std::collections::HashSet;

/// A run of nodes on one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Index of the backend.
    pub backend: usize,
    /// The nodes that execute, in order; inputs and views do not.
    pub nodes: Vec<NodeId>,
    /// Values that other backends computed and that are copied here before the split runs, in order of first use. A
    /// value is copied to a backend once; later splits find it in its staging buffer, which nothing else uses.
    pub imports: Vec<NodeId>,
}

/// Whether a node is executed by a backend, and not filled by the host or a mere view.
pub(crate) fn executes(graph: &Graph, id: NodeId) -> bool {
    !matches!(graph.node(id).op, Op::Input(_)) && alias_of(graph, id).is_none()
}

pub(crate) fn split(graph: &Graph, assigned: &[usize]) -> Vec<Split> {
    let mut splits: Vec<Split> = Vec::new();
    let mut imported = HashSet::new();
    for id in (0..graph.nodes().len()).map(NodeId).filter(|&id| executes(graph, id)) {
        let backend = assigned[id.0];
        if splits.last().is_none_or(|last| last.backend != backend) {
            splits.push(Split { backend, nodes: Vec::new(), imports: Vec::new() });
        }
        let Some(split) = splits.last_mut() else { continue };
        split.nodes.push(id);
        for &input in &graph.node(id).inputs {
            let (root, _) = root_of(graph, input);
            let computed = !matches!(graph.node(root).op, Op::Input(_));
            if computed && assigned[root.0] != backend && imported.insert((root, backend)) {
                split.imports.push(root);
            }
        }
    }
    splits
}
