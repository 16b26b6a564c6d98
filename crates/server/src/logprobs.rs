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
