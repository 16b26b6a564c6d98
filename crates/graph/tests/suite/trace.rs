//! The split table, the census and the drawing.

use crate::common::*;
use graph::testing::Control;
use graph::{Op, Scheduler};

fn traced() -> (Scheduler, Control) {
    let control = Control::new();
    let params = with(&["gpu"], params(2));
    let graph = transformer(&params, 1);
    let gpu = control.backend("gpu").refusing(|query| matches!(query.op, Op::Attention(_)));
    let mut scheduler = scheduler(vec![gpu, control.backend("cpu")], graph.weights());
    rebuilt(&mut scheduler, &graph).unwrap();
    (scheduler, control)
}

#[test]
fn the_census_lists_splits_and_operations_by_backend() {
    let (scheduler, _control) = traced();
    let census = scheduler.census();
    let lines: Vec<Vec<&str>> = census.lines().map(|line| line.split_whitespace().collect()).collect();
    let line = |text: &'static str| text.split_whitespace().collect::<Vec<_>>();
    // 9 operations and the inputs: tokens, cache rows, positions, query ranges, KV lengths, page table.
    assert_eq!(lines[0], line("graph: 15 nodes, 3 splits (2 tokens, 2 outputs, 1 sequences)"));
    assert_eq!(lines[1], line("split 0: gpu 4 nodes, 0 copies in, token_embd .. blk.0.attn_v"));
    assert_eq!(lines[2], line("split 1: cpu 2 nodes, 3 copies in, blk.0.kv_store .. blk.0.attention"));
    assert_eq!(lines[3], line("split 2: gpu 3 nodes, 1 copies in, blk.0.attn_output .. output"));
    assert_eq!(lines[4], line("op gpu cpu"));
    for row in ["Add 1 0", "Attention 0 1", "GetRows 1 0", "KvStore 0 1", "MatMul 5 0"] {
        assert!(lines[5..].contains(&line(row)), "{row}: {census}");
    }
    assert_eq!(lines.len(), 10);
}

#[test]
fn the_drawing_has_a_cluster_per_split_and_every_node_and_edge() {
    let (scheduler, _control) = traced();
    let dot = scheduler.dot();
    assert!(dot.starts_with("digraph smelt {\n") && dot.ends_with("}\n"));
    assert_eq!(dot.matches('{').count(), dot.matches('}').count());
    for label in ["split 0: gpu", "split 1: cpu", "split 2: gpu", "blk.0.attention\\nAttention f32 [2, 8]"] {
        assert!(dot.contains(label), "{label}: {dot}");
    }
    let graph = scheduler.graph().unwrap();
    for (id, node) in graph.nodes().iter().enumerate() {
        assert_eq!(dot.matches(&format!(" n{id} [label")).count(), 1, "node {id}");
        for input in &node.inputs {
            assert!(dot.contains(&format!("  n{} -> n{id};", input.0)));
        }
    }
    let colour = |name: &str| {
        let line = dot.lines().find(|line| line.contains(name)).unwrap();
        line.split("fillcolor=").nth(1).unwrap().to_string()
    };
    assert_eq!(colour("attn_q"), colour("blk.0.residual"));
    assert_ne!(colour("attn_q"), colour("kv_store"));
    // Inputs go with their first reader.
    assert_eq!(colour("\"tokens\\n"), colour("attn_q"));
    assert_eq!(colour("\"page_table.0\\n"), colour("kv_store"));
}

#[test]
fn before_the_first_build_there_is_nothing_to_tell() {
    let control = Control::new();
    let scheduler = scheduler(vec![control.backend("cpu")], &[]);
    assert_eq!(scheduler.census(), "");
    assert!(scheduler.dot().starts_with("digraph smelt {") && scheduler.dot().ends_with("}\n"));
    assert_eq!(scheduler.backends().collect::<Vec<_>>(), ["cpu"]);
}
