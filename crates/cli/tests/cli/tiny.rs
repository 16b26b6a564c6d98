//! Models of a few kilobytes: the `llama` architecture with one token per byte.

use gguf::{Array, Value, Writer};
use quant::Format;

/// Ids of the control tokens; the ids below are the bytes.
pub const START: u32 = 256;
pub const END: u32 = 257;
const VOCABULARY: usize = 258;

const HIDDEN: usize = 64;
const FEED_FORWARD: usize = 96;
/// One KV head of a whole block, so that the cache can be quantised.
const KV: usize = 32;
const LAYERS: usize = 2;

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] \
                      + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' \
                      }}{% endif %}";

/// Random weights, and a ChatML template.
pub fn random() -> Vec<u8> {
    model(Some(CHATML), |name, rows, cols| noise(name, rows * cols))
}

/// The same without a template: a base model.
pub fn base() -> Vec<u8> {
    model(None, |name, rows, cols| noise(name, rows * cols))
}

/// A model that is broken: every logit has this number as a factor, and it is no finite one.
pub fn broken(factor: f32) -> Vec<u8> {
    model(Some(CHATML), |name, rows, cols| match name {
        "output.weight" => {
            let mut output = vec![0.0; rows * cols];
            output.chunks_exact_mut(cols).for_each(|row| row[0] = factor);
            output
        }
        _ => noise(name, rows * cols),
    })
}

/// A model in which each token of `script` is followed by the next one, whatever came before.
pub fn scripted(script: &[u32]) -> Vec<u8> {
    model(Some(CHATML), |name, rows, cols| match name {
        "token_embd.weight" => noise(name, rows * cols),
        // Layers that add nothing leave the embedding as it is, so a token's logit is the product of its row here
        // with the embedding of the token before it: its own is by far the longest.
        "output.weight" => {
            let embedding = noise("token_embd.weight", rows * cols);
            let mut output = vec![0.0; rows * cols];
            for pair in script.windows(2) {
                let (from, to) = (pair[0] as usize * cols, pair[1] as usize * cols);
                for i in 0..cols {
                    output[to + i] += embedding[from + i];
                }
            }
            output
        }
        _ => vec![0.0; rows * cols],
    })
}

/// The ids of a text's bytes, for scripts.
pub fn bytes(text: impl AsRef<[u8]>) -> Vec<u32> {
    text.as_ref().iter().map(|&byte| byte.into()).collect()
}

/// The vocabulary alone.
pub fn vocabulary() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.metadata("general.architecture", Value::String("llama".into()));
    add_vocabulary(&mut writer, Some(CHATML));
    writer.to_bytes().unwrap()
}

fn model(template: Option<&str>, weights: impl Fn(&str, usize, usize) -> Vec<f32>) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.metadata("general.architecture", Value::String("llama".into()));
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", 1 << 20),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", FEED_FORWARD),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        writer.metadata(&format!("llama.{key}"), Value::U32(value as u32));
    }
    writer.metadata("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    add_vocabulary(&mut writer, template);
    let mut matrix = |name: &str, rows: usize, cols: usize| {
        let data = weights(name, rows, cols).iter().flat_map(|w| w.to_le_bytes()).collect();
        writer.tensor(name, &[cols as u64, rows as u64], Format::F32, data);
    };
    matrix("token_embd.weight", VOCABULARY, HIDDEN);
    matrix("output.weight", VOCABULARY, HIDDEN);
    for layer in 0..LAYERS {
        for (part, rows, cols) in [
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", KV, HIDDEN),
            ("attn_v", KV, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", FEED_FORWARD, HIDDEN),
            ("ffn_up", FEED_FORWARD, HIDDEN),
            ("ffn_down", HIDDEN, FEED_FORWARD),
        ] {
            matrix(&format!("blk.{layer}.{part}.weight"), rows, cols);
        }
    }
    let ones: Vec<u8> = [1.0f32; HIDDEN].iter().flat_map(|w| w.to_le_bytes()).collect();
    writer.tensor("output_norm.weight", &[HIDDEN as u64], Format::F32, ones.clone());
    for layer in 0..LAYERS {
        for part in ["attn_norm", "ffn_norm"] {
            writer.tensor(&format!("blk.{layer}.{part}.weight"), &[HIDDEN as u64], Format::F32, ones.clone());
        }
    }
    writer.to_bytes().unwrap()
}

fn add_vocabulary(writer: &mut Writer, template: Option<&str>) {
    let mut texts: Vec<String> = (0..=255).map(|byte| sign(byte).to_string()).collect();
    texts.extend(["<|im_start|>", "<|im_end|>"].map(String::from));
    let types = (0..VOCABULARY).map(|id| if id < 256 { 1 } else { 3 }).collect();
    writer.metadata("tokenizer.ggml.model", Value::String("gpt2".into()));
    writer.metadata("tokenizer.ggml.pre", Value::String("gpt-2".into()));
    writer.metadata("tokenizer.ggml.tokens", Value::Array(Array::String(texts)));
    writer.metadata("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    writer.metadata("tokenizer.ggml.merges", Value::Array(Array::String(Vec::new())));
    writer.metadata("tokenizer.ggml.bos_token_id", Value::U32(START));
    writer.metadata("tokenizer.ggml.eos_token_id", Value::U32(END));
    writer.metadata("tokenizer.ggml.add_bos_token", Value::Bool(false));
    if let Some(template) = template {
        writer.metadata("tokenizer.chat_template", Value::String(template.into()));
    }
}

/// The sign of a byte in the alphabet of byte-level BPE: itself if it prints, else the next from U+0100 on.
fn sign(byte: u8) -> char {
    let prints = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if prints(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|&b| !prints(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap()
}

/// Numbers between -0.5 and 0.5 that depend on the name alone (a linear congruential generator).
fn noise(name: &str, len: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(1u64, |state, byte| state.wrapping_mul(31).wrapping_add(byte.into()));
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    std::iter::repeat_with(next).take(len).collect()
}
