//! Tiny random models, one per architecture and RoPE scaling, with the weights that `data/tiny/make_reference.py`
//! computes as well: a hash of tensor name and index.

use gguf::{Array, Value, Writer};
use quant::Format;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;

/// Tokens of the vocabulary.
pub const VOCAB: usize = 64;
const HIDDEN: usize = 48;
const FEED_FORWARD: usize = 96;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const LAYERS: usize = 6;
/// Experts chosen for each token.
const EXPERTS_USED: usize = 3;
const EXPERT_FEED_FORWARD: usize = 32;
const SHARED_FEED_FORWARD: usize = 40;

/// What distinguishes one tiny model from another.
#[derive(Clone, Debug, Default)]
pub struct Tiny {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// The output head is the embedding.
    pub tied: bool,
    /// Keys under the architecture's prefix.
    pub keys: Vec<(&'static str, Value)>,
    /// `rope_freqs.weight`.
    pub rope_freqs: Option<Vec<f32>>,
    /// Experts in every layer; 0 for a dense network.
    pub experts: usize,
    /// The format of the experts' projections back to the hidden size, and of all others whose rows are whole blocks of
    /// it, in place of F32.
    pub expert_format: Option<Format>,
}

/// What the reference implementations compute; see `data/tiny/make_reference.py`.
#[derive(Debug, Deserialize)]
pub struct Reference {
    /// The prompt.
    pub ids: Vec<u32>,
    /// The positions of the logits.
    pub positions: Vec<usize>,
    /// The models.
    pub cases: HashMap<String, Case>,
}

/// What one model's reference computes.
#[derive(Debug, Deserialize)]
pub struct Case {
    /// A row of logits for each position.
    pub logits: Vec<Vec<f64>>,
    /// The factors of the frequencies, where the model has them.
    pub rope_freqs: Option<Vec<f32>>,
}

impl Reference {
    /// Reads it.
    pub fn read() -> Reference {
        let path = crate::data("tiny/reference.json");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// The models, in a fixed order.
    pub fn models(&self) -> Vec<(&'static str, Tiny)> {
        let factors = self.cases["llama-3-factors"].rope_freqs.clone();
        cases(factors.expect("the case has factors"))
    }

    /// Fails unless the logits at a position are those of the reference.
    ///
    /// # Panics
    /// With the first that differs by more than 2e-5 of the largest.
    #[track_caller]
    pub fn check(&self, name: &str, position: usize, found: &[f32]) {
        let row = self.positions.iter().position(|&other| other == position);
        let Some(expected) = row.map(|row| &self.cases[name].logits[row]) else { return };
        assert_eq!(found.len(), expected.len());
        let scale = expected.iter().fold(0.0f64, |max, x| max.max(x.abs()));
        for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(
                (f64::from(*found) - expected).abs() <= 2e-5 * scale,
                "{name}, position {position}, token {token}: {found}, expected {expected}"
            );
        }
    }
}

/// The tiny model of each case of `data/tiny/reference.json`; `rope_freqs` are those of `llama-3-factors`.
pub fn cases(rope_freqs: Vec<f32>) -> Vec<(&'static str, Tiny)> {
    let text = |text: &str| Value::String(text.into());
    let tiny = |architecture| Tiny { architecture, ..Tiny::default() };
    let window = |period: usize| {
        let flags = (0..LAYERS).map(|layer| layer % period != period - 1).collect();
        let pattern = ("attention.sliding_window_pattern", Value::Array(Array::Bool(flags)));
        vec![("attention.sliding_window", Value::U32(5)), pattern]
    };
    let mut gemma3 = window(6);
    gemma3.extend([
        ("rope.freq_base", Value::F32(1e6)),
        ("rope.scaling.type", text("linear")),
        ("rope.scaling.factor", Value::F32(8.0)),
    ]);
    let mut muse = window(4);
    muse.extend([("logit_scale", Value::F32(0.5)), ("final_logit_softcapping", Value::F32(3.0))]);
    let linear = vec![("rope.scaling.type", text("linear")), ("rope.scaling.factor", Value::F32(4.0))];
    let yarn = vec![
        ("rope.scaling.type", text("yarn")),
        ("rope.scaling.factor", Value::F32(4.0)),
        ("rope.scaling.original_context_length", Value::U32(16)),
    ];
    let qwen3moe = vec![("rope.freq_base", Value::F32(1e4))];
    let gpt_oss = vec![
        ("attention.sliding_window", Value::U32(5)),
        ("rope.freq_base", Value::F32(1e4)),
        ("rope.scaling.type", text("yarn")),
        ("rope.scaling.factor", Value::F32(4.0)),
        ("rope.scaling.original_context_length", Value::U32(16)),
    ];
    vec![
        ("llama", tiny("llama")),
        ("llama-tied", Tiny { tied: true, ..tiny("llama") }),
        ("llama-linear", Tiny { keys: linear, ..tiny("llama") }),
        ("llama-3-factors", Tiny { rope_freqs: Some(rope_freqs), ..tiny("llama") }),
        ("qwen2", tiny("qwen2")),
        ("qwen2-yarn", Tiny { keys: yarn, ..tiny("qwen2") }),
        ("qwen3", Tiny { keys: vec![("rope.freq_base", Value::F32(1e4))], ..tiny("qwen3") }),
        ("gemma3", Tiny { tied: true, keys: gemma3, ..tiny("gemma3") }),
        ("mixtral", Tiny { experts: 4, ..tiny("llama") }),
        ("qwen2moe", Tiny { experts: 5, ..tiny("qwen2moe") }),
        ("qwen3moe", Tiny { experts: 8, keys: qwen3moe, ..tiny("qwen3moe") }),
        ("gpt-oss", Tiny { experts: 8, keys: gpt_oss, ..tiny("gpt-oss") }),
        ("muse-glimmer", Tiny { keys: muse, ..tiny("muse-glimmer") }),
    ]
}

impl Tiny {
    /// The file's contents, to be changed by a test before it is written.
    pub fn writer(&self) -> Writer {
        let mut writer = Writer::new();
        let key = |name: &str| format!("{}.{name}", self.architecture);
        writer.metadata("general.architecture", Value::String(self.architecture.into()));
        for (name, count) in [
            ("block_count", LAYERS),
            ("context_length", 64),
            ("embedding_length", HIDDEN),
            ("feed_forward_length", FEED_FORWARD),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", KV_HEADS),
            ("attention.key_length", HEAD_DIM),
            ("attention.value_length", HEAD_DIM),
            ("vocab_size", VOCAB),
        ] {
            writer.metadata(&key(name), Value::U32(count as u32));
        }
        writer.metadata(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
        if self.experts > 0 {
            for (name, count) in [
                ("expert_count", self.experts),
                ("expert_used_count", EXPERTS_USED),
                ("expert_feed_forward_length", EXPERT_FEED_FORWARD),
                ("expert_shared_feed_forward_length", SHARED_FEED_FORWARD),
            ] {
                writer.metadata(&key(name), Value::U32(count as u32));
            }
        }
        for (name, value) in &self.keys {
            writer.metadata(&key(name), value.clone());
        }
        write_vocabulary(&mut writer);
        let mut tensor = |name: &str, rows: usize, cols: usize| {
            let wide = [cols as u64, rows as u64, self.experts as u64];
            let shape = match rows {
                _ if name.ends_with("exps.weight") => &[wide[0], wide[1] / wide[2], wide[2]][..],
                1 => &wide[..1],
                _ => &wide[..2],
            };
            let values = weights(name, rows, cols);
            let format =
                self.expert_format.filter(|format| shape.len() == 3 && format.row_bytes(cols).is_some());
            let format = format.unwrap_or(Format::F32);
            let mut bytes = vec![0; rows * format.row_bytes(cols).unwrap()];
            quant::encode(format, &values, &mut bytes).unwrap();
            writer.tensor(name, shape, format, bytes);
        };
        tensor("token_embd.weight", VOCAB, HIDDEN);
        tensor("output_norm.weight", 1, HIDDEN);
        if !self.tied {
            tensor("output.weight", VOCAB, HIDDEN);
        }
        let (post_norms, head_norms) = match self.architecture {
            "gemma3" | "muse-glimmer" => (true, true),
            "qwen3" | "qwen3moe" => (false, true),
            _ => (false, false),
        };
        for layer in 0..LAYERS {
            let mut part = |name: &str, rows, cols| tensor(&format!("blk.{layer}.{name}"), rows, cols);
            part("attn_norm.weight", 1, HIDDEN);
            part("attn_q.weight", HEADS * HEAD_DIM, HIDDEN);
            part("attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN);
            part("attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN);
            part("attn_output.weight", HIDDEN, HEADS * HEAD_DIM);
            let gpt_oss = self.architecture == "gpt-oss";
            part(if gpt_oss { "post_attention_norm.weight" } else { "ffn_norm.weight" }, 1, HIDDEN);
            let mut network = |suffix: &str, count: usize, feed_forward: usize| {
                part(&format!("ffn_gate{suffix}.weight"), count * feed_forward, HIDDEN);
                part(&format!("ffn_up{suffix}.weight"), count * feed_forward, HIDDEN);
                part(&format!("ffn_down{suffix}.weight"), count * HIDDEN, feed_forward);
            };
            match (self.experts, self.architecture) {
                (0, _) => network("", 1, FEED_FORWARD),
                (experts, "llama") => network("_exps", experts, FEED_FORWARD),
                (experts, _) => network("_exps", experts, EXPERT_FEED_FORWARD),
            }
            if self.architecture == "qwen2moe" {
                network("_shexp", 1, SHARED_FEED_FORWARD);
                part("ffn_gate_inp_shexp.weight", 1, HIDDEN);
            }
            if self.experts > 0 {
                part("ffn_gate_inp.weight", self.experts, HIDDEN);
            }
            if gpt_oss {
                part("attn_sinks.weight", 1, HEADS);
                part("attn_output.bias", 1, HIDDEN);
                part("ffn_gate_inp.bias", 1, self.experts);
                part("ffn_gate_exps.bias", self.experts, EXPERT_FEED_FORWARD);
                part("ffn_up_exps.bias", self.experts, EXPERT_FEED_FORWARD);
                part("ffn_down_exps.bias", self.experts, HIDDEN);
            }
            if matches!(self.architecture, "qwen2" | "qwen2moe" | "gpt-oss") {
                part("attn_q.bias", 1, HEADS * HEAD_DIM);
                part("attn_k.bias", 1, KV_HEADS * HEAD_DIM);
                part("attn_v.bias", 1, KV_HEADS * HEAD_DIM);
            }
            if head_norms {
                part("attn_q_norm.weight", 1, HEAD_DIM);
                part("attn_k_norm.weight", 1, HEAD_DIM);
            }
            if post_norms {
                part("post_attention_norm.weight", 1, HIDDEN);
                part("post_ffw_norm.weight", 1, HIDDEN);
            }
            if self.architecture == "muse-glimmer" {
                part("attn_gate.weight", HEADS * HEAD_DIM, HIDDEN);
            }
        }
        if let Some(factors) = &self.rope_freqs {
            let bytes = factors.iter().copied().flat_map(f32::to_le_bytes).collect();
            writer.tensor("rope_freqs.weight", &[factors.len() as u64], Format::F32, bytes);
        }
        writer
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.writer().to_bytes().unwrap())
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

/// A SentencePiece vocabulary: three special tokens and single characters.
fn write_vocabulary(writer: &mut Writer) {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "▁"].map(String::from).to_vec();
    tokens.extend(('a'..='z').chain('A'..='Z').chain('0'..='7').map(String::from));
    assert_eq!(tokens.len(), VOCAB);
    let types = (0..VOCAB as i32)
        .map(|id| {
            if id == 0 {
                2
            } else if id < 3 {
                3
            } else {
                1
            }
        })
        .collect();
    writer.metadata("tokenizer.ggml.model", Value::String("llama".into()));
    writer.metadata("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    writer.metadata(
        "tokenizer.ggml.scores",
        Value::Array(Array::F32((0..VOCAB).map(|id| -(id as f32)).collect())),
    );
    writer.metadata("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
}

/// The weights of a tensor; see `make_reference.py`.
pub fn weights(name: &str, rows: usize, cols: usize) -> Vec<f32> {
    let seed =
        name.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (0..rows * cols)
        .map(|index| {
            let mut z =
                (index as u64).wrapping_add(u64::from(seed) << 32).wrapping_add(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            let uniform = (z >> 40) as f64 / f64::from(1 << 23) - 1.0;
            let value = if rows > 1 {
                uniform * (3.0 / cols as f64).sqrt()
            } else if name.ends_with("norm.weight") {
                1.0 + 0.25 * uniform
            } else {
                0.25 * uniform
            };
            value as f32
        })
        .collect()
}
