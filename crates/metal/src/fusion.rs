//! Chains of neighbouring nodes that one kernel computes.
//!
//! The graph has a node per operation, and every node's result may be read by several others, so what the fusion pass
//! of the graph cannot make one node of can still be one dispatch: a residual sum and the norm of it, whose results are
//! both needed. When a graph is built, the backend is told of its nodes in the order in which it will execute them, and
//! plans: all nodes of a chain but the last are held, and the last one's dispatch computes them all.

use crate::ops::{fused, topk};
use graph::ops::{ExpertMatMul, KvStore, MatMul, QkNorm, Rope, TopK};
use graph::{Graph, GraphParams, Node, NodeId, Op, Operand, StateSpec};
use std::collections::HashMap;

/// A chain that a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chain {
    /// A sum and the norm of it.
    AddNorm,
    /// A norm that only a sum reads, the sum, and the norm of it.
    NormAddNorm,
    /// Projections of one value to queries, keys and values, norms of heads and rotations of the first two, if there are
    /// any, and the store: what the graph's fused node does, for graphs without it.
    QkvStore,
    /// A router's choice and its weights: the largest of its logits, and a softmax of these or of all at their columns.
    Router,
    /// Products of one value with two matrices of each chosen expert, and the gate of them.
    ExpertGate,
}

impl Chain {
    /// Every chain with each number of nodes that it may have, longest first.
    const LENGTHS: [(Chain, usize); 7] = [
        (Chain::QkvStore, 8),
        (Chain::QkvStore, 6),
        (Chain::QkvStore, 4),
        (Chain::NormAddNorm, 3),
        (Chain::Router, 3),
        (Chain::ExpertGate, 3),
        (Chain::AddNorm, 2),
    ];
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
        for (chain, length) in Chain::LENGTHS.into_iter().filter(|(chain, _)| chains.contains(chain)) {
            let Some(start) = self.order.len().checked_sub(length) else { continue };
            let nodes = &self.order[start..];
            // A node is part of one chain, be it as its end.
            let taken = |node: &NodeId| self.held.iter().any(|(held, last)| held == node || last == node);
            if is_chain(graph, chain, nodes) && !nodes.iter().any(taken) {
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
    let read_once = |id: NodeId| is_read_once(graph, id);
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
            (Chain::QkvStore, nodes) => is_qkv_store(graph, nodes).is_some(),
            (Chain::Router, &[top, second, last]) => is_router(graph, top, second, last),
            (Chain::ExpertGate, &[gate, up, product]) => is_expert_gate(graph, gate, up, product),
            _ => false,
        }
}

fn is_read_once(graph: &Graph, id: NodeId) -> bool {
    let readers = graph.nodes().iter().filter(|node| node.inputs.contains(&id)).count();
    readers == 1 && !graph.outputs().contains(&id)
}

/// Whether these nodes, in this order, are a [`Chain::Router`] of a size that the kernel has.
fn is_router(graph: &Graph, top: NodeId, second: NodeId, last: NodeId) -> bool {
    let Op::TopK(TopK { k }) = graph.node(top).op else { return false };
    let logits = graph.node(top).inputs[0];
    let inputs = |id: NodeId| graph.node(id).inputs.as_slice();
    let joined = match (&graph.node(second).op, &graph.node(last).op) {
        (Op::GatherCols, Op::Softmax(_)) => inputs(second) == [logits, top] && inputs(last) == [second],
        (Op::Softmax(_), Op::GatherCols) => inputs(second) == [logits] && inputs(last) == [second, top],
        _ => false,
    };
    joined && is_read_once(graph, second) && topk::routes(graph.node(logits).shape.cols, k)
}

/// Whether these nodes, in this order, are a [`Chain::ExpertGate`] of matrices that the kernel reads side by side.
fn is_expert_gate(graph: &Graph, gate: NodeId, up: NodeId, product: NodeId) -> bool {
    let (a, b) = match (&graph.node(gate).op, &graph.node(up).op) {
        (Op::ExpertMatMul(a), Op::ExpertMatMul(b)) => (a, b),
        _ => return false,
    };
    let matrix = |op: &ExpertMatMul| {
        let weight = graph.weight(op.weight);
        (weight.format, weight.rows, weight.cols, op.experts, op.used, op.bias.is_some())
    };
    matches!(graph.node(product).op, Op::Gated(_) | Op::ClampedSwiGlu(_))
        && graph.node(product).inputs == [gate, up]
        && graph.node(gate).inputs == graph.node(up).inputs
        && matrix(a) == matrix(b)
        && is_read_once(graph, gate)
        && is_read_once(graph, up)
}

/// Whether these nodes, in this order, are a [`Chain::QkvStore`] that the kernel can store.
fn is_qkv_store(graph: &Graph, nodes: &[NodeId]) -> Option<()> {
    let [query, key, value, between @ .., store] = nodes else { return None };
    let product = |id: NodeId| match &graph.node(id).op {
        Op::MatMul(op) => Some((op, graph.node(id).inputs[0])),
        _ => None,
    };
    let products = [product(*query)?, product(*key)?, product(*value)?];
    let biased = products.map(|(MatMul { bias, .. }, x)| (bias.is_some(), x));
    // What the pair of queries and keys is now, and the pairs of operations on it.
    let (mut pair, mut pairs) = ([*query, *key], between.chunks_exact(2).peekable());
    let mut step = |is: fn(&Node) -> bool| {
        let &[query, key] = pairs.next_if(|ids| ids.iter().all(|&id| is(graph.node(id))))? else {
            return None;
        };
        let follows = [(query, pair[0]), (key, pair[1])]
            .into_iter()
            .all(|(id, before)| graph.node(id).inputs[0] == before && is_read_once(graph, before));
        pair = [query, key];
        Some((follows, graph.node(query), graph.node(key)))
    };
    let norms = step(|node| matches!(node.op, Op::QkNorm(_)));
    let ropes = step(|node| matches!(node.op, Op::Rope(_)));
    let norm = match norms {
        None => None,
        Some((true, Node { op: Op::QkNorm(query), .. }, Node { op: Op::QkNorm(key), .. })) => {
            let QkNorm { epsilon, head_dim, .. } = *key;
            ((query.epsilon, query.head_dim) == (epsilon, head_dim)).then_some(())?;
            Some(head_dim)
        }
        Some(_) => return None,
    };
    let rope: Option<&Rope> = match ropes {
        None => None,
        Some((true, query, key)) => match (&query.op, &key.op) {
            (Op::Rope(of_query), Op::Rope(of_key))
                if of_query == of_key && query.inputs[1] == key.inputs[1] =>
            {
                Some(of_query)
            }
            _ => return None,
        },
        Some(_) => return None,
    };
    let Op::KvStore(KvStore { layer, .. }) = graph.node(*store).op else { return None };
    let Some(&StateSpec::Kv { key: cache, .. }) = graph.state(layer) else { return None };
    let cols = [*query, *key, *value].map(|id| graph.node(id).shape.cols);
    let fits = biased[0] == biased[1]
        && biased[0] == biased[2]
        && pairs.next().is_none()
        && graph.node(*store).inputs[..2] == [pair[1], *value]
        && [pair[1], *value].into_iter().all(|id| is_read_once(graph, id))
        && fused::head_dim(rope, norm, cols, cache).is_some();
    fits.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::ops::{Activation, GetRows, RmsNorm, RopeStyle, RopeTable, Softmax, View};
    use graph::{CacheParams, DType, GraphBuilder, GroupId, InputKind, Participation, WeightInfo};
    use quant::Format;
    use std::sync::Arc;

    const ALL: &[Chain] = crate::ops::CHAINS;

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
        let cache = StateSpec::Kv {
            group: GroupId(0),
            rows: 16,
            key_cols: 8,
            value_cols: 8,
            key: DType::F32,
            value: DType::F32,
        };
        GraphBuilder::new(&params, vec![cache])
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
        assert_eq!(plan(&graph, &[], ALL), [(sum.0, normed.0)]);
        assert_eq!(plan(&graph, &[], &[]), []);
        assert_eq!(plan(&graph, &[normed], ALL), [], "the norm runs elsewhere");
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
            assert_eq!(plan(&graph, &[], ALL), expected);
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
        assert_eq!(plan(&graph, &[], ALL), []);
        assert_eq!(plan(&graph, &[between], ALL), [], "what lies between runs on another backend");
    }

    #[test]
    fn a_sum_of_a_value_with_itself_is_left_alone() {
        let mut b = builder(2);
        let [x, _] = two(&mut b);
        let doubled = add(&mut b, x, x);
        let normed = norm(&mut b, doubled);
        assert_eq!(plan(&b.finish(&[normed]), &[], ALL), []);
    }

    #[test]
    fn a_row_that_is_added_to_all_is_left_alone() {
        let mut b = builder(2);
        let [x, _] = two(&mut b);
        let first = View { first_row: 0, rows: 1, first_col: 0, cols: 8 };
        let row = b.op("row", Op::View(first), &[x]).unwrap();
        let sum = add(&mut b, x, row);
        let normed = norm(&mut b, sum);
        assert_eq!(plan(&b.finish(&[normed]), &[], ALL), []);
    }

    #[test]
    fn a_norm_joins_the_sum_that_alone_reads_it() {
        for (reads, read_again) in [(true, false), (true, true), (false, true)] {
            let mut b = builder(2);
            let [x, y] = two(&mut b);
            let first = norm(&mut b, x);
            let sum = add(&mut b, y, if reads { first } else { x });
            let second = norm(&mut b, sum);
            let outputs = match read_again {
                true => vec![second, add(&mut b, first, y)],
                false => vec![second],
            };
            let mut expected = vec![(sum.0, second.0)];
            if reads && !read_again {
                expected.insert(0, (first.0, second.0));
            }
            assert_eq!(plan(&b.finish(&outputs), &[], ALL), expected, "{reads} {read_again}");
        }
    }

    #[test]
    fn the_end_of_a_chain_begins_no_other() {
        let mut b = builder(2);
        let [x, y] = two(&mut b);
        let sum = add(&mut b, x, y);
        let normed = norm(&mut b, sum);
        let second_sum = add(&mut b, y, normed);
        let second_norm = norm(&mut b, second_sum);
        let expected = [(sum.0, normed.0), (second_sum.0, second_norm.0)];
        assert_eq!(plan(&b.finish(&[second_norm]), &[], ALL), expected);
    }

    /// What may be odd about a router's choice and its weights.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Choice {
        Plain,
        /// Elements of other logits, or a softmax of them.
        OtherLogits,
        /// The last node reads something else than the second one.
        OtherSecond,
        /// The columns are of another choice.
        OtherColumns,
        /// The second node is read by the output, too.
        SecondIsRead,
    }

    /// How many nodes of a router's choice are held.
    fn held_of_choice(choice: Choice, of_all: bool) -> usize {
        let mut b = builder(2);
        let [logits, other] = two(&mut b);
        let softmax = Op::Softmax(Softmax { scale: 1.0 });
        let top_k = Op::TopK(TopK { k: 2 });
        let other_top = b.op("top", top_k.clone(), &[other]).unwrap();
        let other_second = match of_all {
            true => b.op("second", softmax.clone(), &[other]).unwrap(),
            false => b.op("second", Op::GatherCols, &[other, other_top]).unwrap(),
        };
        let top = b.op("top", top_k, &[logits]).unwrap();
        let from = if choice == Choice::OtherLogits { other } else { logits };
        let columns = if choice == Choice::OtherColumns { other_top } else { top };
        let second = match of_all {
            true => b.op("second", softmax.clone(), &[from]).unwrap(),
            false => b.op("second", Op::GatherCols, &[from, columns]).unwrap(),
        };
        let read = if choice == Choice::OtherSecond { other_second } else { second };
        let last = match of_all {
            true => b.op("last", Op::GatherCols, &[read, columns]).unwrap(),
            false => b.op("last", softmax, &[read]).unwrap(),
        };
        let mut outputs = vec![last];
        if matches!(choice, Choice::OtherSecond | Choice::SecondIsRead) {
            outputs.push(b.op("reader", Op::Scale(2.0), &[second]).unwrap());
        }
        plan(&b.finish(&outputs), &[], ALL).len()
    }

    /// What may be odd about the two products of an expert's gate.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Gate {
        Plain,
        OtherInput,
        OtherFormat,
        FirstIsRead,
        LastIsRead,
    }

    fn held_of_gate(gate: Gate) -> usize {
        let mut b = builder(2);
        let [x, y] = two(&mut b);
        let top = b.op("top", Op::TopK(TopK { k: 1 }), &[x]).unwrap();
        let formats = [Format::F32, if gate == Gate::OtherFormat { Format::F16 } else { Format::F32 }];
        let inputs = [x, if gate == Gate::OtherInput { y } else { x }];
        let products = [0, 1].map(|i| {
            let name = format!("w{i}");
            let weight = b.weight(&WeightInfo { name, format: formats[i], rows: 8 * 4, cols: 8 });
            let op = ExpertMatMul { weight, bias: None, experts: 8, used: 1 };
            b.op("product", Op::ExpertMatMul(op), &[inputs[i], top]).unwrap()
        });
        let gated = b.op("gated", Op::Gated(Activation::Silu), &products).unwrap();
        let outputs = match gate {
            Gate::FirstIsRead => vec![gated, products[0]],
            Gate::LastIsRead => vec![gated, products[1]],
            _ => vec![gated],
        };
        plan(&b.finish(&outputs), &[], ALL).len()
    }

    #[test]
    fn a_choice_is_of_its_own_logits_and_columns_and_a_gate_of_products_of_one_kind() {
        for of_all in [false, true] {
            assert_eq!(held_of_choice(Choice::Plain, of_all), 2);
            for choice in
                [Choice::OtherLogits, Choice::OtherSecond, Choice::OtherColumns, Choice::SecondIsRead]
            {
                assert_eq!(held_of_choice(choice, of_all), 0, "{choice:?} {of_all}");
            }
        }
        assert_eq!(held_of_gate(Gate::Plain), 2);
        for gate in [Gate::OtherInput, Gate::OtherFormat, Gate::FirstIsRead, Gate::LastIsRead] {
            assert_eq!(held_of_gate(gate), 0, "{gate:?}");
        }
    }

    /// What may be odd about the projections of a layer.
    #[derive(Clone, Copy, Default, PartialEq)]
    struct Layer {
        normed: bool,
        turned: bool,
        /// The key's epsilon is another one.
        epsilons_differ: bool,
        /// The value is of another activation.
        two_sources: bool,
        /// The key is turned by other angles, or for other positions.
        other_angles: bool,
        other_positions: bool,
        /// The query is made of the key, and the key of the query.
        swapped: bool,
        /// Two nodes that have nothing to do with it lie between.
        others_between: bool,
        /// The normed key is read by the output, too.
        normed_is_read: bool,
        /// What is stored is not the value.
        other_value: bool,
        /// The value is read by the output, too.
        value_is_read: bool,
        /// Of query, key and value.
        biased: [bool; 3],
        /// The key is read by the output, too.
        key_is_read: bool,
        /// Width of a head.
        head_dim: usize,
    }

    /// The plan of a layer's projections, and what it would be if they were a chain.
    fn projections(layer: Layer) -> [Vec<(usize, usize)>; 2] {
        let mut b = builder(2);
        let [x, y] = two(&mut b);
        b.set_layer(Some(0));
        let (positions, rows) = (b.input(InputKind::Positions), b.input(InputKind::CacheRows(GroupId(0))));
        let others = b.input(InputKind::Tokens);
        let vector = |b: &mut GraphBuilder, name: &str, cols| {
            b.weight(&WeightInfo { name: name.into(), format: Format::F32, rows: 1, cols })
        };
        let mut held = Vec::new();
        let mut pair = ["q", "k", "v"].map(|name| {
            let weight = b.weight(&WeightInfo { name: name.into(), format: Format::F32, rows: 8, cols: 8 });
            let biased = layer.biased[held.len()];
            let bias = biased.then(|| vector(&mut b, "bias", 8));
            let from = if layer.two_sources && name == "v" { y } else { x };
            let product = Op::MatMul(MatMul { weight, bias, logits: false });
            held.push(b.op(name, product, &[from]).unwrap());
            *held.last().unwrap()
        });
        for i in (0..2).filter(|_| layer.normed) {
            let epsilon = if layer.epsilons_differ && i == 1 { 1e-5 } else { 1e-6 };
            let norm =
                QkNorm { weight: vector(&mut b, "norm", layer.head_dim), epsilon, head_dim: layer.head_dim };
            pair[i] = b.op("norm", Op::QkNorm(norm), &[pair[i]]).unwrap();
            held.push(pair[i]);
        }
        let normed = pair;
        for i in (0..2).filter(|_| layer.turned) {
            let odd = i == 1;
            let frequency = if odd && layer.other_angles { 0.5 } else { 1.0 };
            let table = Arc::new(RopeTable { inv_freq: vec![frequency; layer.head_dim / 2], magnitude: 1.0 });
            let rope = Rope { head_dim: layer.head_dim, style: RopeStyle::SplitHalf, table };
            let from = normed[if layer.swapped { 1 - i } else { i }];
            let at = if odd && layer.other_positions { others } else { positions };
            pair[i] = b.op("rope", Op::Rope(rope), &[from, at]).unwrap();
            held.push(pair[i]);
        }
        for _ in (0..2).filter(|_| layer.others_between) {
            b.op("other", Op::Scale(2.0), &[x]).unwrap();
        }
        let store = Op::KvStore(KvStore { layer: 0, group: GroupId(0) });
        let stored = if layer.other_value { y } else { pair[2] };
        let store = b.op("store", store, &[pair[1], stored, rows]).unwrap();
        let mut outputs = vec![pair[0]];
        if layer.other_value {
            outputs.push(b.op("reader", Op::Scale(2.0), &[pair[2]]).unwrap());
        }
        for (read, node) in
            [(layer.key_is_read, pair[1]), (layer.value_is_read, pair[2]), (layer.normed_is_read, normed[1])]
        {
            outputs.extend(read.then_some(node));
        }
        let graph = b.finish(&outputs);
        [plan(&graph, &[], ALL), held.into_iter().map(|node| (node.0, store.0)).collect()]
    }

    #[test]
    fn projections_norms_and_rotations_are_computed_with_the_store() {
        for normed in [false, true] {
            for turned in [false, true] {
                let [found, expected] =
                    projections(Layer { normed, turned, head_dim: 4, ..Layer::default() });
                assert_eq!(found, expected, "{normed} {turned}");
            }
        }
    }

    #[test]
    fn projections_that_the_kernel_cannot_finish_are_left_alone() {
        let whole = Layer { normed: true, turned: true, head_dim: 4, ..Layer::default() };
        for (what, layer) in [
            ("epsilons", Layer { epsilons_differ: true, ..whole }),
            ("sources", Layer { two_sources: true, ..whole }),
            ("bias of the query", Layer { biased: [true, false, false], ..whole }),
            ("no bias of the key", Layer { biased: [true, false, true], ..whole }),
            ("key", Layer { key_is_read: true, ..whole }),
            ("heads of two", Layer { head_dim: 2, ..whole }),
            ("angles", Layer { other_angles: true, ..whole }),
            ("positions", Layer { other_positions: true, ..whole }),
            ("what is turned", Layer { swapped: true, ..whole }),
            ("between", Layer { others_between: true, normed: false, ..whole }),
            ("normed key", Layer { normed_is_read: true, ..whole }),
            ("what is stored", Layer { other_value: true, ..whole }),
            ("value", Layer { value_is_read: true, ..whole }),
        ] {
            assert_eq!(projections(layer)[0], [], "{what}");
        }
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
        fusion.prepare(graph, *sum, ALL);
        fusion.prepare(graph, *normed, ALL);
        assert_eq!(fusion.holds(*sum), Some(*normed));
        // Of the next graph, only the norm is ours, and its number is higher than all before.
        fusion.prepare(&graphs[1].0, *normed, ALL);
        assert_eq!(fusion.holds(*sum), None);
        // The same graph once more, of which a node with the sum's number would be another one.
        fusion.prepare(graph, *sum, ALL);
        fusion.prepare(graph, *normed, ALL);
        fusion.prepare(graph, NodeId(sum.0 - 1), ALL);
        assert_eq!(fusion.holds(*sum), None);
        // The sum alone, and then the norm of another graph.
        fusion.prepare(graph, *sum, ALL);
        fusion.prepare(&graphs[1].0, *normed, ALL);
        assert_eq!(fusion.holds(*sum), None);
    }
}
