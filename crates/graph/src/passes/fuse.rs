//! Replaces pairs of nodes by one, where the backend that would run both has a kernel for it.

use super::{assign::supports, consumers};
use crate::{Backend, FusedOp, Graph, Node, NodeId, Op};

/// A rule: given a node and another that it alone reads, the fused operation, and how the backend is asked for it. The
/// result reads the inner node's inputs, then the outer node's others.
type Rule = fn(outer: &Op, inner: &Op) -> Option<(Op, FusedOp)>;

const RULES: &[Rule] = &[gated];

/// `Mul(activation(x), y)`, in either order.
fn gated(outer: &Op, inner: &Op) -> Option<(Op, FusedOp)> {
    match (outer, inner) {
        (Op::Mul, Op::Activation(activation)) => Some((Op::Gated(*activation), FusedOp::Gated(*activation))),
        _ => None,
    }
}

/// Applies every rule once, in the order of the nodes. `assigned` holds the backend of each node.
///
/// A pair is fused if nothing else reads the inner node, both are on one backend, that backend claims the fused
/// operation with these types, and the fused operation infers the very result of the outer node (which, for
/// instance, rules out a broadcast that only the unfused product can do).
pub(crate) fn fuse(graph: &Graph, assigned: &[usize], backends: &[Box<dyn Backend>]) -> Graph {
    let consumers = consumers(graph);
    // For each outer node, what it becomes and the inner node that it swallows.
    let mut fused: Vec<Option<(Op, NodeId)>> = vec![None; graph.nodes().len()];
    let mut swallowed = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        let backend = backends[assigned[id]].as_ref();
        fused[id] = node.inputs.iter().find_map(|&inner| {
            let alone = consumers[inner.0].len() == 1 && !graph.outputs().contains(&inner);
            if !alone || assigned[inner.0] != assigned[id] {
                return None;
            }
            let (op, claim) = RULES.iter().find_map(|rule| rule(&node.op, &graph.node(inner).op))?;
            let inputs = fused_inputs(graph, node, inner);
            let types: Vec<_> = inputs.iter().map(|&i| (graph.node(i).shape, graph.node(i).dtype)).collect();
            let candidate = Node { op, inputs, ..node.clone() };
            let same = candidate.op.infer(graph, &types) == Ok((node.shape, node.dtype));
            (same && backend.supports_fused(claim) && supports(graph, &candidate, backend))
                .then_some((candidate.op, inner))
        });
        if let Some((_, inner)) = &fused[id] {
            swallowed[inner.0] = true;
        }
    }
    rewrite(graph, fused, &swallowed)
}

/// The inner node's inputs, then the outer node's others.
fn fused_inputs(graph: &Graph, outer: &Node, inner: NodeId) -> Vec<NodeId> {
    let others = outer.inputs.iter().filter(|&&input| input != inner);
    graph.node(inner).inputs.iter().chain(others).copied().collect()
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
            node.inputs = fused_inputs(graph, &node, inner);
            node.op = op;
        }
        node.inputs.iter_mut().for_each(|input| *input = new_id[input.0]);
        new_id[id] = NodeId(nodes.len());
        nodes.push(node);
    }
    let outputs = graph.outputs().iter().map(|output| new_id[output.0]).collect();
    graph.with_nodes(nodes, outputs)
}
