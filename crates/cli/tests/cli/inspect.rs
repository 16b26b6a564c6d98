use crate::tiny;
use crate::util::Dir;

#[test]
fn the_table_has_metadata_tensors_and_sums() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let text = dir.smelt(&["inspect", "m.gguf"]).ok();
    for line in [
        "general.architecture                    string          \"llama\"",
        "tokenizer.ggml.token_type               i32[258]        [1, 1, 1, 1, 1, 1, 1, 1, ...]",
        "llama.attention.layer_norm_rms_epsilon  f32             1e-5",
        "token_embd.weight         F32     64 x 258              64.50 KiB",
    ] {
        assert!(text.contains(line), "'{line}' is not in\n{text}");
    }
    assert!(text.lines().last().unwrap().trim_start().starts_with("all        21 tensors"), "{text}");
}

#[test]
fn json_has_the_same() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let report = dir.smelt(&["inspect", "m.gguf", "--json"]).json();
    assert_eq!(report["version"], 3);
    assert_eq!(report["metadata"]["llama.block_count"], 2);
    assert_eq!(report["metadata"]["tokenizer.ggml.tokens"]["len"], 258);
    assert_eq!(report["metadata"]["tokenizer.ggml.merges"], serde_json::json!([]));
    assert_eq!(report["tensors"][0]["shape"], serde_json::json!([64, 258]));
    let bytes = report["tensors"].as_array().unwrap().iter().map(|t| t["bytes"].as_u64().unwrap());
    assert_eq!(report["total"]["bytes"], bytes.sum::<u64>());
}

#[test]
fn a_vocabulary_alone_is_a_good_file() {
    let dir = Dir::new();
    dir.file("v.gguf", tiny::vocabulary());
    assert!(dir.smelt(&["inspect", "v.gguf"]).ok().contains("no tensors: a vocabulary alone"));
}

#[test]
fn what_is_not_there_is_said() {
    let message = Dir::new().smelt(&["inspect", "none.gguf"]).fails(1);
    assert!(message.contains("none.gguf"), "{message}");
}
