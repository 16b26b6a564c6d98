//! Layers split over several accelerators.

use crate::common::*;
use graph::testing::{Control, Fault};
use graph::{GraphError, GraphParams, Participation, Scheduler, activation_bytes};

fn wanted(layers: Option<usize>, split: &[usize]) -> GraphParams {
    let params = with(&["a", "b"], params(2));
    let participation = Participation { layers, split: split.to_vec(), ..params.participation.clone() };
    GraphParams { participation, ..params }
}

fn three(control: &Control, linked: bool) -> Vec<graph::testing::TestBackend> {
    let gpu = |name| if linked { control.backend(name).linked() } else { control.backend(name) };
    vec![gpu("a"), gpu("b"), control.backend("cpu")]
}

#[test]
fn each_accelerator_runs_its_share_of_the_layers() {
    let control = Control::new();
    for (layers, split, [embedding, first, second, third, head]) in [
        (None, [1, 2], ["a", "a", "b", "b", "b"]),
        (None, [2, 1], ["a", "a", "a", "b", "b"]),
        (None, [3, 0], ["a", "a", "a", "a", "a"]),
        (None, [0, 3], ["b", "b", "b", "b", "b"]),
        (Some(2), [1, 1], ["cpu", "cpu", "a", "b", "b"]),
        (Some(1), [0, 1], ["cpu", "cpu", "cpu", "b", "b"]),
        (Some(9), [1, 2], ["a", "a", "b", "b", "b"]),
        (Some(0), [0, 0], ["cpu", "cpu", "cpu", "cpu", "cpu"]),
    ] {
        let params = wanted(layers, &split);
        let graph = transformer(&params, 3);
        let mut scheduler = scheduler(three(&control, true), graph.weights());
        let batch = batch(&params, 0);
        for (label, backend) in run_placed(&control, &mut scheduler, &graph, &batch) {
            let expected = match label.as_str() {
                "token_embd" => embedding,
                "output" => head,
                _ if label.starts_with("blk.0.") => first,
                _ if label.starts_with("blk.1.") => second,
                _ => third,
            };
            assert_eq!(backend, expected, "{layers:?} {split:?}: {label}");
        }
        assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&graph, &batch, 0));
    }
}

#[test]
fn values_go_from_device_to_device_without_a_wait_where_they_can() {
    let params = wanted(None, &[1, 1]);
    let graph = transformer(&params, 2);
    let between = |linked| {
        let control = Control::new();
        let mut scheduler = scheduler(three(&control, linked), graph.weights());
        let batch = batch(&params, 0);
        rebuilt(&mut scheduler, &graph).unwrap();
        control.take_log();
        let found = output(&mut scheduler, &batch, 0).unwrap();
        assert_eq!(found, expected(&graph, &batch, 0));
        let calls = calls(&control);
        let at = |label: &str| calls.iter().position(|call| call == label).unwrap();
        calls[at("a: blk.0.residual") + 1..at("b: blk.1.attn_q")].to_vec()
    };
    assert_eq!(between(true), ["b: copy from a"]);
    assert_eq!(between(false), ["a: synchronize", "a: read", "b: write"]);
}

#[test]
fn a_split_of_other_layers_is_an_error() {
    let control = Control::new();
    for split in [&[1, 1][..], &[3], &[1, 1, 1], &[usize::MAX, 3]] {
        let params = wanted(None, split);
        let graph = transformer(&params, 3);
        let mut scheduler = scheduler(three(&control, true), graph.weights());
        let error = rebuilt(&mut scheduler, &graph).unwrap_err();
        assert!(
            matches!(&error, GraphError::Build { node, message }
                if node == "participation" && message.contains("3 layers split over 2 accelerators")),
            "{error}"
        );
    }
}

#[test]
fn each_needs_the_weights_of_its_share_alone() {
    let params = wanted(None, &[1, 1]);
    let graph = transformer(&params, 2);
    let readers = Scheduler::readers(&graph);
    let of = |name: &str| readers[name].iter().map(String::as_str).collect::<Vec<_>>();
    let layer = |layer: usize| {
        ["attn_k", "attn_output", "attn_q", "attn_v"].map(|part| format!("blk.{layer}.{part}.weight"))
    };
    let with_embedding =
        |layer: [String; 4]| layer.into_iter().chain(["token_embd".into()]).collect::<Vec<_>>();
    // The output head is the embedding.
    assert_eq!(of("a"), with_embedding(layer(0)));
    assert_eq!(of("b"), with_embedding(layer(1)));

    let control = Control::new();
    let mut scheduler = scheduler(three(&control, true), &[]);
    for weight in graph.weights() {
        let takes = |name: &str| readers[name].contains(&weight.name);
        scheduler.register_weight_where(&weight.name, contents(weight), takes).unwrap();
    }
    assert_eq!(scheduler.participation(&graph), params.participation);
    rebuilt(&mut scheduler, &graph).unwrap();
}

#[test]
fn one_that_lacks_a_weight_of_its_share_leaves_all_out() {
    let graph = transformer(&wanted(None, &[1, 1]), 2);
    for (missing, open) in [("blk.0.attn_q.weight", true), ("blk.1.attn_q.weight", false)] {
        let control = Control::new();
        control.fail("b", Fault::Register(missing.into()));
        let scheduler = scheduler(three(&control, true), graph.weights());
        let found = scheduler.participation(&graph);
        let expected = if open { graph.params().participation.clone() } else { Participation::cpu_only() };
        assert_eq!(found, expected, "{missing}");
    }
}

#[test]
fn activations_are_known_before_anything_is_allocated() {
    let control = Control::new();
    for tokens in [1, 2, 8] {
        let params = with(&["a"], params(tokens));
        let graph = transformer(&params, 2);
        let mut scheduler = scheduler(three(&control, false), graph.weights());
        rebuilt(&mut scheduler, &graph).unwrap();
        assert_eq!(activation_bytes(&graph), Ok(scheduler.stats().peak_bytes[0]), "{tokens} tokens");
    }
}
