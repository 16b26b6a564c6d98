//! Replaces pairs of nodes by one, where the backend that would run both has a kernel for it.

use super::consumers;
use crate::{Backend, FusedOp, Graph, Node, NodeId, Op};

/// A rule: given a node and a node that it alone reads (as the input of this index), the fused operation, and how
/// the backend is asked for it. The result reads the inner node's inputs, then the outer node's others.
type Rule = fn(outer: &Op, inner: &Op) -> Option<(Op, FusedOp)>;

const RULES: &[Rule] = &[gated];

/// `Mul(activation(x), y)`.
fn gated(outer: &Op, inner: &Op) -> Option<(Op, FusedOp)> {
    match (outer, inner) {
        (Op::Mul, Op::Activation(activation)) => Some((Op::Gated(*activation), FusedOp::Gated(*activation))),
        _ => None,
    }
}

/// Applies every rule once, in the order of the nodes. `assigned` holds the backend of each node.
pub(crate) fn fuse(graph: &Graph, assigned: &[usize], backends: &[Box<dyn Backend>]) -> Graph {
    let consumers = consumers(graph);
    // For each outer node, what it becomes and the inner node that it swallows.
    let mut fused: Vec<Option<(Op, NodeId)>> = vec![None; graph.nodes().len()];
    let mut swallowed = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        for &inner in &node.inputs {
            let alone = consumers[inner.0].len() == 1 && !graph.outputs().contains(&inner);
            let same_shape = node.inputs.iter().all(|&input| graph.node(input).shape == node.shape);
            if !alone || !same_shape || swallowed[inner.0] || assigned[inner.0] != assigned[id] {
                continue;
            }
            let rule = RULES.iter().find_map(|rule| rule(&node.op, &graph.node(inner).op));
            if let Some((op, claim)) = rule
                && backends[assigned[id]].supports_fused(claim)
            {
                fused[id] = Some((op, inner));
                swallowed[inner.0] = true;
                break;
            }
        }
    }
    rewrite(graph, fused, &swallowed)
}

fn rewrite(graph: &Graph, fused: Vec<Option<(Op, NodeId)>>, swallowed: &[bool]) -> Graph {
    let mut new_id = vec![NodeId(0); graph.nodes().len()];
    let mut nodes: Vec<Node> = Vec::with_capacity(graph.nodes().len());
    for (id, fused) in fused.into_iter().enumerate() {
        if swallowed[id] {
            continue;
        }
        let mut node = graph.nodes()[id].clone();
        if let Some((op, inner)) = fused {
            let others = node.inputs.iter().filter(|&&input| input != inner);
            node.inputs = graph.node(inner).inputs.iter().chain(others).copied().collect();
            node.op = op;
        }
        node.inputs.iter_mut().for_each(|input| *input = new_id[input.0]);
        new_id[id] = NodeId(nodes.len());
        nodes.push(node);
    }
    let outputs = graph.outputs().iter().map(|output| new_id[output.0]).collect();
    graph.with_nodes(nodes, outputs)
}
