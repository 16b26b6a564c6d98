//! One test per error: a small llama file, broken in one way.

use gguf::{Value, Writer};
use models::{Error, Model};
use quant::Format;
use std::sync::atomic::{AtomicUsize, Ordering};

const KEYS: [(&str, u32); 6] = [
    ("block_count", 1),
    ("context_length", 64),
    ("embedding_length", 8),
    ("feed_forward_length", 16),
    ("attention.head_count", 2),
    ("attention.head_count_kv", 1),
];

const TENSORS: [(&str, &[u64]); 11] = [
    ("token_embd.weight", &[8, 10]),
    ("output_norm.weight", &[8]),
    ("blk.0.attn_norm.weight", &[8]),
    ("blk.0.attn_q.weight", &[8, 8]),
    ("blk.0.attn_k.weight", &[8, 4]),
    ("blk.0.attn_v.weight", &[8, 4]),
    ("blk.0.attn_output.weight", &[8, 8]),
    ("blk.0.ffn_norm.weight", &[8]),
    ("blk.0.ffn_gate.weight", &[8, 16]),
    ("blk.0.ffn_up.weight", &[8, 16]),
    ("blk.0.ffn_down.weight", &[16, 8]),
];

/// The file, with some keys and tensors replaced, added (a new name) or left out (`None`).
fn load(keys: &[(&str, Option<Value>)], tensors: &[(&str, Option<&[u64]>)]) -> Result<Model, Error> {
    let mut writer = Writer::new();
    let architecture = keys.iter().find(|(key, _)| *key == "general.architecture");
    let architecture =
        architecture.and_then(|(_, value)| value.clone()).unwrap_or(Value::String("llama".into()));
    writer.metadata("general.architecture", architecture);
    let changed = |name: &str| keys.iter().any(|(key, _)| *key == name);
    for (name, count) in KEYS.into_iter().filter(|(name, _)| !changed(name)) {
        writer.metadata(&format!("llama.{name}"), Value::U32(count));
    }
    if !changed("attention.layer_norm_rms_epsilon") {
        writer.metadata("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    }
    for (name, value) in keys.iter().filter(|(name, _)| *name != "general.architecture") {
        if let Some(value) = value {
            writer.metadata(&format!("llama.{name}"), value.clone());
        }
    }
    let changed = |name: &str| tensors.iter().any(|(tensor, _)| *tensor == name);
    let kept = TENSORS.into_iter().filter(|(name, _)| !changed(name));
    let others = tensors.iter().filter_map(|(name, shape)| shape.map(|shape| (*name, shape)));
    for (name, shape) in kept.chain(others) {
        let bytes = shape.iter().product::<u64>() as usize * 4;
        writer.tensor(name, shape, Format::F32, vec![0; bytes]);
    }
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("smelt-models-{}-{number}.gguf", std::process::id()));
    std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
    let model = Model::load(&gguf::File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    model
}

fn message(result: Result<Model, Error>) -> String {
    result.expect_err("an error").to_string()
}

#[test]
fn the_whole_file_loads() {
    let model = load(&[], &[]).unwrap();
    assert_eq!(
        (model.layers(), model.vocabulary(), model.hidden_size(), model.context_length()),
        (1, 10, 8, 64)
    );
    assert_eq!(model.weights().len(), TENSORS.len());
    assert!(model.unused_tensors().is_empty());
}

#[test]
fn metadata_missing_or_of_the_wrong_type() {
    assert_eq!(message(load(&[("block_count", None)], &[])), "key 'llama.block_count' is missing");
    let text = Value::String("many".into());
    let found = message(load(&[("block_count", Some(text))], &[]));
    assert!(found.contains("'llama.block_count'") && found.contains("found string"), "{found}");
}

#[test]
fn unknown_architecture() {
    let found = message(load(&[("general.architecture", Some(Value::String("mamba".into())))], &[]));
    assert!(
        found.starts_with("unknown model architecture 'mamba'; supported: llama, qwen2, qwen3"),
        "{found}"
    );
}

#[test]
fn values_that_cannot_be() {
    for (key, value, expected) in [
        ("block_count", Value::U32(0), "a count of 1 to"),
        ("block_count", Value::U64(u64::MAX), "a count of 1 to"),
        ("attention.head_count_kv", Value::U32(3), "a divisor of the 2 heads"),
        ("attention.head_count", Value::U32(3), "a divisor of the"),
        ("attention.layer_norm_rms_epsilon", Value::F32(f32::NAN), "a finite number"),
        ("attention.layer_norm_rms_epsilon", Value::F32(-1.0), "not negative"),
        ("rope.dimension_count", Value::U32(3), "an even number"),
        ("rope.dimension_count", Value::U32(6), "at most the head dim 4"),
        ("rope.freq_base", Value::F32(0.5), "a number above 1"),
        ("rope.scaling.type", Value::String("magic".into()), "none, linear or yarn"),
        ("rope.scaling.factor", Value::F32(-2.0), "a positive number"),
        ("vocab_size", Value::U32(11), "the rows of the embedding"),
    ] {
        let found = message(load(&[(key, Some(value))], &[]));
        assert!(found.contains(&format!("'llama.{key}'")) && found.contains(expected), "{key}: {found}");
    }
}

#[test]
fn a_missing_tensor() {
    assert_eq!(
        message(load(&[], &[("blk.0.ffn_up.weight", None)])),
        "tensor 'blk.0.ffn_up.weight' is missing"
    );
}

#[test]
fn a_tensor_of_the_wrong_shape() {
    assert_eq!(
        message(load(&[], &[("blk.0.attn_k.weight", Some(&[8, 6]))])),
        "tensor 'blk.0.attn_k.weight': expected shape [8, 4], found [8, 6]"
    );
    let found = message(load(&[], &[("output_norm.weight", Some(&[8, 2]))]));
    assert!(found.contains("expected shape [8], found [8, 2]"), "{found}");
}

#[test]
fn what_is_not_supported() {
    let found = message(load(&[("expert_count", Some(Value::U32(8)))], &[]));
    assert!(found.contains("not supported: a mixture of 8 experts"), "{found}");
    let found = message(load(&[], &[("rope_freqs.weight", Some(&[2]))]));
    assert!(found.contains("'rope_freqs.weight' with the factor 0"), "{found}");
}

#[test]
fn tensors_that_nothing_reads_are_told() {
    let model = load(&[], &[("blk.0.extra.weight", Some(&[8]))]).unwrap();
    assert_eq!(model.unused_tensors(), ["blk.0.extra.weight"]);
}

#[test]
fn trailing_dimensions_of_one_say_nothing() {
    assert!(load(&[], &[("output_norm.weight", Some(&[8, 1, 1]))]).is_ok());
}
