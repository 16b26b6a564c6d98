//! Which backend runs which node.

use crate::common::*;
use graph::ops::{Activation, View};
use graph::testing::Control;
use graph::{Backend, GraphBuilder, GraphError, GraphParams, Op, Participation, Scheduler, Shape};

fn two_layers(accelerators: &[&str], layers: Option<usize>) -> GraphParams {
    let params = with(accelerators, params(2));
    GraphParams { participation: Participation { layers, ..params.participation.clone() }, ..params }
}

#[test]
fn the_first_that_takes_part_and_supports_a_node_runs_it() {
    let control = Control::new();
    let backends = || {
        let first = control.backend("first").refusing(|query| matches!(query.op, Op::Add));
        let second = control.backend("second").refusing(|query| matches!(query.op, Op::MatMul(_)));
        vec![first, second, control.backend("cpu")]
    };
    // The order of the names in the participation does not matter; that of the backends does.
    for (names, matmul, add) in [
        (&["first", "second"][..], "first", "second"),
        (&["second", "first"], "first", "second"),
        (&["second"], "cpu", "second"),
        (&["first"], "first", "cpu"),
        (&[], "cpu", "cpu"),
    ] {
        let params = with(names, params(2));
        let graph = transformer(&params, 1);
        let mut scheduler = scheduler(backends(), graph.weights());
        let placed = run_placed(&control, &mut scheduler, &graph, &batch(&params, 0));
        assert_eq!(placed["output"], matmul, "{names:?}");
        assert_eq!(placed["blk.0.residual"], add, "{names:?}");
    }
}

#[test]
fn partial_offload_is_by_whole_last_layers_and_the_head() {
    let control = Control::new();
    for (layers, embedding, first, second, head) in [
        (None, "gpu", "gpu", "gpu", "gpu"),
        (Some(3), "gpu", "gpu", "gpu", "gpu"),
        (Some(2), "gpu", "gpu", "gpu", "gpu"),
        (Some(1), "cpu", "cpu", "gpu", "gpu"),
        (Some(0), "cpu", "cpu", "cpu", "cpu"),
    ] {
        let params = two_layers(&["gpu"], layers);
        let graph = transformer(&params, 2);
        let mut scheduler = scheduler(vec![control.backend("gpu"), control.backend("cpu")], graph.weights());
        let placed = run_placed(&control, &mut scheduler, &graph, &batch(&params, 0));
        for (label, backend) in placed {
            let expected = match label.as_str() {
                "token_embd" => embedding,
                "output" => head,
                _ if label.starts_with("blk.0.") => first,
                _ => second,
            };
            assert_eq!(backend, expected, "{layers:?}: {label}");
        }
    }
}

#[test]
fn all_state_operations_of_a_layer_are_on_one_backend() {
    let control = Control::new();
    let params = two_layers(&["gpu"], None);
    let graph = transformer(&params, 2);
    // The GPU takes stores, but not attention: stores go along with it.
    let gpu = control.backend("gpu").refusing(|query| matches!(query.op, Op::Attention(_)));
    let mut scheduler = scheduler(vec![gpu, control.backend("cpu")], graph.weights());
    let batch = batch(&params, 0);
    let placed = run_placed(&control, &mut scheduler, &graph, &batch);
    for layer in 0..2 {
        assert_eq!(placed[&format!("blk.{layer}.kv_store")], "cpu");
        assert_eq!(placed[&format!("blk.{layer}.attention")], "cpu");
        assert_eq!(placed[&format!("blk.{layer}.attn_q")], "gpu");
    }
    assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&graph, &batch, 0));
}

#[test]
fn views_cost_nothing_and_follow_their_base() {
    let control = Control::new();
    let params = with(&["gpu"], params(4));
    let mut b = GraphBuilder::new(&params, vec![]);
    let x = embed(&mut b, 8);
    let x = b.op("doubled", Op::Scale(2.0), &[x]).unwrap();
    let rows = View { first_row: 1, rows: 2, first_col: 0, cols: 8 };
    let rows = b.op("rows", Op::View(rows), &[x]).unwrap();
    let flat = b.reshape("flat", rows, Shape::new(4, 4)).unwrap();
    let columns = View { first_row: 0, rows: 4, first_col: 2, cols: 2 };
    let columns = b.op("columns", Op::View(columns), &[flat]).unwrap();
    let y = b.op("silu", Op::Activation(Activation::Silu), &[columns]).unwrap();
    let graph = b.finish(&[y, flat]);
    // Were they asked for, views would be refused.
    let gpu = control.backend("gpu").refusing(|query| {
        matches!(query.op, Op::Reshape) || matches!(query.op, Op::View(view) if view.cols == 8)
    });
    let mut scheduler = scheduler(vec![gpu, control.backend("cpu")], graph.weights());
    let batch = batch(&params, 0);
    let placed = run_placed(&control, &mut scheduler, &graph, &batch);
    assert_eq!(placed.keys().collect::<Vec<_>>(), ["columns", "doubled", "silu", "token_embd"]);
    assert!(placed.values().all(|backend| backend == "gpu"));
    for index in 0..2 {
        assert_eq!(output(&mut scheduler, &batch, index).unwrap(), expected(&graph, &batch, index));
    }
}

#[test]
fn an_input_read_on_two_backends_is_written_to_both() {
    let control = Control::new();
    let params = with(&["gpu"], params(2));
    let graph = transformer(&params, 1);
    let gpu = control.backend("gpu").refusing(|query| matches!(query.op, Op::KvStore(_)));
    let mut b = GraphBuilder::new(&params, vec![]);
    let x = embed(&mut b, 8);
    let rows = b.input(graph::InputKind::Tokens);
    let x = b.op("capped", Op::SoftCap(1.0), &[x]).unwrap();
    let y = b.op("again", Op::GetRows(graph::ops::GetRows { table: None }), &[x, rows]).unwrap();
    let twice = b.finish(&[y]);
    let gpu = gpu.refusing(|query| matches!(query.op, Op::SoftCap(_)) || query.inputs.len() == 2);
    let mut scheduler = scheduler(vec![gpu, control.backend("cpu")], graph.weights());
    let batch = graph::Batch { tokens: vec![1, 0], ..batch(&params, 0) };
    rebuilt(&mut scheduler, &twice).unwrap();
    control.take_log();
    assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&twice, &batch, 0));
    let writes: Vec<_> = calls(&control).into_iter().take(2).collect();
    assert_eq!(writes, ["gpu: write", "cpu: write"]);
}

#[test]
fn a_node_that_nobody_takes_is_unsupported() {
    let control = Control::new();
    let params = with(&["gpu"], params(2));
    let graph = transformer(&params, 1);
    let refusing = |name: &str| control.backend(name).refusing(|query| matches!(query.op, Op::Attention(_)));
    let mut scheduler = scheduler(vec![refusing("gpu"), refusing("cpu")], graph.weights());
    let error = rebuilt(&mut scheduler, &graph).unwrap_err();
    let expected = GraphError::Unsupported {
        node: "blk.0.attention".into(),
        op: "Attention f32 [2, 8]".into(),
        backends: vec!["gpu".into(), "cpu".into()],
    };
    assert_eq!(error, expected);
}

#[test]
fn an_accelerator_that_does_not_exist_is_an_error() {
    let control = Control::new();
    let params = with(&["gpu", "npu"], params(2));
    let graph = transformer(&params, 1);
    let mut scheduler = scheduler(vec![control.backend("gpu"), control.backend("cpu")], graph.weights());
    let error = GraphError::UnknownBackend { name: "npu".into(), backends: vec!["gpu".into(), "cpu".into()] };
    assert_eq!(rebuilt(&mut scheduler, &graph), Err(error));
}

#[test]
#[should_panic(expected = "at least one backend")]
fn a_scheduler_needs_a_backend() {
    Scheduler::new(Vec::<Box<dyn Backend>>::new());
}
