//! Small vocabularies, written and read as files are.

#![allow(dead_code, reason = "no test file uses all of it")]

use gguf::{Array, Header, Metadata, Value, Writer};
use tokenizer::{EncodeOptions, Error, Tokenizer};

/// Special tokens parsed, none added.
pub const PARSED: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
/// Everything is plain text.
pub const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// Token types as files number them.
pub const NORMAL: i32 = 1;
pub const UNKNOWN: i32 = 2;
pub const CONTROL: i32 = 3;
pub const USER_DEFINED: i32 = 4;
pub const BYTE: i32 = 6;

/// Keys of `tokenizer.ggml`, with their values.
#[derive(Clone, Debug)]
pub struct Keys(pub Vec<(String, Value)>);

impl Keys {
    pub fn new(model: &str) -> Keys {
        Keys(Vec::new()).with("model", text(model))
    }

    /// The same with a key set.
    pub fn with(mut self, name: &str, value: Value) -> Keys {
        self = self.without(name);
        self.0.push((format!("tokenizer.ggml.{name}"), value));
        self
    }

    /// The same with a key left out.
    pub fn without(mut self, name: &str) -> Keys {
        self.0.retain(|(key, _)| *key != format!("tokenizer.ggml.{name}"));
        self
    }

    /// The same with tokens, their types and scores, which fall from token to token.
    pub fn with_tokens(self, tokens: &[(String, i32)]) -> Keys {
        let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
        self.with("tokens", strings(tokens.iter().map(|(text, _)| text)))
            .with("token_type", Value::Array(Array::I32(tokens.iter().map(|&(_, kind)| kind).collect())))
            .with("scores", Value::Array(Array::F32(scores)))
    }

    pub fn metadata(&self) -> Metadata {
        let mut writer = Writer::new();
        for (key, value) in &self.0 {
            writer.metadata(key, value.clone());
        }
        Header::parse(&writer.to_bytes().unwrap()).unwrap().metadata().clone()
    }

    pub fn load(&self) -> Result<Tokenizer, Error> {
        Tokenizer::from_metadata(&self.metadata())
    }

    pub fn tokenizer(&self) -> Tokenizer {
        self.load().unwrap()
    }
}

pub fn text(value: &str) -> Value {
    Value::String(value.into())
}

pub fn strings<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Value {
    Value::Array(Array::String(values.into_iter().map(|value| value.as_ref().to_owned()).collect()))
}

/// The character of a byte in byte-level BPE, as GPT-2's paper has it.
pub fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    match printable(byte) {
        true => char::from(byte),
        false => char::from_u32(256 + (0..byte).filter(|&b| !printable(b)).count() as u32).unwrap(),
    }
}

/// Byte-level BPE with a token for each byte (id = byte), for each of these merges, and for each special text.
pub fn byte_level(pre: &str, merges: &[(&str, &str)], special: &[(&str, i32)]) -> Keys {
    let mut tokens: Vec<(String, i32)> =
        (0..=255).map(|byte| (byte_char(byte).to_string(), NORMAL)).collect();
    tokens.extend(merges.iter().map(|(left, right)| (format!("{left}{right}"), NORMAL)));
    tokens.extend(special.iter().map(|&(text, kind)| (text.to_owned(), kind)));
    Keys::new("gpt2")
        .with("pre", text(pre))
        .with_tokens(&tokens)
        .with("merges", strings(merges.iter().map(|(left, right)| format!("{left} {right}"))))
}

/// SentencePiece with `<unk>`, `<s>`, `</s>`, a token for each byte (id = byte + 3) and these tokens.
pub fn sentencepiece(tokens: &[(&str, i32)]) -> Keys {
    let mut all: Vec<(String, i32)> =
        [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)].map(|(t, k)| (t.to_owned(), k)).to_vec();
    all.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    all.extend(tokens.iter().map(|&(text, kind)| (text.to_owned(), kind)));
    Keys::new("llama").with_tokens(&all)
}
