//! What every operation demands of its inputs, and the shape of its result.

use crate::common::{attention, kv, params, weight};
use graph::ops::*;
use graph::{
    DType, Graph, GraphBuilder, GraphError, GroupId, InputKind, NodeId, Op, Shape, StatePart, StateSpec,
    WeightId,
};
use std::sync::Arc;

/// A builder with a KV cache of 8 columns in layer 0, a recurrent state in layer 1, and values to build on.
struct Bench {
    b: GraphBuilder,
    /// f32 `[3, 8]`.
    x: NodeId,
    /// f32 `[3, 6]`.
    narrow: NodeId,
    /// f32 `[1, 8]`.
    row: NodeId,
    /// i32 `[3, 1]`.
    ints: NodeId,
    /// i32 `[2, 1]`.
    ranges: NodeId,
    /// i32 `[1, 1]`.
    lens: NodeId,
    /// i32 `[1, 4]`.
    pages: NodeId,
}

fn bench() -> Bench {
    let params = params(3);
    let states = vec![kv(&params, 8), StateSpec::Recurrent { slots: 1, elements: 8 }];
    let mut b = GraphBuilder::new(&params, states);
    let x = crate::common::embed(&mut b, 8);
    let view = |rows, cols| Op::View(View { first_row: 0, rows, first_col: 0, cols });
    let narrow = b.op("narrow", view(3, 6), &[x]).unwrap();
    let row = b.op("row", view(1, 8), &[x]).unwrap();
    let [ints, ranges, lens, pages] =
        [InputKind::Positions, InputKind::QueryRanges, InputKind::KvLens, InputKind::PageTable(GroupId(0))]
            .map(|kind| b.input(kind));
    Bench { b, x, narrow, row, ints, ranges, lens, pages }
}

impl Bench {
    fn weight(&mut self, rows: usize, cols: usize) -> WeightId {
        self.b.weight(&weight(&format!("w{rows}x{cols}"), rows, cols))
    }

    #[track_caller]
    fn accepts(&mut self, op: Op, inputs: &[NodeId], rows: usize, cols: usize) {
        let id = self.b.op("node", op, inputs).unwrap();
        assert_eq!(self.b.shape(id), Shape::new(rows, cols));
    }

    #[track_caller]
    fn refuses(&mut self, op: Op, inputs: &[NodeId], message: &str) {
        match self.b.op("node", op, inputs) {
            Err(GraphError::Build { node, message: found }) => {
                assert_eq!((node.as_str(), found.as_str()), ("node", message));
            }
            other => panic!("expected '{message}', found {other:?}"),
        }
    }
}

#[test]
fn every_operation_counts_its_inputs() {
    let mut t = bench();
    let (x, w) = (t.x, t.weight(8, 8));
    let table = Arc::new(RopeTable { inv_freq: vec![1.0], magnitude: 1.0 });
    let store = KvStore { layer: 0, group: GroupId(0) };
    let fused = FusedQkv { weights: [w; 3], biases: None, norms: None, rope: None, store };
    let unfused = QkvBiasRopeStore { query_cols: 8, biases: None, rope: None, store };
    let ffn = FusedFfn { weights: [w; 2], activation: Activation::Silu };
    let counts = [
        (1, Op::Scale(1.0)),
        (1, Op::Activation(Activation::Gelu)),
        (1, Op::SoftCap(1.0)),
        (1, Op::RmsNorm(RmsNorm { weight: None, epsilon: 0.0 })),
        (1, Op::QkNorm(QkNorm { weight: w, epsilon: 0.0, head_dim: 8 })),
        (1, Op::Softmax(Softmax { scale: 1.0 })),
        (1, Op::MatMul(MatMul { weight: w, bias: None, logits: false })),
        (1, Op::GetRows(GetRows { table: Some(w) })),
        (1, Op::View(View { first_row: 0, rows: 1, first_col: 0, cols: 1 })),
        (1, Op::Permute(Permute { heads: 1 })),
        (1, Op::AllReduce),
        (1, Op::AllGather(AllGather { devices: 1 })),
        (1, Op::FusedFfn(ffn)),
        (2, Op::Add),
        (2, Op::Mul),
        (2, Op::Gated(Activation::Silu)),
        (1, Op::TopK(TopK { k: 1 })),
        (2, Op::ClampedSwiGlu(ClampedSwiGlu { alpha: 1.0, limit: 1.0 })),
        (2, Op::GatherCols),
        (2, Op::ExpertMatMul(ExpertMatMul { weight: w, bias: None, experts: 1, used: 1 })),
        (2, Op::CombineExperts),
        (2, Op::BatchMatMul(BatchMatMul { batch: 1 })),
        (2, Op::GetRows(GetRows { table: None })),
        (2, Op::Rope(Rope { head_dim: 8, style: RopeStyle::SplitHalf, table })),
        (2, Op::KvLoad(KvLoad { layer: 0, part: StatePart::Key })),
        (3, Op::KvStore(store)),
        (3, Op::FusedQkv(fused)),
        (3, Op::QkvBiasRopeStore(unfused)),
        (6, Op::Attention(attention())),
    ];
    for (count, op) in counts {
        for wrong in [count - 1, count + 1] {
            t.refuses(op.clone(), &vec![x; wrong], &format!("expected {count} inputs, found {wrong}"));
        }
    }
    t.refuses(Op::Reshape, &[x], "the builder gives the shape of a reshape");
}

#[test]
fn ids_of_other_graphs_are_refused() {
    let mut t = bench();
    let mut other = bench();
    let foreign = other.weight(8, 8);
    t.refuses(Op::Scale(1.0), &[NodeId(99)], "input 99: expected one of 8 nodes");
    let op = Op::MatMul(MatMul { weight: foreign, bias: None, logits: false });
    let x = t.x;
    t.refuses(op, &[x], "weight 1: expected one of 1");
    let error = t.b.reshape("flat", NodeId(99), Shape::new(1, 1)).unwrap_err();
    let message = "input 99: expected one of 8 nodes".into();
    assert_eq!(error, GraphError::Build { node: "flat".into(), message });
}

#[test]
fn elementwise() {
    let mut t = bench();
    let (x, row, narrow, ints) = (t.x, t.row, t.narrow, t.ints);
    t.accepts(Op::Add, &[x, x], 3, 8);
    t.accepts(Op::Mul, &[x, row], 3, 8);
    t.accepts(Op::Gated(Activation::Silu), &[x, x], 3, 8);
    t.accepts(Op::SoftCap(30.0), &[narrow], 3, 6);
    let clamped = |alpha, limit| Op::ClampedSwiGlu(ClampedSwiGlu { alpha, limit });
    t.accepts(clamped(1.702, 7.0), &[x, x], 3, 8);
    let text = "input 1: expected the shape of input 0 ([3, 8]), found [1, 8]";
    t.refuses(clamped(1.702, 7.0), &[x, row], text);
    for (alpha, limit) in [(f32::NAN, 7.0), (1.0, 0.0), (1.0, f32::INFINITY)] {
        let text = format!("expected a finite alpha and a positive limit, found {alpha} and {limit}");
        t.refuses(clamped(alpha, limit), &[x, x], &text);
    }
    t.refuses(Op::Add, &[x, narrow], "input 1: expected the shape of input 0 ([3, 8]), found [3, 6]");
    t.refuses(Op::Add, &[row, x], "input 1: expected the shape of input 0 ([1, 8]), found [3, 8]");
    let text = "input 1: expected the shape of input 0 ([3, 8]), found [1, 8]";
    t.refuses(Op::Gated(Activation::Silu), &[x, row], text);
    t.refuses(Op::Mul, &[x, ints], "input 1: expected f32, found i32");
    t.refuses(Op::Scale(2.0), &[ints], "input 0: expected f32, found i32");
}

#[test]
fn norms_and_softmax() {
    let mut t = bench();
    let (x, narrow, ints) = (t.x, t.narrow, t.ints);
    let (w4, w8) = (t.weight(1, 4), t.weight(1, 8));
    let norm = |weight| Op::RmsNorm(RmsNorm { weight, epsilon: 1e-6 });
    t.accepts(norm(None), &[x], 3, 8);
    t.accepts(norm(Some(w8)), &[x], 3, 8);
    t.refuses(norm(Some(w4)), &[x], "elements of the weight: expected 8, found 4");
    let heads = |weight, head_dim| Op::QkNorm(QkNorm { weight, epsilon: 1e-6, head_dim });
    t.accepts(heads(w4, 4), &[x], 3, 8);
    t.refuses(heads(w8, 4), &[x], "elements of the weight: expected 4, found 8");
    t.refuses(heads(w4, 4), &[narrow], "columns: expected a multiple of the head dim 4, found 6");
    let none = t.weight(0, 4);
    t.refuses(heads(none, 0), &[x], "columns: expected a multiple of the head dim 0, found 8");
    t.refuses(Op::Softmax(Softmax { scale: 1.0 }), &[ints], "input 0: expected f32, found i32");
}

#[test]
fn products() {
    let mut t = bench();
    let (x, narrow) = (t.x, t.narrow);
    let (weight, short, bias) = (t.weight(5, 8), t.weight(1, 4), t.weight(1, 5));
    t.accepts(Op::MatMul(MatMul { weight, bias: Some(bias), logits: false }), &[x], 3, 5);
    let op = Op::MatMul(MatMul { weight, bias: None, logits: false });
    t.refuses(op, &[narrow], "columns of 'w5x8': expected 6, found 8");
    let op = Op::MatMul(MatMul { weight, bias: Some(short), logits: false });
    t.refuses(op, &[x], "elements of 'w1x4': expected 5, found 4");
    t.accepts(Op::BatchMatMul(BatchMatMul { batch: 3 }), &[x, x], 3, 1);
    let op = |batch| Op::BatchMatMul(BatchMatMul { batch });
    t.refuses(op(1), &[x, narrow], "columns of input 1: expected 8, found 6");
    t.refuses(op(2), &[x, x], "rows: expected multiples of the batch 2, found 3 and 3");
    t.refuses(op(0), &[x, x], "rows: expected multiples of the batch 0, found 3 and 3");
    let mut ffn = |gate: (usize, usize), up: (usize, usize)| {
        let weights = [t.weight(gate.0, gate.1), t.weight(up.0, up.1)];
        let op = Op::FusedFfn(FusedFfn { weights, activation: Activation::Silu });
        t.b.op("ffn", op, &[x]).map(|id| t.b.shape(id)).map_err(|error| error.to_string())
    };
    assert_eq!(ffn((5, 8), (5, 8)), Ok(Shape::new(3, 5)));
    let error = |message: &str| Err(format!("graph node 'ffn': {message}"));
    assert_eq!(ffn((5, 7), (5, 8)), error("columns of 'w5x7': expected 8, found 7"));
    assert_eq!(ffn((5, 8), (5, 7)), error("columns of 'w5x7': expected 8, found 7"));
    assert_eq!(ffn((5, 8), (6, 8)), error("rows of 'w6x8': expected 5, found 6"));
}

#[test]
fn experts() {
    let mut t = bench();
    let (x, narrow, row, ints, pages) = (t.x, t.narrow, t.row, t.ints, t.pages);
    t.accepts(Op::TopK(TopK { k: 8 }), &[x], 3, 8);
    let top = t.b.op("top", Op::TopK(TopK { k: 2 }), &[x]).unwrap();
    t.refuses(Op::TopK(TopK { k: 0 }), &[x], "k: expected 1 to 8 columns, found 0");
    t.refuses(Op::TopK(TopK { k: 7 }), &[narrow], "k: expected 1 to 6 columns, found 7");
    t.refuses(Op::TopK(TopK { k: 1 }), &[ints], "input 0: expected f32, found i32");

    t.accepts(Op::GatherCols, &[x, top], 3, 2);
    t.refuses(Op::GatherCols, &[x, pages], "rows of the indices: expected 3, found 1");
    t.refuses(Op::GatherCols, &[x, x], "indices: expected i32, found f32");

    // Three experts of 5 x 8, two for each token; then three of 4 x 5 with a row for each choice.
    let (weight, bias, second) = (t.weight(15, 8), t.weight(3, 5), t.weight(12, 5));
    let op = |weight, bias, experts, used| Op::ExpertMatMul(ExpertMatMul { weight, bias, experts, used });
    t.accepts(op(weight, Some(bias), 3, 2), &[x, top], 6, 5);
    let hidden = t.b.op("hidden", op(weight, None, 3, 2), &[x, top]).unwrap();
    t.accepts(op(second, None, 3, 2), &[hidden, top], 6, 4);
    t.refuses(
        op(weight, None, 2, 2),
        &[x, top],
        "rows of 'w15x8': expected a multiple of 2 experts, found 15",
    );
    t.refuses(
        op(weight, None, 0, 2),
        &[x, top],
        "rows of 'w15x8': expected a multiple of 0 experts, found 15",
    );
    t.refuses(op(weight, None, 3, 0), &[x, top], "expected at least 1 expert for each token, found 0");
    t.refuses(op(weight, None, 3, 1), &[x, top], "columns of the indices: expected 1, found 2");
    t.refuses(op(weight, None, 3, 2), &[narrow, top], "columns of 'w15x8': expected 6, found 8");
    t.refuses(op(weight, None, 3, 2), &[x, x], "indices: expected i32, found f32");
    let text = "rows of input 0: expected 3 (one for each token) or 6 (one for each choice), found 1";
    t.refuses(op(weight, None, 3, 2), &[row, top], text);
    let (few, short) = (t.weight(2, 5), t.weight(3, 4));
    t.refuses(op(weight, Some(few), 3, 2), &[x, top], "rows of 'w2x5': expected 3, found 2");
    t.refuses(op(weight, Some(short), 3, 2), &[x, top], "columns of 'w3x4': expected 5, found 4");

    let weights = t.b.op("weights", Op::GatherCols, &[x, top]).unwrap();
    t.accepts(Op::CombineExperts, &[hidden, weights], 3, 5);
    t.refuses(Op::CombineExperts, &[x, weights], "rows of input 0: expected 6, found 3");
    t.refuses(Op::CombineExperts, &[hidden, top], "weights: expected f32, found i32");
}

#[test]
fn rows_and_shapes() {
    let mut t = bench();
    let (x, ints, pages, narrow) = (t.x, t.ints, t.pages, t.narrow);
    let table = Some(t.weight(100, 4));
    t.accepts(Op::GetRows(GetRows { table }), &[ints], 3, 4);
    t.accepts(Op::GetRows(GetRows { table: None }), &[narrow, ints], 3, 6);
    t.refuses(Op::GetRows(GetRows { table }), &[pages], "columns of the indices: expected 1, found 4");
    t.refuses(Op::GetRows(GetRows { table }), &[x], "indices: expected i32, found f32");
    t.refuses(Op::GetRows(GetRows { table: None }), &[ints, ints], "input 0: expected f32, found i32");
    let view = |first_row, rows, first_col, cols| Op::View(View { first_row, rows, first_col, cols });
    t.accepts(view(3, 0, 8, 0), &[x], 0, 0);
    t.accepts(view(1, 2, 3, 5), &[x], 2, 5);
    for outside in [view(2, 2, 0, 1), view(0, 1, 4, 5), view(usize::MAX, 2, 0, 1)] {
        let Op::View(window) = &outside else { unreachable!() };
        let message = format!("the window {window:?} is not inside [3, 8]");
        t.refuses(outside, &[x], &message);
    }
    t.accepts(Op::Permute(Permute { heads: 2 }), &[x], 6, 4);
    t.accepts(Op::AllReduce, &[x], 3, 8);
    t.accepts(Op::AllGather(AllGather { devices: 2 }), &[x], 6, 8);
    for devices in [0, usize::MAX] {
        t.refuses(
            Op::AllGather(AllGather { devices }),
            &[x],
            &format!("devices: expected at least 1, and rows that can be counted, found {devices}"),
        );
    }
    let op = |heads| Op::Permute(Permute { heads });
    t.refuses(op(3), &[x], "columns: expected a multiple of 3 heads, found 8");
    t.refuses(op(0), &[x], "columns: expected a multiple of 0 heads, found 8");
    let flat = t.b.reshape("flat", x, Shape::new(4, 6)).unwrap();
    assert_eq!(t.b.shape(flat), Shape::new(4, 6));
    let error = t.b.reshape("flat", x, Shape::new(5, 5)).unwrap_err();
    assert_eq!(error.to_string(), "graph node 'flat': expected the 24 elements of [3, 8], found [5, 5]");
}

#[test]
fn rope() {
    let mut t = bench();
    let (x, ints, lens) = (t.x, t.ints, t.lens);
    let op = |head_dim, pairs| {
        let table = Arc::new(RopeTable { inv_freq: vec![1.0; pairs], magnitude: 1.0 });
        Op::Rope(Rope { head_dim, style: RopeStyle::Interleaved, table })
    };
    t.accepts(op(4, 2), &[x, ints], 3, 8);
    t.accepts(op(8, 2), &[x, ints], 3, 8);
    let text = |head_dim, rotated| {
        format!(
            "expected whole heads of {head_dim} columns, at least {rotated} of them rotated; found 8 columns"
        )
    };
    t.refuses(op(3, 1), &[x, ints], &text(3, 2));
    t.refuses(op(4, 3), &[x, ints], &text(4, 6));
    t.refuses(op(0, 0), &[x, ints], &text(0, 0));
    t.refuses(op(4, 2), &[x, lens], "positions: expected 3, found 1");
    t.refuses(op(4, 2), &[x, x], "positions: expected i32, found f32");
}

#[test]
fn the_cache() {
    let mut t = bench();
    let (x, narrow, row, ints, lens) = (t.x, t.narrow, t.row, t.ints, t.lens);
    let store = |layer, group| Op::KvStore(KvStore { layer, group: GroupId(group) });
    t.accepts(store(0, 0), &[x, x, ints], 3, 0);
    t.refuses(store(0, 0), &[narrow, x, ints], "columns of the keys: expected 8, found 6");
    t.refuses(store(0, 0), &[x, narrow, ints], "columns of the values: expected 8, found 6");
    t.refuses(store(0, 0), &[x, row, ints], "rows of the values: expected 3, found 1");
    t.refuses(store(0, 0), &[x, x, lens], "cache rows: expected 3, found 1");
    t.refuses(store(0, 0), &[x, x, x], "cache rows: expected i32, found f32");
    t.refuses(store(9, 0), &[x, x, ints], "layer 9: expected a KV cache of group 0, found None");
    let text = "layer 1: expected a KV cache of group 0, found Some(Recurrent { slots: 1, elements: 8 })";
    t.refuses(store(1, 0), &[x, x, ints], text);
    let load = |layer, part| Op::KvLoad(KvLoad { layer, part });
    t.accepts(load(0, StatePart::Value), &[x, lens], 1, 8);
    t.refuses(load(9, StatePart::Key), &[x, lens], "layer 9 has no state");
    t.refuses(load(0, StatePart::Recurrent), &[x, lens], "the state of layer 0 has no Recurrent");
    t.refuses(load(1, StatePart::Key), &[x, lens], "the state of layer 1 has no Key");
}

#[test]
fn attention_checks_heads_cache_and_inputs() {
    let mut t = bench();
    let (ints, ranges, lens, pages) = (t.ints, t.ranges, t.lens, t.pages);
    let w = t.weight(16, 8);
    let q = t.b.op("q", Op::MatMul(MatMul { weight: w, bias: None, logits: false }), &[t.x]).unwrap();
    let inputs = [q, q, ints, ranges, lens, pages];
    let with = |change: fn(&mut Attention)| {
        let mut op = attention();
        change(&mut op);
        Op::Attention(op)
    };
    t.accepts(with(|_| ()), &inputs, 3, 16);
    t.accepts(with(|a| a.window = Some(1)), &inputs, 3, 16);
    let (sinks, few) = (t.weight(1, 4), t.weight(1, 3));
    let with_sinks = |sinks| Op::Attention(Attention { sinks: Some(sinks), ..attention() });
    t.accepts(with_sinks(sinks), &inputs, 3, 16);
    t.refuses(with_sinks(few), &inputs, "elements of 'w1x3': expected 4, found 3");
    t.refuses(with(|a| a.window = Some(0)), &inputs, "window: expected at least 1 key, found 0");
    for (change, found) in [
        ((|a| a.heads = 0) as fn(&mut Attention), "0 of 4 and values of 4"),
        (|a| a.head_dim = 0, "4 of 0 and values of 4"),
        (|a| a.value_dim = 0, "4 of 4 and values of 0"),
    ] {
        let text = format!("expected at least 1 head of at least 1 column, found {found}");
        t.refuses(with(change), &inputs, &text);
    }
    t.refuses(with(|a| a.kv_heads = 3), &inputs, "heads: expected a multiple of 3 KV heads, found 4");
    t.refuses(with(|a| a.kv_heads = 0), &inputs, "heads: expected a multiple of 0 KV heads, found 4");
    t.refuses(with(|a| a.heads = 2), &inputs, "columns of the queries: expected 8, found 16");
    t.refuses(with(|a| a.kv_heads = 4), &inputs, "columns of the cached keys: expected 16, found 8");
    t.refuses(with(|a| a.value_dim = 2), &inputs, "columns of the cached values: expected 4, found 8");
    let most = usize::MAX;
    let text = format!("columns of the queries: expected {most}, found 16");
    t.refuses(with(|a| a.head_dim = usize::MAX / 2), &inputs, &text);
    let text = "layer 1: expected a KV cache of group 0, found Some(Recurrent { slots: 1, elements: 8 })";
    t.refuses(with(|a| a.layer = 1), &inputs, text);
    for (index, wrong, text) in [
        (0, ints, "queries: expected f32, found i32"),
        (2, q, "positions: expected i32, found f32"),
        (2, lens, "positions: expected 3, found 1"),
        (3, q, "query ranges: expected i32, found f32"),
        (3, ints, "query ranges: expected 2, found 3"),
        (4, q, "KV lengths: expected i32, found f32"),
        (5, q, "page table: expected i32, found f32"),
        (5, ints, "rows of the page table: expected 1, found 3"),
    ] {
        let mut inputs = inputs;
        inputs[index] = wrong;
        t.refuses(with(|_| ()), &inputs, text);
    }
}

#[test]
fn fused_projections() {
    let mut t = bench();
    let (x, narrow, ints, lens) = (t.x, t.narrow, t.ints, t.lens);
    let store = KvStore { layer: 0, group: GroupId(0) };
    let (q, kv, odd, q_bias, kv_bias) =
        (t.weight(16, 8), t.weight(8, 8), t.weight(8, 7), t.weight(1, 16), t.weight(1, 8));
    let op = |weights, biases| {
        Op::FusedQkv(FusedQkv { weights, biases, norms: Some(([kv_bias; 2], 1e-6)), rope: None, store })
    };
    t.accepts(op([q, kv, kv], Some([q_bias, kv_bias, kv_bias])), &[x, ints, ints], 3, 16);
    t.refuses(op([q, kv, odd], None), &[x, ints, ints], "columns of 'w8x7': expected 8, found 7");
    t.refuses(op([q, q, kv], None), &[x, ints, ints], "key columns: expected 8, found 16");
    t.refuses(op([q, kv, q], None), &[x, ints, ints], "value columns: expected 8, found 16");
    let text = "elements of 'w1x8': expected 16, found 8";
    t.refuses(op([q, kv, kv], Some([kv_bias; 3])), &[x, ints, ints], text);
    t.refuses(op([q, kv, kv], None), &[x, lens, ints], "positions: expected 3, found 1");
    t.refuses(op([q, kv, kv], None), &[x, ints, lens], "cache rows: expected 3, found 1");
    t.refuses(op([q, kv, kv], None), &[narrow, ints, ints], "columns of 'w16x8': expected 6, found 8");

    let joined = t.weight(24, 8);
    let joined =
        t.b.op("qkv", Op::MatMul(MatMul { weight: joined, bias: None, logits: false }), &[x]).unwrap();
    let op =
        |query_cols, biases| Op::QkvBiasRopeStore(QkvBiasRopeStore { query_cols, biases, rope: None, store });
    t.accepts(op(8, Some([kv_bias; 3])), &[joined, ints, ints], 3, 8);
    t.refuses(op(16, None), &[joined, ints, ints], "columns of input 0: expected 32, found 24");
    let most = usize::MAX;
    let text = format!("columns of input 0: expected {most}, found 24");
    t.refuses(op(usize::MAX, None), &[joined, ints, ints], &text);
    let text = "elements of 'w1x16': expected 8, found 16";
    t.refuses(op(8, Some([kv_bias, q_bias, kv_bias])), &[joined, ints, ints], text);
}

#[test]
fn inputs_and_weights_are_entered_once_and_labels_carry_the_layer() {
    let mut t = bench();
    assert_eq!(t.b.input(InputKind::Positions), t.ints);
    assert_eq!(t.weight(3, 3), t.weight(3, 3));
    t.b.set_layer(Some(4));
    let scaled = t.b.op("scaled", Op::Scale(1.0), &[t.x]).unwrap();
    let flat = t.b.reshape("flat", scaled, Shape::new(1, 24)).unwrap();
    let graph: Graph = t.b.finish(&[flat]);
    assert_eq!((graph.node(scaled).label.as_str(), graph.node(scaled).layer), ("blk.4.scaled", Some(4)));
    assert_eq!((graph.node(flat).label.as_str(), graph.node(flat).layer), ("blk.4.flat", Some(4)));
    assert_eq!(graph.node(t.ints).dtype, DType::I32);
    assert_eq!(graph.node(t.ints).label, "positions");
    let names: Vec<String> =
        [InputKind::CacheRows(GroupId(2)), InputKind::OutRows].map(InputKind::name).to_vec();
    assert_eq!(names, ["cache_rows.2", "out_rows"]);
}

#[test]
fn graphs_of_equal_parameters_are_equal() {
    let one = crate::common::transformer(&params(3), 2);
    assert_eq!(one, crate::common::transformer(&params(3), 2));
    assert_ne!(one, crate::common::transformer(&params(4), 2));
}
