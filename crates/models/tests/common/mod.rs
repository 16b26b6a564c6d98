//! A small llama file.

#![allow(dead_code, reason = "each test uses a part")]

use gguf::{Value, Writer};
use models::{Error, Model};
use quant::Format;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Hyper-parameters of the file.
const KEYS: [(&str, u32); 6] = [
    ("block_count", 1),
    ("context_length", 64),
    ("embedding_length", 8),
    ("feed_forward_length", 16),
    ("attention.head_count", 2),
    ("attention.head_count_kv", 1),
];

/// Names and shapes of its tensors.
pub const TENSORS: [(&str, &[u64]); 11] = [
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
pub fn load(keys: &[(&str, Option<Value>)], tensors: &[(&str, Option<&[u64]>)]) -> Result<Model, Error> {
    load_with(keys, tensors, |_| Format::F32)
}

/// As [`load`], with each tensor in the format that `format` gives for its name.
pub fn load_with(
    keys: &[(&str, Option<Value>)],
    tensors: &[(&str, Option<&[u64]>)],
    format: impl Fn(&str) -> Format,
) -> Result<Model, Error> {
    let mut writer = Writer::new();
    let architecture = keys.iter().find(|(key, _)| *key == "general.architecture");
    let architecture =
        architecture.and_then(|(_, value)| value.clone()).unwrap_or(Value::String("llama".into()));
    let Value::String(prefix) = architecture.clone() else { panic!("the architecture is a text") };
    writer.metadata("general.architecture", architecture);
    let changed = |name: &str| keys.iter().any(|(key, _)| *key == name);
    for (name, count) in KEYS.into_iter().filter(|(name, _)| !changed(name)) {
        writer.metadata(&format!("{prefix}.{name}"), Value::U32(count));
    }
    if !changed("attention.layer_norm_rms_epsilon") {
        writer.metadata(&format!("{prefix}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
    }
    for (name, value) in keys.iter().filter(|(name, _)| *name != "general.architecture") {
        if let Some(value) = value {
            writer.metadata(&format!("{prefix}.{name}"), value.clone());
        }
    }
    let changed = |name: &str| tensors.iter().any(|(tensor, _)| *tensor == name);
    let kept = TENSORS.into_iter().filter(|(name, _)| !changed(name));
    let others = tensors.iter().filter_map(|(name, shape)| shape.map(|shape| (*name, shape)));
    for (name, shape) in kept.chain(others) {
        let (format, elements) = (format(name), shape.iter().product::<u64>() as usize);
        let bytes = elements / format.block_len() * format.block_bytes();
        writer.tensor(name, shape, format, vec![0; bytes]);
    }
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("smelt-models-{}-{number}.gguf", std::process::id()));
    std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
    let model = Model::load(&gguf::File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    model
}
