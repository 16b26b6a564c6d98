//! One test per error: a small llama file, broken in one way.

mod common;

use common::{TENSORS, load, load_with};
use gguf::Value;
use models::{Error, Model};
use quant::Format;

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
fn a_matrix_of_one_row_is_told_as_a_matrix() {
    let found = message(load(&[("feed_forward_length", Some(Value::U32(1)))], &[]));
    assert_eq!(found, "tensor 'blk.0.ffn_gate.weight': expected shape [8, 1], found [8, 16]");
}

#[test]
fn a_packed_norm_or_bias_is_refused_when_the_model_is_read() {
    // As wide as a block.
    let keys = [("embedding_length", Some(Value::U32(32)))];
    let wide: Vec<(&str, Vec<u64>)> = TENSORS
        .into_iter()
        .map(|(name, shape)| (name, shape.iter().map(|&d| if d == 8 { 32 } else { d }).collect()))
        .chain([("blk.0.attn_q.bias", vec![32])])
        .map(|(name, shape): (&str, Vec<u64>)| match name {
            "blk.0.attn_k.weight" | "blk.0.attn_v.weight" => (name, vec![32, 16]),
            _ => (name, shape),
        })
        .collect();
    let tensors: Vec<_> = wide.iter().map(|(name, shape)| (*name, Some(&shape[..]))).collect();
    let packed = |packed: &'static str, to: Format| {
        load_with(&keys, &tensors, move |name| if name == packed { to } else { Format::F32 })
    };
    for name in ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "blk.0.attn_q.bias"]
    {
        assert!(packed(name, Format::F16).is_ok() && packed(name, Format::BF16).is_ok(), "{name}");
        for format in [Format::Q4_0, Format::Q8_0] {
            assert_eq!(
                message(packed(name, format)),
                format!("tensor '{name}': expected format F32 or F16 or BF16, found {format}")
            );
        }
    }
    assert!(packed("blk.0.attn_q.weight", Format::Q4_0).is_ok());
    let mut tensors = tensors.clone();
    tensors.push(("rope_freqs.weight", Some(&[8])));
    let found = message(load_with(&keys, &tensors, |name| match name {
        "rope_freqs.weight" => Format::F16,
        _ => Format::F32,
    }));
    assert_eq!(found, "tensor 'rope_freqs.weight': expected format F32, found F16");
}

#[test]
fn what_is_not_supported() {
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
