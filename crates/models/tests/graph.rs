//! Which operations the graphs of a model have.

mod common;

use common::load;
use gguf::Value;
use graph::testing::evaluate;
use graph::{Batch, CacheParams, DType, Graph, GraphParams, Participation, WeightData};
use models::Model;
use std::collections::BTreeMap;

/// `tokens` tokens of one sequence, `outputs` of whose rows are wanted.
fn params(tokens: usize, outputs: usize) -> GraphParams {
    GraphParams {
        tokens,
        outputs,
        sequences: 1,
        max_pages: 2,
        cache: CacheParams { key: DType::F32, value: DType::F32, page_len: 4, pages: vec![2] },
        participation: Participation::cpu_only(),
        head: true,
        fuse_qkv: false,
        fuse_ffn: false,
    }
}

/// Two layers with norms of query and key heads.
fn model() -> Model {
    let architecture = Value::String("qwen3".into());
    let names: Vec<String> = common::TENSORS
        .iter()
        .map(|(name, _)| name.replace("blk.0", "blk.1"))
        .chain(["blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"].map(str::to_owned))
        .chain(["blk.1.attn_q_norm.weight", "blk.1.attn_k_norm.weight"].map(str::to_owned))
        .collect();
    let shape = |name: &str| {
        let first = name.replace("blk.1", "blk.0");
        common::TENSORS.iter().find(|(known, _)| *known == first).map_or(&[4][..], |(_, shape)| *shape)
    };
    let tensors: Vec<_> = names.iter().map(|name| (&**name, Some(shape(name)))).collect();
    load(&[("general.architecture", Some(architecture)), ("block_count", Some(Value::U32(2)))], &tensors)
        .unwrap()
}

/// Labels of the nodes of a layer that compute something.
fn labels(graph: &Graph, layer: usize) -> Vec<&str> {
    let nodes = graph.nodes().iter().filter(|node| node.layer == Some(layer) && !node.inputs.is_empty());
    nodes.map(|node| node.label.rsplit('.').next().unwrap()).collect()
}

#[test]
fn without_outputs_the_last_layer_only_fills_its_cache() {
    let model = model();
    let graph = model.graph(&params(3, 0)).unwrap();
    assert!(graph.outputs().is_empty());
    assert_eq!(labels(&graph, 1), ["attn_norm", "attn_k", "attn_v", "attn_k_norm", "rope_k", "kv_store"]);
    let used: Vec<&str> = graph.weights().iter().map(|weight| &*weight.name).collect();
    assert!(
        !used.contains(&"blk.1.attn_q.weight") && !used.contains(&"blk.1.attn_q_norm.weight"),
        "{used:?}"
    );
    // The layer before it does all.
    let whole = model.graph(&params(3, 3)).unwrap();
    assert_eq!(labels(&graph, 0), labels(&whole, 0));
    assert!(labels(&whole, 1).contains(&"attn_q") && labels(&whole, 1).contains(&"attention"));
}

#[test]
fn one_fused_projection_stays_one_launch_without_outputs() {
    let model = model();
    let gpu = Participation { accelerators: vec!["metal".into()], ..Participation::default() };
    let fused = GraphParams { fuse_qkv: true, participation: gpu, ..params(1, 0) };
    let graph = model.graph(&fused).unwrap();
    assert_eq!(labels(&graph, 1), ["attn_norm", "fused_qkv"]);
    // The CPU launches nothing: it leaves the query out.
    let graph = model.graph(&GraphParams { fuse_qkv: true, ..params(3, 0) }).unwrap();
    assert_eq!(labels(&graph, 0)[..2], ["attn_norm", "fused_qkv"]);
    assert_eq!(labels(&graph, 1), ["attn_norm", "attn_k", "attn_v", "attn_k_norm", "rope_k", "kv_store"]);
}

#[test]
fn what_is_stored_does_not_depend_on_the_outputs() {
    let model = model();
    let weights: BTreeMap<String, WeightData> = model
        .weights()
        .iter()
        .map(|info| {
            let seed: usize = info.name.bytes().map(usize::from).sum();
            let value = |i: usize| ((seed * 31 + i * 17) % 101) as f32 / 50.0 - 1.0;
            let bytes: Vec<u8> = (0..info.elements()).flat_map(|i| value(i).to_le_bytes()).collect();
            let data = WeightData {
                format: info.format,
                rows: info.rows,
                cols: info.cols,
                bytes: bytes.into(),
                release: None,
            };
            (info.name.clone(), data)
        })
        .collect();
    let stored = |outputs: usize| {
        let batch = Batch {
            tokens: vec![1, 4, 7],
            positions: vec![0, 1, 2],
            cache_rows: vec![vec![0, 1, 2]],
            query_ranges: vec![0, 3],
            kv_lens: vec![3],
            page_tables: vec![vec![0, 1]],
            out_rows: (0..outputs as i32).collect(),
        };
        let graph = model.graph(&params(3, outputs)).unwrap();
        let values = evaluate(&graph, &batch, &weights).unwrap();
        let stores = graph.nodes().iter().filter(|node| node.label.ends_with("kv_store"));
        let bits = |id: graph::NodeId| -> Vec<u32> {
            values[id.0].f32().unwrap().iter().map(|value| value.to_bits()).collect()
        };
        stores.map(|node| [bits(node.inputs[0]), bits(node.inputs[1])]).collect::<Vec<_>>()
    };
    let all = stored(3);
    assert!(all.len() == 2 && all[1][0].iter().any(|&bits| bits != 0));
    assert_eq!(stored(0), all);
}
