//! Buffers: whatever is shared, results are those of one buffer per node.

use crate::common::*;
use graph::ops::{Activation, GetRows, MatMul, Permute, RmsNorm, Softmax, View};
use graph::testing::{Control, Event, TestBackend};
use graph::{BufferId, DType, FusedOp, Graph, GraphBuilder, GraphError, InputKind, NodeId, Op, Shape};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

/// Places of results, by label.
fn outputs(control: &Control) -> BTreeMap<String, (BufferId, usize)> {
    let log = control.take_log().into_iter();
    let places = log.filter_map(|(_, event)| match event {
        Event::Execute { label, output, .. } => Some((label, (output.buffer, output.offset))),
        _ => None,
    });
    places.collect()
}

/// Runs a graph on one backend, checks its first output, and says where everything was.
fn places(build: impl Fn(&mut GraphBuilder, NodeId) -> NodeId) -> BTreeMap<String, (BufferId, usize)> {
    let control = Control::new();
    let params = params(4);
    let mut b = GraphBuilder::new(&params, vec![]);
    let x = embed(&mut b, 8);
    let x = b.op("x", Op::Scale(2.0), &[x]).unwrap();
    let out = build(&mut b, x);
    // The output has a place of its own: the node before it shows what was taken over.
    let out = b.op("out", Op::Scale(1.0), &[out]).unwrap();
    let graph = b.finish(&[out]);
    let mut scheduler = scheduler(vec![control.backend("cpu")], graph.weights());
    rebuilt(&mut scheduler, &graph).unwrap();
    let batch = batch(&params, 0);
    assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&graph, &batch, 0));
    outputs(&control)
}

#[test]
fn a_dying_input_is_written_over() {
    let places = places(|b, x| b.op("y", Op::Activation(Activation::Silu), &[x]).unwrap());
    assert_eq!(places["token_embd"], places["x"]);
    assert_eq!(places["x"], places["y"]);
    assert_ne!(places["y"].0, places["out"].0, "an output has a place of its own");
}

#[test]
fn an_input_that_is_read_later_is_not() {
    let places = places(|b, x| {
        let y = b.op("y", Op::Activation(Activation::Silu), &[x]).unwrap();
        b.op("sum", Op::Add, &[y, x]).unwrap()
    });
    assert_ne!(places["x"], places["y"]);
    assert_eq!(places["y"], places["sum"], "the first input that allows it");
}

#[test]
fn an_operation_that_forbids_it_is_not_in_place() {
    let places = places(|b, x| b.op("y", Op::Permute(Permute { heads: 2 }), &[x]).unwrap());
    assert_ne!(places["x"].0, places["y"].0);
}

#[test]
fn an_operation_of_the_same_shape_that_forbids_it_is_not_in_place() {
    let places = places(|b, x| {
        let square = b.weight(&weight("square", 8, 8));
        b.op("y", Op::MatMul(MatMul { weight: square, bias: None, logits: false }), &[x]).unwrap()
    });
    assert_ne!(places["x"].0, places["y"].0);
}

#[test]
fn a_value_that_is_also_read_through_a_view_is_not_written_over() {
    let places = places(|b, x| {
        let row = View { first_row: 1, rows: 1, first_col: 0, cols: 8 };
        let row = b.op("row", Op::View(row), &[x]).unwrap();
        b.op("y", Op::Mul, &[x, row]).unwrap()
    });
    assert_ne!(places["x"].0, places["y"].0);
}

#[test]
fn a_value_that_is_read_twice_as_it_is_can_be_written_over() {
    let places = places(|b, x| b.op("y", Op::Mul, &[x, x]).unwrap());
    assert_eq!(places["x"], places["y"]);
}

#[test]
fn the_second_input_is_written_over_if_it_alone_dies() {
    let places = places(|b, x| {
        let y = b.op("y", Op::Scale(0.5), &[x]).unwrap();
        let product = b.op("product", Op::Mul, &[x, y]).unwrap();
        b.op("sum", Op::Add, &[x, product]).unwrap()
    });
    assert_eq!(places["product"], places["y"]);
}

#[test]
fn a_view_keeps_its_base_alive_and_is_a_range_of_it() {
    let control = Control::new();
    let params = params(4);
    let mut b = GraphBuilder::new(&params, vec![]);
    let x = embed(&mut b, 8);
    let x = b.op("x", Op::Scale(2.0), &[x]).unwrap();
    let last = b.op("last", Op::View(View { first_row: 3, rows: 1, first_col: 0, cols: 8 }), &[x]).unwrap();
    // These would take x's buffer, were it free.
    let y = b.op("y", Op::Softmax(Softmax { scale: 1.0 }), &[x]).unwrap();
    let z = b.op("z", Op::Scale(0.5), &[y]).unwrap();
    let sum = b.op("sum", Op::Add, &[z, last]).unwrap();
    let graph = b.finish(&[sum]);
    let mut scheduler = scheduler(vec![control.backend("cpu")], graph.weights());
    rebuilt(&mut scheduler, &graph).unwrap();
    let batch = batch(&params, 0);
    assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&graph, &batch, 0));
    let log = control.take_log();
    let calls: Vec<_> = log
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Execute { label, inputs, output, .. } => Some((label.as_str(), inputs, output)),
            _ => None,
        })
        .collect();
    let (_, _, x) = calls.iter().find(|(label, ..)| *label == "x").unwrap();
    let (_, inputs, _) = calls.iter().find(|(label, ..)| *label == "sum").unwrap();
    let view = inputs[1];
    assert_eq!((view.buffer, view.offset, view.shape), (x.buffer, 3 * 8 * 4, Shape::new(1, 8)));
    assert_eq!(view.producer, last, "a view's value has a key of its own");
    assert_ne!(view.producer, x.producer);
    let (_, _, y) = calls.iter().find(|(label, ..)| *label == "y").unwrap();
    assert_ne!(x.buffer, y.buffer);
}

#[test]
fn buffers_are_reused_along_a_long_chain() {
    let control = Control::new();
    let params = params(4);
    let mut b = GraphBuilder::new(&params, vec![]);
    let mut x = embed(&mut b, 8);
    let square = b.weight(&weight("square", 8, 8));
    for i in 0..50 {
        x = b
            .op(&format!("m{i}"), Op::MatMul(MatMul { weight: square, bias: None, logits: false }), &[x])
            .unwrap();
        x = b.op(&format!("n{i}"), Op::RmsNorm(RmsNorm { weight: None, epsilon: 1e-6 }), &[x]).unwrap();
    }
    let graph = b.finish(&[x]);
    let mut scheduler = scheduler(vec![control.backend("cpu")], graph.weights());
    rebuilt(&mut scheduler, &graph).unwrap();
    let batch = batch(&params, 0);
    assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&graph, &batch, 0));
    let buffers: HashSet<_> = outputs(&control).into_values().map(|(buffer, _)| buffer).collect();
    assert_eq!(buffers.len(), 3, "two that alternate, and the output");
    // Tokens, two buffers and the output, each of the smallest class.
    assert_eq!(scheduler.stats().peak_bytes, [4 * 256]);
}

#[test]
fn a_size_that_overflows_is_an_error() {
    let control = Control::new();
    let params = params(4);
    let mut b = GraphBuilder::new(&params, vec![]);
    let huge = b.weight(&weight("huge", 2, usize::MAX / 8));
    let tokens = b.input(InputKind::Tokens);
    let x = b.op("x", Op::GetRows(GetRows { table: Some(huge) }), &[tokens]).unwrap();
    let graph = b.finish(&[x]);
    let mut scheduler = scheduler(vec![control.backend("cpu")], &[]);
    scheduler.register_weight("huge", contents(&weight("huge", 1, 1))).unwrap();
    let error = rebuilt(&mut scheduler, &graph).unwrap_err();
    assert!(matches!(&error, GraphError::Build { node, .. } if node == "x"), "{error:?}");
}

/// Adds a node of a kind that `choice` says, over earlier ones. Not every choice fits: then nothing is added.
fn add_random(b: &mut GraphBuilder, nodes: &mut Vec<NodeId>, index: usize, choice: (u8, usize, usize)) {
    let (kind, first, second) = choice;
    let pick = |n: usize| nodes[n % nodes.len()];
    let (x, shape) = (pick(first), b.shape(pick(first)));
    let same = |b: &GraphBuilder, n: usize| {
        let fits: Vec<NodeId> = nodes
            .iter()
            .copied()
            .filter(|&id| b.shape(id) == shape || b.shape(id) == Shape::new(1, shape.cols))
            .collect();
        fits[n % fits.len()]
    };
    let activations = [Activation::Silu, Activation::Gelu, Activation::Sigmoid];
    let label = format!("n{index}");
    let half = (shape.rows / 2).max(1);
    let added = match kind {
        0 => b.op(&label, Op::Add, &[x, same(b, second)]),
        1 => b.op(&label, Op::Mul, &[x, same(b, second)]),
        2 => b.op(&label, Op::Scale(0.5 + (second % 3) as f32 * 0.25), &[x]),
        3 => b.op(&label, Op::Activation(activations[second % 3]), &[x]),
        4 => b.op(&label, Op::RmsNorm(RmsNorm { weight: None, epsilon: 1e-3 }), &[x]),
        5 => b.op(&label, Op::Softmax(Softmax { scale: 0.5 }), &[x]),
        6 => {
            let out = [4, 8, 16][second % 3];
            let weight = b.weight(&weight(&format!("w{}x{out}", shape.cols), out, shape.cols));
            b.op(&label, Op::MatMul(MatMul { weight, bias: None, logits: false }), &[x])
        }
        7 => {
            let view = View { first_row: shape.rows - half, rows: half, first_col: 0, cols: shape.cols };
            b.op(&label, Op::View(view), &[x])
        }
        8 => {
            let cols = (shape.cols / 2).max(1);
            let view = View { first_row: 0, rows: shape.rows, first_col: shape.cols - cols, cols };
            b.op(&label, Op::View(view), &[x])
        }
        9 if shape.cols.is_multiple_of(2) => b.reshape(&label, x, Shape::new(shape.rows * 2, shape.cols / 2)),
        10 if shape.cols.is_multiple_of(2) => b.op(&label, Op::Permute(Permute { heads: 2 }), &[x]),
        _ => return,
    };
    nodes.push(added.unwrap());
}

fn random_graph(choices: &[(u8, usize, usize)], outputs: &[usize], accelerators: &[&str]) -> Graph {
    let mut b = GraphBuilder::new(&with(accelerators, params(4)), vec![]);
    let mut nodes = vec![embed(&mut b, 8)];
    for (index, &choice) in choices.iter().enumerate() {
        add_random(&mut b, &mut nodes, index, choice);
    }
    let outputs: Vec<NodeId> = outputs.iter().map(|&output| nodes[output % nodes.len()]).collect();
    b.finish(&outputs)
}

/// Refuses the kinds of operation whose bit is set.
fn refusing(backend: TestBackend, refused: u16) -> TestBackend {
    backend.refusing(move |query| {
        let kind = match query.op {
            Op::Add => 0,
            Op::Mul => 1,
            Op::Scale(_) => 2,
            Op::Activation(_) => 3,
            Op::RmsNorm(_) => 4,
            Op::Softmax(_) => 5,
            Op::MatMul(_) => 6,
            Op::View(_) => 8,
            Op::Permute(_) => 10,
            Op::Gated(_) => 11,
            _ => 12,
        };
        refused & (1 << kind) != 0
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random graphs over three backends, with random refusals, fusion and several outputs: every output is what one
    /// buffer per node gives, on the first run and on the next.
    #[test]
    fn plans_do_not_change_results(
        choices in prop::collection::vec((0u8..11, any::<usize>(), any::<usize>()), 1..40),
        picks in prop::collection::vec(any::<usize>(), 1..4),
        refusals in (any::<u16>(), any::<u16>()),
        fuses in any::<bool>(),
    ) {
        let control = Control::new();
        let graph = random_graph(&choices, &picks, &["first", "second"]);
        let mut backends = vec![
            refusing(control.backend("first"), refusals.0),
            refusing(control.backend("second"), refusals.1),
            control.backend("cpu"),
        ];
        if fuses {
            let claim = |backend: TestBackend| {
                backend.claiming(FusedOp::Gated(Activation::Silu)).claiming(FusedOp::Gated(Activation::Gelu))
            };
            backends = backends.into_iter().map(claim).collect();
        }
        let mut scheduler = scheduler(backends, graph.weights());
        rebuilt(&mut scheduler, &graph).unwrap();
        for start in [0, 3] {
            let batch = batch(graph.params(), start);
            for index in 0..graph.outputs().len() {
                let found = output(&mut scheduler, &batch, index).unwrap();
                let expected = expected(&graph, &batch, index);
                let equal = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                prop_assert!(equal && found.len() == expected.len(), "output {index}: {found:?}, not {expected:?}");
            }
        }
    }
}

#[test]
fn packed_rows_must_be_whole_blocks() {
    // Types of rows without a whole number of blocks have no size; the plan says which node.
    assert_eq!(Shape::new(2, 33).bytes(DType::Packed(quant::Format::Q8_0)), None);
    assert_eq!(Shape::new(2, 64).bytes(DType::Packed(quant::Format::Q8_0)), Some(2 * 2 * 34));
}
