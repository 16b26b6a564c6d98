//! Chains of neighbouring nodes that one kernel computes.
//!
//! The graph has a node per operation, and every node's result may be read by several others, so what the fusion pass
//! of the graph cannot make one node of can still be one dispatch: a residual sum and the norm of it, whose results are
//! both needed. When a graph is built, the backend is told of its nodes in the order in which it will execute them, and
//! plans: all nodes of a chain but the last are held, and the last one's dispatch computes them all.

use graph::{Graph, GraphParams, NodeId, Op, Operand};
use std::collections::HashMap;

/// A chain that a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chain {
    /// A sum and the norm of it.
    AddNorm,
    /// A norm that only a sum reads, the sum, and the norm of it.
    NormAddNorm,
}

/// A node that was executed and is computed with a later one.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its number in the graph.
    pub id: NodeId,
    /// Its inputs, in order.
    pub inputs: Vec<Operand>,
    /// Where its result goes.
    pub output: Operand,
}

/// The chains of the current graph.
#[derive(Debug, Default)]
pub(crate) struct Fusion {
    /// The graph that the nodes belong to.
    params: Option<GraphParams>,
    /// The nodes so far, in order of their execution.
    order: Vec<NodeId>,
    /// The last node of the chain of each held node.
    held: HashMap<NodeId, NodeId>,
}

impl Fusion {
    /// Notes that the backend will execute a node, after those that it was told of before.
    pub fn prepare(&mut self, graph: &Graph, id: NodeId, chains: &[Chain]) {
        let fresh = self.params.as_ref() != Some(graph.params());
        if fresh || self.order.last().is_some_and(|&last| last >= id) {
            *self = Fusion { params: Some(graph.params().clone()), ..Fusion::default() };
        }
        self.order.push(id);
        let longest = [(Chain::NormAddNorm, 3), (Chain::AddNorm, 2)];
        for (chain, length) in longest.into_iter().filter(|(chain, _)| chains.contains(chain)) {
            let Some(start) = self.order.len().checked_sub(length) else { continue };
            let nodes = &self.order[start..];
            if nodes.iter().all(|node| !self.held.contains_key(node)) && is_chain(graph, chain, nodes) {
                self.held.extend(nodes[..length - 1].iter().map(|&node| (node, id)));
                return;
            }
        }
    }

    /// The last node of the chain in which a node is held.
    pub fn holds(&self, id: NodeId) -> Option<NodeId> {
        self.held.get(&id).copied()
    }
}

/// Whether these nodes, executed one after the other, are such a chain.
fn is_chain(graph: &Graph, chain: Chain, nodes: &[NodeId]) -> bool {
    let neighbours = nodes.windows(2).all(|pair| {
        // What lies between is filled by the host: nothing else runs in between, on no backend.
        (pair[0].0 + 1..pair[1].0).all(|between| matches!(graph.nodes()[between].op, Op::Input(_)))
    });
    let is_norm = |id: NodeId| matches!(graph.node(id).op, Op::RmsNorm(_));
    // Of all nodes one shape: no row is added to all.
    let is_sum = |id: NodeId| {
        let node = graph.node(id);
        let whole = |&input: &NodeId| graph.node(input).shape == node.shape;
        matches!(node.op, Op::Add) && node.inputs.iter().all(whole) && node.inputs[0] != node.inputs[1]
    };
    let reads = |reader: NodeId, id: NodeId| graph.node(reader).inputs.contains(&id);
    let read_once = |id: NodeId| {
        let readers = graph.nodes().iter().filter(|node| node.inputs.contains(&id)).count();
        readers == 1 && !graph.outputs().contains(&id)
    };
    neighbours
        && match (chain, nodes) {
            (Chain::AddNorm, &[sum, norm]) => is_sum(sum) && is_norm(norm) && reads(norm, sum),
            (Chain::NormAddNorm, &[first, sum, norm]) => {
                is_norm(first)
                    && is_sum(sum)
                    && is_norm(norm)
                    && reads(sum, first)
                    && read_once(first)
                    && reads(norm, sum)
            }
            _ => false,
        }
}
