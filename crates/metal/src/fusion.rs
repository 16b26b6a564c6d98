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

#[cfg(test)]
mod tests {
    use super::*;
    use graph::ops::{Activation, GetRows, RmsNorm};
    use graph::{CacheParams, DType, GraphBuilder, InputKind, Participation, WeightInfo};
    use quant::Format;

    const ALL: [Chain; 2] = [Chain::AddNorm, Chain::NormAddNorm];

    fn builder(tokens: usize) -> GraphBuilder {
        let params = GraphParams {
            tokens,
            outputs: tokens,
            sequences: 1,
            max_pages: 1,
            cache: CacheParams { key: DType::F32, value: DType::F32, page_len: 16, pages: vec![1] },
            participation: Participation::cpu_only(),
            head: true,
            fuse_qkv: false,
            fuse_ffn: false,
        };
        GraphBuilder::new(&params, vec![])
    }

    /// Two activations of one shape.
    fn two(b: &mut GraphBuilder) -> [NodeId; 2] {
        let info = WeightInfo { name: "table".into(), format: Format::F32, rows: 9, cols: 8 };
        let table = Some(b.weight(&info));
        let tokens = b.input(InputKind::Tokens);
        [(); 2].map(|()| b.op("rows", Op::GetRows(GetRows { table }), &[tokens]).unwrap())
    }

    fn norm(b: &mut GraphBuilder, x: NodeId) -> NodeId {
        b.op("norm", Op::RmsNorm(RmsNorm { weight: None, epsilon: 1e-6 }), &[x]).unwrap()
    }

    fn add(b: &mut GraphBuilder, x: NodeId, y: NodeId) -> NodeId {
        b.op("sum", Op::Add, &[x, y]).unwrap()
    }

    /// Which of all nodes are held for which, if the backend executes all but inputs and those left out.
    fn plan(graph: &Graph, without: &[NodeId], chains: &[Chain]) -> Vec<(usize, usize)> {
        let mut fusion = Fusion::default();
        let nodes = || (0..graph.nodes().len()).map(NodeId);
        let executed = |id: &NodeId| !matches!(graph.node(*id).op, Op::Input(_)) && !without.contains(id);
        nodes().filter(executed).for_each(|id| fusion.prepare(graph, id, chains));
        nodes().filter_map(|id| Some((id.0, fusion.holds(id)?.0))).collect()
    }

    #[test]
    fn a_sum_is_computed_with_its_norm() {
        let mut b = builder(2);
        let [x, y] = two(&mut b);
        let sum = add(&mut b, x, y);
        // Filled by the host, so it does not come between.
        b.input(InputKind::OutRows);
        let normed = norm(&mut b, sum);
        let graph = b.finish(&[sum, normed]);
        assert_eq!(plan(&graph, &[], &ALL), [(sum.0, normed.0)]);
        assert_eq!(plan(&graph, &[], &[]), []);
        assert_eq!(plan(&graph, &[normed], &ALL), [], "the norm runs elsewhere");
    }

    #[test]
    fn a_norm_before_the_sum_joins_if_nothing_else_reads_it() {
        for read_twice in [false, true] {
            let mut b = builder(2);
            let [x, y] = two(&mut b);
            let first = norm(&mut b, x);
            let sum = add(&mut b, y, first);
            let second = norm(&mut b, sum);
            let outputs = if read_twice { vec![second, first] } else { vec![second] };
            let graph = b.finish(&outputs);
            let expected = match read_twice {
                false => vec![(first.0, second.0), (sum.0, second.0)],
                true => vec![(sum.0, second.0)],
            };
            assert_eq!(plan(&graph, &[], &ALL), expected);
        }
    }

    #[test]
    fn what_does_not_follow_at_once_or_reads_something_else_is_no_chain() {
        let mut b = builder(2);
        let [x, y] = two(&mut b);
        let sum = add(&mut b, x, y);
        let between = b.op("between", Op::Activation(Activation::Silu), &[sum]).unwrap();
        let late = norm(&mut b, sum);
        let other_sum = add(&mut b, between, late);
        let of_another = norm(&mut b, x);
        let graph = b.finish(&[other_sum, of_another]);
        assert_eq!(plan(&graph, &[], &ALL), []);
        assert_eq!(plan(&graph, &[between], &ALL), [], "what lies between runs on another backend");
    }

    #[test]
    fn a_sum_of_a_value_with_itself_is_left_alone() {
        let mut b = builder(2);
        let [x, _] = two(&mut b);
        let doubled = add(&mut b, x, x);
        let normed = norm(&mut b, doubled);
        assert_eq!(plan(&b.finish(&[normed]), &[], &ALL), []);
    }

    #[test]
    fn a_new_graph_forgets_the_old_one() {
        let graphs = [1, 3].map(|tokens| {
            let mut b = builder(tokens);
            let [x, y] = two(&mut b);
            let sum = add(&mut b, x, y);
            let normed = norm(&mut b, sum);
            (b.finish(&[normed]), sum, normed)
        });
        let mut fusion = Fusion::default();
        let (graph, sum, normed) = &graphs[0];
        fusion.prepare(graph, *sum, &ALL);
        fusion.prepare(graph, *normed, &ALL);
        assert_eq!(fusion.holds(*sum), Some(*normed));
        // Of the next graph, only the norm is ours, and its number is higher than all before.
        fusion.prepare(&graphs[1].0, *normed, &ALL);
        assert_eq!(fusion.holds(*sum), None);
    }
}
