//! Byte-level byte-pair encoding (Sennrich et al. 2016, on bytes as in GPT-2).

use crate::pretokenizer::PreTokenizer;
use crate::vocabulary::Vocabulary;
use crate::{Error, TokenType, alphabet};
use gguf::Metadata;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Merges of two tokens, by rank.
#[derive(Debug)]
pub(crate) struct Bpe {
    pretokenizer: PreTokenizer,
    /// The token of each single byte.
    bytes: [Option<u32>; 256],
    /// Rank and result of each pair that merges.
    merges: FxHashMap<(u32, u32), (u32, u32)>,
    /// Tokens by the bytes that they stand for.
    whole: FxHashMap<Box<[u8]>, u32>,
    unknown: Option<u32>,
}

/// A token in the list of those that a piece consists of so far.
#[derive(Clone, Copy)]
struct Symbol {
    token: u32,
    /// Neighbours in the list; `NONE` at the ends.
    previous: u32,
    next: u32,
    alive: bool,
}

const NONE: u32 = u32::MAX;

impl Bpe {
    pub fn new(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Bpe, Error> {
        let pretokenizer = PreTokenizer::new(metadata.str("tokenizer.ggml.pre")?)?;
        let mut by_text: FxHashMap<&str, u32> = FxHashMap::default();
        let mut whole = FxHashMap::default();
        for (id, text) in vocabulary.texts.iter().enumerate() {
            // Control tokens never come from text.
            if matches!(vocabulary.types[id], TokenType::Control | TokenType::Unknown) {
                continue;
            }
            by_text.entry(text).or_insert(id as u32);
            whole.entry(vocabulary.bytes[id].clone()).or_insert(id as u32);
        }
        let mut merges = FxHashMap::default();
        let entries = metadata.require_strings("tokenizer.ggml.merges")?;
        merges.reserve(entries.len());
        for (rank, merge) in entries.iter().enumerate() {
            // The first text may begin with a blank in files that do not use the alphabet's sign for it.
            let at = merge.bytes().skip(1).position(|b| b == b' ').map(|at| at + 1);
            let Some((left, right)) = at.map(|at| (&merge[..at], &merge[at + 1..])) else {
                return Err(Error::Merge { index: rank, found: merge.clone() });
            };
            let tokens =
                (by_text.get(left), by_text.get(right), by_text.get(format!("{left}{right}").as_str()));
            // A merge of or into what is no token can never take part in a result.
            if let (Some(&left), Some(&right), Some(&result)) = tokens {
                merges.entry((left, right)).or_insert((rank as u32, result));
            }
        }
        let bytes = std::array::from_fn(|byte| {
            by_text.get(alphabet::char_of(byte as u8).encode_utf8(&mut [0; 4]) as &str).copied()
        });
        Ok(Bpe { pretokenizer, bytes, merges, whole, unknown: vocabulary.unknown })
    }

    /// Appends the tokens of a text in which there are no special ones.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        for piece in self.pretokenizer.split(text) {
            let piece = &text.as_bytes()[piece];
            if (self.pretokenizer.whole_pieces || piece.len() == 1)
                && let Some(&id) = self.whole.get(piece)
            {
                out.push(id);
                continue;
            }
            self.merge(piece, out);
        }
    }

    /// Merges a piece, best pair first, the leftmost of equals: in `n log n` steps for `n` bytes.
    fn merge(&self, piece: &[u8], out: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(piece.len());
        for token in piece.iter().filter_map(|&byte| self.bytes[usize::from(byte)].or(self.unknown)) {
            let at = symbols.len() as u32;
            symbols.push(Symbol { token, previous: at.wrapping_sub(1), next: at + 1, alive: true });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut queue = BinaryHeap::with_capacity(symbols.len());
        let push = |queue: &mut BinaryHeap<_>, symbols: &[Symbol], left: u32, right: u32| {
            if left == NONE || right == NONE {
                return;
            }
            let pair = (symbols[left as usize].token, symbols[right as usize].token);
            if let Some(&(rank, result)) = self.merges.get(&pair) {
                queue.push(Reverse((rank, left, right, pair, result)));
            }
        };
        for right in 1..symbols.len() as u32 {
            push(&mut queue, &symbols, right - 1, right);
        }
        while let Some(Reverse((_, left, right, pair, result))) = queue.pop() {
            let (first, second) = (symbols[left as usize], symbols[right as usize]);
            // An entry is stale once either side has merged with something else.
            if !first.alive || !second.alive || first.next != right || (first.token, second.token) != pair {
                continue;
            }
            symbols[right as usize].alive = false;
            symbols[left as usize] = Symbol { token: result, next: second.next, ..first };
            if second.next != NONE {
                symbols[second.next as usize].previous = left;
            }
            push(&mut queue, &symbols, first.previous, left);
            push(&mut queue, &symbols, left, second.next);
        }
        out.extend(symbols.iter().filter(|symbol| symbol.alive).map(|symbol| symbol.token));
    }
}
