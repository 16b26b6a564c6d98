//! Mixtures of experts: what a file may leave out, and what is wrong with a file.

mod common;

use common::{TENSORS, load};
use gguf::Value;
use graph::{CacheParams, DType, GraphParams, Op, Participation};
use models::{Error, Model, Network, Routing};

/// The file of `common` with three experts of 16 columns in place of its network, two for each token.
const EXPERTS: [(&str, &[u64]); 4] = [
    ("blk.0.ffn_gate_inp.weight", &[8, 3]),
    ("blk.0.ffn_gate_exps.weight", &[8, 16, 3]),
    ("blk.0.ffn_up_exps.weight", &[8, 16, 3]),
    ("blk.0.ffn_down_exps.weight", &[16, 8, 3]),
];

/// Of an architecture, with some keys and tensors changed, added or left out.
fn load_experts(
    architecture: &str,
    keys: &[(&'static str, Option<u64>)],
    tensors: &[(&'static str, Option<&'static [u64]>)],
) -> Result<Model, Error> {
    let mut all_keys = vec![
        ("general.architecture", Some(Value::String(architecture.into()))),
        ("expert_count", Some(Value::U32(3))),
        ("expert_used_count", Some(Value::U32(2))),
        ("expert_feed_forward_length", Some(Value::U32(16))),
    ];
    let mut all_tensors: Vec<(&str, Option<&[u64]>)> =
        vec![("blk.0.ffn_gate.weight", None), ("blk.0.ffn_up.weight", None), ("blk.0.ffn_down.weight", None)];
    all_tensors.extend(EXPERTS.map(|(name, shape)| (name, Some(shape))));
    match architecture {
        "qwen3moe" => all_tensors
            .extend([("blk.0.attn_q_norm.weight", Some(&[4][..])), ("blk.0.attn_k_norm.weight", Some(&[4]))]),
        "gpt-oss" => {
            all_keys.push(("attention.sliding_window", Some(Value::U32(5))));
            all_tensors.extend([
                ("blk.0.ffn_norm.weight", None),
                ("blk.0.post_attention_norm.weight", Some(&[8][..])),
                ("blk.0.attn_sinks.weight", Some(&[2])),
            ]);
        }
        "qwen2moe" => {
            all_keys.push(("expert_shared_feed_forward_length", Some(Value::U32(4))));
            all_tensors.extend([
                ("blk.0.ffn_gate_inp_shexp.weight", Some(&[8][..])),
                ("blk.0.ffn_gate_shexp.weight", Some(&[8, 4])),
                ("blk.0.ffn_up_shexp.weight", Some(&[8, 4])),
                ("blk.0.ffn_down_shexp.weight", Some(&[4, 8])),
            ]);
        }
        _ => {}
    }
    for (key, value) in keys {
        all_keys.retain(|(name, _)| name != key);
        all_keys.push((key, value.map(Value::U64)));
    }
    for (name, shape) in tensors {
        all_tensors.retain(|(other, _)| other != name);
        all_tensors.push((name, *shape));
    }
    load(&all_keys, &all_tensors)
}

const ARCHITECTURES: [&str; 4] = ["llama", "qwen2moe", "qwen3moe", "gpt-oss"];

fn message(result: Result<Model, Error>) -> String {
    result.expect_err("an error").to_string()
}

fn params(tokens: usize, pages: usize) -> GraphParams {
    GraphParams {
        tokens,
        outputs: tokens,
        sequences: 1,
        max_pages: 1,
        cache: CacheParams { key: DType::F16, value: DType::F16, page_len: 64, pages: vec![1; pages] },
        participation: Participation::cpu_only(),
        head: true,
        fuse_qkv: false,
        fuse_ffn: false,
    }
}

#[test]
fn whole_files_load_and_make_graphs() {
    for architecture in ARCHITECTURES {
        let model = load_experts(architecture, &[], &[]).unwrap();
        assert!(model.unused_tensors().is_empty(), "{architecture}");
        let Network::Experts(experts) = &model.transformer().layers[0].feed_forward.network else {
            panic!("{architecture}: no experts");
        };
        assert_eq!((experts.count, experts.used, experts.gate.weight.rows), (3, 2, 48), "{architecture}");
        let softmax = if architecture == "qwen2moe" { Routing::Softmax } else { Routing::SoftmaxOfChosen };
        assert_eq!((experts.routing, experts.scale), (softmax, None), "{architecture}");
        let graph = model.graph(&params(5, model.cache_groups().len())).unwrap();
        let products = graph.nodes().iter().filter(|node| matches!(node.op, Op::ExpertMatMul(_)));
        assert_eq!(products.count(), 3, "{architecture}");
    }
    assert_eq!(TENSORS.len() + 1, load_experts("llama", &[], &[]).unwrap().weights().len());
}

#[test]
fn counts_that_cannot_be() {
    for architecture in ARCHITECTURES {
        let found = |keys: &[(&'static str, Option<u64>)]| message(load_experts(architecture, keys, &[]));
        let key = |name: &str| format!("'{architecture}.{name}'");
        let text = found(&[("expert_used_count", Some(4))]);
        let expected = format!("{}: expected at most the 3 experts, found 4", key("expert_used_count"));
        assert_eq!(text, expected);
        for (name, value) in [
            ("expert_used_count", 0),
            ("expert_used_count", u64::MAX),
            ("expert_count", u64::MAX),
            ("expert_count", (1 << 21) + 1),
        ] {
            let expected = format!("{}: expected a count of 1 to 2097152, found {value}", key(name));
            assert_eq!(found(&[(name, Some(value))]), expected);
        }
        let expected = format!("key {} is missing", key("expert_used_count"));
        assert_eq!(found(&[("expert_used_count", None)]), expected);
        // As many as can be, which the tensors do not have.
        let text = found(&[("expert_count", Some(1 << 21)), ("expert_used_count", Some(257))]);
        let expected = format!("{}: expected at most 256, found 257", key("expert_used_count"));
        assert_eq!(text, expected);
        let text = found(&[("expert_count", Some(1 << 21)), ("expert_used_count", Some(256))]);
        let gate = "tensor 'blk.0.ffn_gate_exps.weight': expected shape [8, 16, 2097152], found [8, 16, 3]";
        assert_eq!(text, gate);
    }
    for architecture in &ARCHITECTURES[1..] {
        let text = message(load_experts(architecture, &[("expert_count", Some(0))], &[]));
        let expected = format!("'{architecture}.expert_count': expected a count of 1 to 2097152, found 0");
        assert_eq!(text, expected);
        let text = message(load_experts(architecture, &[("expert_feed_forward_length", None)], &[]));
        assert_eq!(text, format!("key '{architecture}.expert_feed_forward_length' is missing"));
    }
    // None is a dense model, whose tensors these are not.
    let text = message(load_experts("llama", &[("expert_count", Some(0))], &[]));
    assert_eq!(text, "tensor 'blk.0.ffn_gate.weight' is missing");
    let text = message(load_experts("qwen2moe", &[("expert_shared_feed_forward_length", Some(5))], &[]));
    assert!(text.contains("'blk.0.ffn_gate_shexp.weight': expected shape [8, 5]"), "{text}");
}

#[test]
fn tensors_missing_or_of_the_wrong_shape() {
    for architecture in ARCHITECTURES {
        for (name, shape) in EXPERTS {
            let text = message(load_experts(architecture, &[], &[(name, None)]));
            assert_eq!(text, format!("tensor '{name}' is missing"), "{architecture}");
            let wrong: &[u64] = if shape.len() == 3 { &[8, 48] } else { &[8, 4] };
            let text = message(load_experts(architecture, &[], &[(name, Some(wrong))]));
            let expected = format!("tensor '{name}': expected shape {shape:?}, found {wrong:?}");
            assert_eq!(text, expected, "{architecture}");
        }
    }
    for (architecture, name, wrong) in [
        ("gpt-oss", "blk.0.attn_sinks.weight", &[3][..]),
        ("gpt-oss", "blk.0.post_attention_norm.weight", &[9]),
        ("gpt-oss", "blk.0.ffn_gate_inp.bias", &[2]),
        ("gpt-oss", "blk.0.ffn_down_exps.bias", &[8, 2]),
        ("gpt-oss", "blk.0.ffn_up_exps.bias", &[48]),
        ("qwen2moe", "blk.0.ffn_gate_inp_shexp.weight", &[8, 2]),
    ] {
        let text = message(load_experts(architecture, &[], &[(name, Some(wrong))]));
        assert!(text.starts_with(&format!("tensor '{name}': expected shape [")), "{text}");
        assert!(text.ends_with(&format!("found {wrong:?}")), "{text}");
    }
    let text = message(load_experts("gpt-oss", &[], &[("blk.0.attn_sinks.weight", None)]));
    assert_eq!(text, "tensor 'blk.0.attn_sinks.weight' is missing");
}

#[test]
fn biases_are_read_where_they_are() {
    let biases: [(&str, Option<&[u64]>); 4] = [
        ("blk.0.ffn_gate_inp.bias", Some(&[3])),
        ("blk.0.ffn_gate_exps.bias", Some(&[16, 3])),
        ("blk.0.ffn_up_exps.bias", Some(&[16, 3])),
        ("blk.0.ffn_down_exps.bias", Some(&[8, 3])),
    ];
    let model = load_experts("gpt-oss", &[], &biases).unwrap();
    assert!(model.unused_tensors().is_empty());
    let Network::Experts(experts) = &model.transformer().layers[0].feed_forward.network else {
        panic!("no experts");
    };
    let bias = experts.down.bias.as_ref().unwrap();
    assert_eq!((bias.rows, bias.cols, experts.router.bias.is_some()), (3, 8, true));
}
