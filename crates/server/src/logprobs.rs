//! Log-probabilities of an answer's tokens: kept as compact as they come from the engine, written when they are told.

use crate::memory::Account;
use engine::{Token, TokenLogProb};
use serde::ser::{SerializeMap, SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use tokenizer::Tokenizer;

/// Bytes that the text of one log-probability takes at most beside those of its token: names, numbers and brackets.
const TEXT: usize = 96;

/// Bytes that a byte of a token takes at most in both of its texts: as a number, and escaped.
const TEXT_PER_BYTE: usize = 4 + 6;

/// A token of an answer.
#[derive(Debug)]
pub struct Entry {
    id: u32,
    logprob: f64,
    top: Box<[TokenLogProb]>,
    /// Characters of the text before it.
    offset: usize,
}

/// The log-probabilities of an answer's tokens. Where there is no room for them they end, and it is counted how many are
/// missing.
#[derive(Debug, Default)]
pub struct LogProbs {
    entries: Vec<Entry>,
    dropped: usize,
}

impl LogProbs {
    /// Adds a token, if there is room for it and what will be written of it.
    pub fn push(&mut self, token: Token, offset: usize, tokenizer: &Tokenizer, account: &mut Account) {
        let logprob = token.logprob.unwrap_or(f64::NEG_INFINITY);
        let entry = Entry { id: token.id, logprob, top: token.top.into(), offset };
        if self.dropped == 0 && account.grow(entry.bytes(tokenizer)).is_ok() {
            self.entries.push(entry);
        } else {
            self.dropped += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.dropped == 0
    }

    /// Tokens that are missing at the end.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Moves all of `others` to the end.
    pub fn append(&mut self, others: &mut LogProbs) {
        self.entries.append(&mut others.entries);
        self.dropped += std::mem::take(&mut others.dropped);
    }

    /// Takes the tokens that begin within the first `chars` characters, to be told and given back.
    pub fn begun_within(&mut self, chars: usize) -> LogProbs {
        let end = self.entries.partition_point(|entry| entry.offset < chars);
        let rest = self.entries.split_off(end);
        LogProbs {
            entries: std::mem::replace(&mut self.entries, rest),
            dropped: std::mem::take(&mut self.dropped),
        }
    }

    /// Forgets the tokens that begin behind the first `chars` characters: those of a text that ends an answer.
    pub fn cut(&mut self, chars: usize, tokenizer: &Tokenizer) {
        self.entries.retain(|entry| entry.offset < chars || tokenizer.text_bytes(entry.id).is_empty());
    }

    /// Gives their room back.
    pub fn forget(self, tokenizer: &Tokenizer, account: &mut Account) {
        account.shrink(self.entries.iter().map(|entry| entry.bytes(tokenizer)).sum());
    }

    /// As a conversation's answers have them.
    pub fn of_chat<'a>(&'a self, tokenizer: &'a Tokenizer) -> ChatLogProbs<'a> {
        ChatLogProbs { content: self.list(tokenizer), refusal: None, dropped: self.dropped }
    }

    /// As a text's answers have them.
    pub fn of_text<'a>(&'a self, tokenizer: &'a Tokenizer) -> TextLogProbs<'a> {
        TextLogProbs { entries: &self.entries, dropped: self.dropped, tokenizer }
    }

    /// The tokens alone.
    pub fn list<'a>(&'a self, tokenizer: &'a Tokenizer) -> List<'a> {
        List { entries: &self.entries, tokenizer }
    }
}

impl Entry {
    /// Bytes that it takes, and that its text will.
    fn bytes(&self, tokenizer: &Tokenizer) -> usize {
        let ids = self.top.iter().map(|top| top.id).chain([self.id]);
        let texts = ids.map(|id| TEXT + TEXT_PER_BYTE * tokenizer.token_bytes(id).len());
        size_of::<Entry>() + size_of_val(&*self.top) + texts.sum::<usize>()
    }
}

/// JSON has no infinity; this is what OpenAI's API has in its place.
fn finite(logprob: f64) -> f64 {
    logprob.max(-9999.0)
}

fn text(tokenizer: &Tokenizer, id: u32) -> Cow<'_, str> {
    String::from_utf8_lossy(tokenizer.token_bytes(id))
}

/// See [`LogProbs::of_chat`].
#[derive(Serialize)]
pub struct ChatLogProbs<'a> {
    content: List<'a>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "is_zero")]
    dropped: usize,
}

/// Whether a count need not be told.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "so it is called")]
pub fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// See [`LogProbs::list`].
pub struct List<'a> {
    entries: &'a [Entry],
    tokenizer: &'a Tokenizer,
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.entries.iter().map(|entry| Listed {
            id: entry.id,
            logprob: entry.logprob,
            top: Some(&entry.top),
            tokenizer: self.tokenizer,
        }))
    }
}

/// A token of a [`List`], or one of the most likely in its place.
struct Listed<'a> {
    id: u32,
    logprob: f64,
    top: Option<&'a [TokenLogProb]>,
    tokenizer: &'a Tokenizer,
}

impl Serialize for Listed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry("token", &text(self.tokenizer, self.id))?;
        fields.serialize_entry("logprob", &finite(self.logprob))?;
        fields.serialize_entry("bytes", self.tokenizer.token_bytes(self.id))?;
        if let Some(top) = self.top {
            fields.serialize_entry("top_logprobs", &Top { top, tokenizer: self.tokenizer })?;
        }
        fields.end()
    }
}

struct Top<'a> {
    top: &'a [TokenLogProb],
    tokenizer: &'a Tokenizer,
}

impl Serialize for Top<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.top.len()))?;
        for top in self.top {
            let (id, logprob) = (top.id, top.log_prob);
            list.serialize_element(&Listed { id, logprob, top: None, tokenizer: self.tokenizer })?;
        }
        list.end()
    }
}

/// See [`LogProbs::of_text`].
pub struct TextLogProbs<'a> {
    entries: &'a [Entry],
    dropped: usize,
    tokenizer: &'a Tokenizer,
}

impl Serialize for TextLogProbs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let dropped = usize::from(self.dropped > 0);
        let mut fields = serializer.serialize_struct("logprobs", 4 + dropped)?;
        let tokens = self.entries.iter().map(|entry| text(self.tokenizer, entry.id));
        fields.serialize_field("tokens", &Column(tokens))?;
        fields.serialize_field(
            "token_logprobs",
            &Column(self.entries.iter().map(|entry| finite(entry.logprob))),
        )?;
        let top = self.entries.iter().map(|entry| ByText { top: &entry.top, tokenizer: self.tokenizer });
        fields.serialize_field("top_logprobs", &Column(top))?;
        fields.serialize_field("text_offset", &Column(self.entries.iter().map(|entry| entry.offset)))?;
        if dropped > 0 {
            fields.serialize_field("dropped", &self.dropped)?;
        }
        fields.end()
    }
}

/// One thing about each token.
struct Column<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Column<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

/// The most likely tokens by their texts.
struct ByText<'a> {
    top: &'a [TokenLogProb],
    tokenizer: &'a Tokenizer,
}

impl Serialize for ByText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        for (at, top) in self.top.iter().enumerate() {
            let name = text(self.tokenizer, top.id);
            // Parts of characters look alike; the most likely one comes first.
            if !self.top[..at].iter().any(|before| text(self.tokenizer, before.id) == name) {
                fields.serialize_entry(&name, &finite(top.log_prob))?;
            }
        }
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::to_json;
    use crate::memory::Memory;
    use gguf::{Array, Header, Value, Writer};
    use serde_json::json;

    fn tokenizer() -> Tokenizer {
        let mut file = Writer::new();
        let texts = ["a", "b", "\u{c3}", "\u{a9}"].map(str::to_owned).to_vec();
        file.metadata("tokenizer.ggml.model", Value::String("gpt2".into()))
            .metadata("tokenizer.ggml.pre", Value::String("gpt-2".into()))
            .metadata("tokenizer.ggml.tokens", Value::Array(Array::String(texts)))
            .metadata("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1; 4])))
            .metadata("tokenizer.ggml.merges", Value::Array(Array::String(Vec::new())));
        Tokenizer::from_metadata(Header::parse(&file.to_bytes().unwrap()).unwrap().metadata()).unwrap()
    }

    fn token(id: u32) -> Token {
        let top = [id, 2, 3].map(|id| TokenLogProb { id, log_prob: -1.5 }).to_vec();
        Token { id, logprob: Some(-0.25), top }
    }

    #[test]
    fn where_there_is_no_room_they_end_and_it_is_told() {
        let tokenizer = tokenizer();
        let memory = Memory::of_bytes(1 << 10, "tests");
        let mut account = memory.account();
        let mut logprobs = LogProbs::default();
        for offset in 0..10_000 {
            logprobs.push(token(0), offset, &tokenizer, &mut account);
        }
        let kept = 10_000 - logprobs.dropped();
        assert!((50..200).contains(&kept), "{kept}");
        let (chat, text) = (to_json(&logprobs.of_chat(&tokenizer)), to_json(&logprobs.of_text(&tokenizer)));
        let (chat, text): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(&chat).unwrap(), serde_json::from_str(&text).unwrap());
        assert_eq!(
            (chat["content"].as_array().unwrap().len(), &chat["dropped"]),
            (kept, &json!(logprobs.dropped()))
        );
        assert_eq!(
            (text["tokens"].as_array().unwrap().len(), &text["dropped"]),
            (kept, &json!(logprobs.dropped()))
        );
        // As many bytes as were counted, at least.
        assert!(chat.to_string().len() < account.bytes());
        logprobs.forget(&tokenizer, &mut account);
        assert_eq!(account.bytes(), 0);
    }

    #[test]
    fn they_are_told_with_their_text() {
        let tokenizer = tokenizer();
        let mut account = Memory::of_bytes(1 << 20, "tests").account();
        let mut logprobs = LogProbs::default();
        for (id, offset) in [(0, 0), (2, 1), (3, 1), (1, 2)] {
            logprobs.push(token(id), offset, &tokenizer, &mut account);
        }
        let offsets = |logprobs: &LogProbs| {
            let json = to_json(&logprobs.of_text(&tokenizer));
            serde_json::from_str::<serde_json::Value>(&json).unwrap()["text_offset"].clone()
        };
        assert!(logprobs.begun_within(0).is_empty());
        assert_eq!(offsets(&logprobs.begun_within(2)), json!([0, 1, 1]));
        assert_eq!(offsets(&logprobs), json!([2]));
        logprobs.cut(2, &tokenizer);
        assert!(logprobs.is_empty());
    }

    #[test]
    fn they_are_written_as_each_api_has_them() {
        let tokenizer = tokenizer();
        let mut account = Memory::of_bytes(1 << 20, "tests").account();
        let mut logprobs = LogProbs::default();
        let never = Token { logprob: Some(f64::NEG_INFINITY), ..token(1) };
        logprobs.push(never, 0, &tokenizer, &mut account);
        let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
        let entry = |token: &str, bytes: &[u8], logprob: f64| json!({"token": token, "logprob": logprob, "bytes": bytes});
        let mut whole = entry("b", b"b", -9999.0);
        whole["top_logprobs"] = json!([
            entry("b", b"b", -1.5),
            entry("\u{fffd}", &[0xc3], -1.5),
            entry("\u{fffd}", &[0xa9], -1.5)
        ]);
        assert_eq!(
            json(to_json(&logprobs.of_chat(&tokenizer))),
            json!({"content": [whole], "refusal": null})
        );
        assert_eq!(json(to_json(&logprobs.list(&tokenizer))), json!([whole]));
        let text = json!({
            "tokens": ["b"], "token_logprobs": [-9999.0], "text_offset": [0],
            // Halves of characters look alike.
            "top_logprobs": [{"b": -1.5, "\u{fffd}": -1.5}],
        });
        assert_eq!(json(to_json(&logprobs.of_text(&tokenizer))), text);
    }
}
