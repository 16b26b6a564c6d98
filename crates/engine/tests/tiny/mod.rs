//! A model of a few kilobytes: the `llama` architecture with one token per byte.

use engine::{Engine, LoadOptions};
use gguf::{Array, Value, Writer};
use quant::Format;
use std::path::PathBuf;

/// Tokens of the vocabulary.
pub const VOCABULARY: usize = 256;
/// Columns of a hidden state.
pub const HIDDEN: usize = 32;
const FEED_FORWARD: usize = 32;

/// What distinguishes one model from another.
#[derive(Clone, Copy, Debug)]
pub struct Tiny {
    /// Tokens of the vocabulary, of which the embedding has [`VOCABULARY`].
    pub tokens: usize,
    /// The name of a tokenizer model.
    pub tokenizer: &'static str,
    /// Attention heads, with as many keys and values.
    pub heads: u32,
    /// What every logit is a multiple of.
    pub factor: f32,
    /// The format of the layers' matrices.
    pub format: Format,
    /// Layers, all of the same weights.
    pub layers: u32,
    /// Positions that each layer sees, where that is not all.
    pub window: Option<u32>,
}

impl Default for Tiny {
    fn default() -> Tiny {
        Tiny {
            tokens: VOCABULARY,
            tokenizer: "gpt2",
            heads: 1,
            factor: 1.0,
            format: Format::F32,
            layers: 1,
            window: None,
        }
    }
}

/// The model as a file in the folder of temporary files, gone with this.
pub struct TinyFile(PathBuf);

impl TinyFile {
    /// `name` keeps the files of different tests apart.
    pub fn new(name: &str, tiny: Tiny) -> TinyFile {
        TinyFile::of(name, &tiny.writer())
    }

    /// Any file.
    pub fn of(name: &str, writer: &Writer) -> TinyFile {
        let path = std::env::temp_dir().join(format!("smelt-engine-{}-{name}.gguf", std::process::id()));
        std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
        TinyFile(path)
    }

    pub fn load(&self, options: &LoadOptions) -> Result<Engine, engine::Error> {
        Engine::load(&self.0, options, &mut |_, _| {})
    }

    /// A path beside the file, for something that a test makes; with `gguf`, the file itself.
    pub fn beside(&self, extension: &str) -> PathBuf {
        self.0.with_extension(extension)
    }
}

impl Drop for TinyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Tiny {
    fn writer(&self) -> Writer {
        let mut writer = Writer::new();
        writer.metadata("general.architecture", Value::String("llama".into()));
        for (key, value) in [
            ("block_count", self.layers),
            ("context_length", 256),
            ("embedding_length", HIDDEN as u32),
            ("feed_forward_length", FEED_FORWARD as u32),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.heads),
        ] {
            writer.metadata(&format!("llama.{key}"), Value::U32(value));
        }
        if let Some(window) = self.window {
            writer.metadata("llama.attention.sliding_window", Value::U32(window));
        }
        writer.metadata("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
        let texts = (0..self.tokens).map(|id| format!("t{id}")).collect();
        writer.metadata("tokenizer.ggml.model", Value::String(self.tokenizer.into()));
        writer.metadata("tokenizer.ggml.pre", Value::String("gpt-2".into()));
        writer.metadata("tokenizer.ggml.tokens", Value::Array(Array::String(texts)));
        writer.metadata("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1; self.tokens])));
        writer.metadata("tokenizer.ggml.merges", Value::Array(Array::String(Vec::new())));
        let mut matrix = |name: &str, rows: usize, factor: f32| {
            let values: Vec<f32> = (0..rows * HIDDEN).map(|i| factor * wave(i)).collect();
            let format = if name.starts_with("blk") { self.format } else { Format::F32 };
            let mut data = vec![0; format.row_bytes(HIDDEN).unwrap() * rows];
            match format {
                // Any number, also those that no block can hold.
                Format::F32 => data = values.iter().flat_map(|value| value.to_le_bytes()).collect(),
                _ => quant::encode(format, &values, &mut data).unwrap(),
            }
            writer.tensor(name, &[HIDDEN as u64, rows as u64], format, data);
        };
        matrix("token_embd.weight", VOCABULARY, 1.0);
        matrix("output.weight", VOCABULARY, self.factor);
        for layer in 0..self.layers {
            for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
                matrix(&format!("blk.{layer}.{part}.weight"), HIDDEN, 1.0);
            }
            for part in ["ffn_gate", "ffn_up", "ffn_down"] {
                matrix(&format!("blk.{layer}.{part}.weight"), FEED_FORWARD, 1.0);
            }
        }
        let ones: Vec<u8> = [1.0f32; HIDDEN].iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let norms = |layer| ["attn_norm", "ffn_norm"].map(|part| format!("blk.{layer}.{part}.weight"));
        for name in (0..self.layers).flat_map(norms).chain(["output_norm.weight".into()]) {
            writer.tensor(&name, &[HIDDEN as u64], Format::F32, ones.clone());
        }
        writer
    }
}

/// Some number between -0.5 and 0.5 for each index.
pub fn wave(index: usize) -> f32 {
    (index as f32 * 0.7).sin() / 2.0
}
