//! The gate: an accelerator takes part only with all its weights.

use crate::common::*;
use graph::testing::{Control, Fault};
use graph::{BackendError, Graph, GraphError, GraphParams, Participation, Scheduler};

fn wanted(layers: Option<usize>) -> GraphParams {
    let params = with(&["gpu"], params(2));
    GraphParams { participation: Participation { layers, ..params.participation.clone() }, ..params }
}

/// A scheduler whose accelerator could not take one weight.
fn without(weight: &str, graph: &Graph) -> Scheduler {
    let control = Control::new();
    control.fail("gpu", Fault::Register(weight.into()));
    scheduler(vec![control.backend("gpu"), control.backend("cpu")], graph.weights())
}

#[test]
fn with_every_weight_it_is_open() {
    let graph = transformer(&wanted(None), 2);
    let scheduler = without("nothing", &graph);
    assert_eq!(scheduler.participation(&graph), wanted(None).participation);
    assert!(scheduler.refused_weights().is_empty());
    let names = graph.weights().iter().map(|weight| weight.name.as_str());
    assert_eq!(scheduler.eligible(&["gpu".into(), "npu".into(), "cpu".into()], names), ["gpu"]);
}

#[test]
fn one_missing_weight_closes_it() {
    let graph = transformer(&wanted(None), 2);
    for missing in graph.weights() {
        let scheduler = without(&missing.name, &graph);
        assert_eq!(scheduler.participation(&graph), Participation::cpu_only(), "{}", missing.name);
        let names = graph.weights().iter().map(|weight| weight.name.as_str());
        assert!(scheduler.eligible(&["gpu".into()], names).is_empty());
        let [GraphError::Backend { backend, node, .. }] = scheduler.refused_weights() else {
            panic!("{:?}", scheduler.refused_weights());
        };
        assert_eq!((backend.as_str(), node), ("gpu", &missing.name));
    }
}

#[test]
fn partial_offload_needs_the_weights_of_its_layers_and_the_head() {
    let graph = transformer(&wanted(Some(1)), 2);
    for (missing, open) in
        [("blk.0.attn_q.weight", true), ("blk.1.attn_q.weight", false), ("token_embd", false)]
    {
        let participation = without(missing, &graph).participation(&graph);
        let expected = if open { wanted(Some(1)).participation } else { Participation::cpu_only() };
        assert_eq!(participation, expected, "{missing}");
    }
    let none = transformer(&wanted(Some(0)), 2);
    assert_eq!(without("nothing", &none).participation(&none), Participation::cpu_only());
}

#[test]
fn a_graph_that_was_built_past_the_gate_is_refused() {
    let graph = transformer(&wanted(None), 2);
    let mut scheduler = without("blk.1.attn_k.weight", &graph);
    let error = GraphError::Backend {
        backend: "gpu".into(),
        node: "blk.1.attn_k".into(),
        source: BackendError::MissingWeight { name: "blk.1.attn_k.weight".into() },
    };
    assert_eq!(rebuilt(&mut scheduler, &graph), Err(error));
}

#[test]
fn the_last_backend_must_take_every_weight() {
    let control = Control::new();
    control.fail("cpu", Fault::Register("token_embd".into()));
    let mut scheduler = scheduler(vec![control.backend("gpu"), control.backend("cpu")], &[]);
    let info = weight("token_embd", VOCABULARY, 8);
    let error = scheduler.register_weight(&info.name, contents(&info)).unwrap_err();
    assert!(
        matches!(&error, GraphError::Backend { backend, node, .. } if backend == "cpu" && node == "token_embd"),
        "{error:?}"
    );
}
