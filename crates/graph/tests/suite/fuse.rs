//! What the fusion pass forms, and what it leaves alone.

use crate::common::*;
use graph::ops::Activation;
use graph::testing::{Control, TestBackend};
use graph::{FusedOp, Graph, GraphBuilder, NodeId, Op};

const SILU: FusedOp = FusedOp::Gated(Activation::Silu);

/// A graph that `build` continues from `activation(x)` and `y`.
fn gate(activation: Activation, build: impl Fn(&mut GraphBuilder, NodeId, NodeId) -> Vec<NodeId>) -> Graph {
    let mut b = GraphBuilder::new(&with(&["gpu"], params(3)), vec![]);
    let x = embed(&mut b, 8);
    let y = b.op("y", Op::Scale(3.0), &[x]).unwrap();
    let activated = b.op("activated", Op::Activation(activation), &[x]).unwrap();
    let outputs = build(&mut b, activated, y);
    b.finish(&outputs)
}

fn product(b: &mut GraphBuilder, inputs: [NodeId; 2]) -> Vec<NodeId> {
    vec![b.op("product", Op::Mul, &inputs).unwrap()]
}

/// The operations as they run, after a check of the results.
fn ops(graph: &Graph, gpu: TestBackend, control: &Control) -> Vec<&'static str> {
    let mut scheduler = scheduler(vec![gpu, control.backend("cpu")], graph.weights());
    rebuilt(&mut scheduler, graph).unwrap();
    let batch = batch(graph.params(), 0);
    for index in 0..graph.outputs().len() {
        assert_eq!(output(&mut scheduler, &batch, index).unwrap(), expected(graph, &batch, index));
    }
    scheduler.graph().unwrap().nodes().iter().map(|node| node.op.name()).collect()
}

#[test]
fn an_activation_and_its_product_become_one_in_either_order() {
    let control = Control::new();
    for swapped in [false, true] {
        let graph = gate(Activation::Silu, |b, activated, y| {
            product(b, if swapped { [y, activated] } else { [activated, y] })
        });
        let gpu = control.backend("gpu").claiming(SILU);
        assert_eq!(ops(&graph, gpu, &control), ["Input", "GetRows", "Scale", "SwiGlu"]);
    }
}

#[test]
fn each_activation_is_claimed_on_its_own() {
    let control = Control::new();
    for (activation, name) in
        [(Activation::Silu, "SwiGlu"), (Activation::Gelu, "GeGlu"), (Activation::Sigmoid, "SigmoidGate")]
    {
        let graph = gate(activation, |b, activated, y| product(b, [activated, y]));
        let claimed = control.backend("gpu").claiming(FusedOp::Gated(activation));
        assert_eq!(ops(&graph, claimed, &control).last(), Some(&name));
        let others = [Activation::Silu, Activation::Gelu, Activation::Sigmoid].into_iter();
        let unclaimed = others.filter(|other| *other != activation).map(FusedOp::Gated);
        let gpu = unclaimed.fold(control.backend("gpu"), TestBackend::claiming);
        assert_eq!(ops(&graph, gpu, &control).last(), Some(&"Mul"));
    }
}

#[test]
fn what_others_read_is_not_swallowed() {
    let control = Control::new();
    let gpu = || control.backend("gpu").claiming(SILU);
    let also_read = gate(Activation::Silu, |b, activated, y| {
        let product = product(b, [activated, y]);
        vec![b.op("sum", Op::Add, &[product[0], activated]).unwrap()]
    });
    assert!(ops(&also_read, gpu(), &control).contains(&"Silu"));
    let output =
        gate(Activation::Silu, |b, activated, y| [product(b, [activated, y]), vec![activated]].concat());
    assert!(ops(&output, gpu(), &control).contains(&"Silu"));
    let square = gate(Activation::Silu, |b, activated, _| product(b, [activated, activated]));
    assert!(ops(&square, gpu(), &control).contains(&"Silu"));
}

#[test]
fn a_product_of_two_activations_swallows_one() {
    let control = Control::new();
    let graph = gate(Activation::Silu, |b, activated, y| {
        let other = b.op("other", Op::Activation(Activation::Sigmoid), &[y]).unwrap();
        product(b, [activated, other])
    });
    let gpu = control.backend("gpu").claiming(SILU).claiming(FusedOp::Gated(Activation::Sigmoid));
    assert_eq!(ops(&graph, gpu, &control), ["Input", "GetRows", "Scale", "Sigmoid", "SwiGlu"]);
}

#[test]
fn both_nodes_must_be_on_the_backend_that_claims() {
    let control = Control::new();
    let graph = gate(Activation::Silu, |b, activated, y| product(b, [activated, y]));
    let gpu = control.backend("gpu").claiming(SILU).refusing(|query| matches!(query.op, Op::Mul));
    assert_eq!(ops(&graph, gpu, &control).last(), Some(&"Mul"));
    // A claim that the backend does not keep for these types would move the node elsewhere.
    let gpu = control.backend("gpu").claiming(SILU).refusing(|query| matches!(query.op, Op::Gated(_)));
    assert_eq!(ops(&graph, gpu, &control).last(), Some(&"Mul"));
}

#[test]
fn a_broadcast_is_left_alone() {
    let control = Control::new();
    let graph = gate(Activation::Silu, |b, activated, y| {
        let row = graph::ops::View { first_row: 0, rows: 1, first_col: 0, cols: 8 };
        let row = b.op("row", Op::View(row), &[y]).unwrap();
        product(b, [activated, row])
    });
    let gpu = control.backend("gpu").claiming(SILU);
    assert_eq!(ops(&graph, gpu, &control).last(), Some(&"Mul"));
}
