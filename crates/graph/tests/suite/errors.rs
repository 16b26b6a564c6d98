//! What errors say: what was found, what was expected, and where. (Where each comes from is tested with its topic.)

use graph::{BackendError, GraphError};
use std::error::Error;

#[test]
fn backend_errors() {
    let cases = [
        (
            BackendError::OutOfMemory { what: "a buffer".into(), bytes: 512 },
            "no memory for a buffer (512 bytes)",
        ),
        (BackendError::UnknownHandle { kind: "state", id: 3 }, "unknown state 3"),
        (
            BackendError::Length { what: "buffer 2".into(), expected: 8, found: 12 },
            "buffer 2: expected 8 bytes, found 12",
        ),
        (
            BackendError::MissingWeight { name: "output.weight".into() },
            "weight 'output.weight' is not registered",
        ),
        (
            BackendError::Invariant { what: "head dim".into(), expected: "128".into(), found: "64".into() },
            "head dim: expected 128, found 64",
        ),
        (
            BackendError::BadInput { what: "tokens".into(), row: 4, found: -1, limit: 100 },
            "tokens, row 4: -1 is outside 0..100",
        ),
        (BackendError::Device("timed out".into()), "device: timed out"),
        (BackendError::Partner("it failed".into()), "another device: it failed"),
    ];
    for (error, text) in cases {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn graph_errors() {
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let cases = [
        (GraphError::Build { node: "x".into(), message: "no".into() }, "graph node 'x': no"),
        (
            GraphError::Unsupported {
                node: "x".into(),
                op: "Add f32 [1, 2]".into(),
                backends: names(&["metal", "cpu"]),
            },
            "no backend supports node 'x' (Add f32 [1, 2]); asked: metal, cpu",
        ),
        (
            GraphError::Placement { node: "x".into(), expected: "cpu".into(), found: "metal".into() },
            "node 'x' runs on cpu, but its buffer is on metal",
        ),
        (
            GraphError::Input { what: "tokens".into(), expected: 2, found: 1 },
            "input tokens: expected 2 elements, found 1",
        ),
        (
            GraphError::UnknownBackend { name: "npu".into(), backends: names(&["metal", "cpu"]) },
            "participation names 'npu', but the backends are: metal, cpu",
        ),
        (GraphError::NotPrepared, "a forward pass was run before a graph was prepared"),
        (GraphError::NotRun, "outputs were read before a forward pass finished"),
        (
            GraphError::Output { index: 0, what: "elements", expected: 8, found: 4 },
            "output 0: elements: expected 8, found 4",
        ),
    ];
    for (error, text) in cases {
        assert_eq!(error.to_string(), text);
        assert!(error.source().is_none());
    }
    let source = BackendError::Device("timed out".into());
    let error = GraphError::Backend { backend: "cuda".into(), node: "blk.0.attn_q".into(), source };
    assert_eq!(error.to_string(), "cuda, node 'blk.0.attn_q': device: timed out");
    assert_eq!(error.source().map(|source| source.to_string()), Some("device: timed out".into()));
}
