//! A mixture of experts over several backends: choices are integers that one computes and another reads.

use crate::common::*;
use graph::ops::*;
use graph::testing::Control;
use graph::{Graph, GraphBuilder, GraphParams, NodeId, Op, WeightInfo};

const COLS: usize = 8;
const HIDDEN: usize = 6;
const EXPERTS: usize = 5;
const USED: usize = 2;

/// Router, gate and up, the gate of gpt-oss, down, and the weighted sum, over the embedding.
fn mixture(params: &GraphParams) -> Graph {
    let mut b = GraphBuilder::new(params, vec![]);
    let x = embed(&mut b, COLS);
    let [router, gate, gate_bias, up, down] = weights().map(|info| b.weight(&info));
    let mut op = |label: &str, op: Op, inputs: &[NodeId]| b.op(label, op, inputs).unwrap();
    let logits = op("logits", Op::MatMul(MatMul { weight: router, bias: None, logits: true }), &[x]);
    let chosen = op("chosen", Op::TopK(TopK { k: USED }), &[logits]);
    let picked = op("picked", Op::GatherCols, &[logits, chosen]);
    let weights = op("weights", Op::Softmax(Softmax { scale: 1.0 }), &[picked]);
    let product =
        |weight, bias| Op::ExpertMatMul(ExpertMatMul { weight, bias, experts: EXPERTS, used: USED });
    let gate = op("gate", product(gate, Some(gate_bias)), &[x, chosen]);
    let up = op("up", product(up, None), &[x, chosen]);
    let gated = op("gated", Op::ClampedSwiGlu(ClampedSwiGlu { alpha: 1.5, limit: 0.25 }), &[gate, up]);
    let down = op("down", product(down, None), &[gated, chosen]);
    let sum = op("sum", Op::CombineExperts, &[down, weights]);
    b.finish(&[sum])
}

fn weights() -> [WeightInfo; 5] {
    [
        weight("router", EXPERTS, COLS),
        weight("gate", EXPERTS * HIDDEN, COLS),
        weight("gate_bias", EXPERTS, HIDDEN),
        weight("up", EXPERTS * HIDDEN, COLS),
        weight("down", EXPERTS * COLS, HIDDEN),
    ]
}

/// The same by the book: every expert for every token, in double precision, and then those that were chosen.
fn by_the_book(tokens: &[i32]) -> Vec<f64> {
    let values = |info: &WeightInfo| -> Vec<f64> {
        let bytes = contents(info).bytes;
        let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        floats.map(f64::from).collect()
    };
    let table = values(&weight("token_embd", VOCABULARY, COLS));
    let [router, gate, bias, up, down] = weights().map(|info| values(&info));
    let product = |weights: &[f64], x: &[f64]| -> Vec<f64> {
        weights.chunks(x.len()).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    };
    let mut all = Vec::new();
    for &token in tokens {
        let x = &table[token as usize * COLS..][..COLS];
        let logits = product(&router, x);
        let results: Vec<Vec<f64>> = (0..EXPERTS)
            .map(|expert| {
                let part = |weights: &[f64]| product(&weights[expert * HIDDEN * COLS..][..HIDDEN * COLS], x);
                let pairs = part(&gate).into_iter().zip(&bias[expert * HIDDEN..]).zip(part(&up));
                let gated: Vec<f64> = pairs
                    .map(|((gate, bias), up)| {
                        let (gate, up) = ((gate + bias).min(0.25), up.clamp(-0.25, 0.25));
                        (up + 1.0) * gate / (1.0 + (-1.5 * gate).exp())
                    })
                    .collect();
                product(&down[expert * COLS * HIDDEN..][..COLS * HIDDEN], &gated)
            })
            .collect();
        // The others have no part.
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let total: f64 = order[..USED].iter().map(|&expert| logits[expert].exp()).sum();
        all.extend((0..COLS).map(|column| -> f64 {
            order[..USED].iter().map(|&e| logits[e].exp() / total * results[e][column]).sum()
        }));
    }
    all
}

#[test]
fn choices_cross_from_backend_to_backend() {
    for refused in ["TopK", "GatherCols", "ExpertMatMul", "ClampedSwiGlu", "CombineExperts", ""] {
        let control = Control::new();
        let params = with(&["gpu"], params(3));
        let graph = mixture(&params);
        let gpu = control.backend("gpu").refusing(move |query| query.op.name() == refused);
        let mut scheduler = scheduler(vec![gpu, control.backend("cpu")], graph.weights());
        let batch = batch(&params, 0);
        let placed = run_placed(&control, &mut scheduler, &graph, &batch);
        for node in graph.nodes().iter().filter(|node| !matches!(node.op, Op::Input(_))) {
            let place = if node.op.name() == refused { "cpu" } else { "gpu" };
            assert_eq!(placed[&node.label], place, "{} without {refused}", node.label);
        }
        let found = output(&mut scheduler, &batch, 0).unwrap();
        assert_eq!(found, expected(&graph, &batch, 0), "without {refused}");
        for (found, expected) in found.iter().zip(by_the_book(&batch.tokens)) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{found}, expected {expected}");
        }
    }
}
