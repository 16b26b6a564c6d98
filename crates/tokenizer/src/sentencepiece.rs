//! SentencePiece's BPE (Kudo and Richardson 2018): neighbours whose union is the best-scored token merge first.

use crate::vocabulary::{Vocabulary, byte_token};
use crate::{Error, TokenType};
use gguf::Metadata;
use rustc_hash::FxHashMap;
use std::collections::BinaryHeap;

/// Tokens by text, with scores.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    tokens: FxHashMap<Box<str>, u32>,
    scores: Vec<f32>,
    /// The token of each single byte, for text that is in no token.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
}

#[derive(Clone, Copy)]
struct Symbol {
    /// Where its text begins, and its bytes; 0 once it is merged into the one before.
    start: u32,
    len: u32,
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// A possible merge; the greatest is the next.
#[derive(PartialEq)]
struct Pair {
    score: f32,
    left: u32,
    right: u32,
    len: u32,
}

impl Eq for Pair {}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> std::cmp::Ordering {
        // Best score first, then leftmost.
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl SentencePiece {
    pub fn new(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<SentencePiece, Error> {
        let key = "tokenizer.ggml.scores";
        let scores = metadata.require_f32s(key)?.to_vec();
        if scores.len() != vocabulary.texts.len() {
            return Err(Error::Length { key, found: scores.len(), expected: vocabulary.texts.len() });
        }
        let mut tokens = FxHashMap::default();
        let mut bytes = [None; 256];
        for (id, text) in vocabulary.texts.iter().enumerate() {
            match vocabulary.types[id] {
                // Neither control tokens nor bytes may come from text that spells them.
                TokenType::Control | TokenType::Unknown => {}
                TokenType::Byte => {
                    if let Some(byte) = byte_token(text) {
                        bytes[usize::from(byte)].get_or_insert(id as u32);
                    }
                }
                TokenType::Normal | TokenType::UserDefined | TokenType::Unused => {
                    tokens.entry(text.as_str().into()).or_insert(id as u32);
                }
            }
        }
        Ok(SentencePiece { tokens, scores, bytes, unknown: vocabulary.unknown })
    }

    /// Appends the tokens of a text in which there are no special ones; a prefix blank is the caller's business.
    /// Merges in `n log n` steps for `n` characters.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let text = text.replace(' ', "▁");
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let at = symbols.len() as u32;
            let (start, len) = (start as u32, c.len_utf8() as u32);
            symbols.push(Symbol { start, len, previous: at.wrapping_sub(1), next: at + 1 });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() as u32 {
            self.push(&mut queue, &text, &symbols, right - 1, right);
        }
        while let Some(Pair { left, right, len, .. }) = queue.pop() {
            let (first, second) = (symbols[left as usize], symbols[right as usize]);
            // An entry is stale once either side has merged with something else.
            if first.len == 0 || second.len == 0 || first.len + second.len != len || first.next != right {
                continue;
            }
            symbols[left as usize] = Symbol { len, next: second.next, ..first };
            symbols[right as usize].len = 0;
            if second.next != NONE {
                symbols[second.next as usize].previous = left;
            }
            self.push(&mut queue, &text, &symbols, first.previous, left);
            self.push(&mut queue, &text, &symbols, left, second.next);
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let piece = &text[symbol.start as usize..(symbol.start + symbol.len) as usize];
            match self.tokens.get(piece) {
                Some(&id) => out.push(id),
                None => {
                    out.extend(
                        piece.bytes().filter_map(|byte| self.bytes[usize::from(byte)].or(self.unknown)),
                    );
                }
            }
        }
    }

    fn push(&self, queue: &mut BinaryHeap<Pair>, text: &str, symbols: &[Symbol], left: u32, right: u32) {
        if left == NONE || right == NONE {
            return;
        }
        let (first, second) = (symbols[left as usize], symbols[right as usize]);
        let len = first.len + second.len;
        if let Some(&id) = self.tokens.get(&text[first.start as usize..(first.start + len) as usize]) {
            queue.push(Pair { score: self.scores[id as usize], left, right, len });
        }
    }
}
