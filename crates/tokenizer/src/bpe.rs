//! Byte-pair encoding (Sennrich et al. 2016): byte-level as in GPT-2, or of characters with bytes to fall back on.

use crate::merge::{Merge, Merger};
use crate::pretokenizer::{PreTokenizer, WholePieces};
use crate::vocabulary::{Kind, Vocabulary};
use crate::{Error, alphabet};
use gguf::Metadata;
use hashbrown::HashMap;

/// Merges of two tokens, by rank.
#[derive(Debug)]
pub(crate) struct Bpe {
    pretokenizer: PreTokenizer,
    /// Symbols are bytes to begin with, in the alphabet of byte-level BPE; otherwise characters, `▁` for a blank.
    byte_level: bool,
    /// The token of each single byte.
    bytes: [Option<u32>; 256],
    merges: HashMap<(u32, u32), Merge>,
}

impl Bpe {
    pub fn new(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Bpe, Error> {
        let byte_level = vocabulary.kind == Kind::Bpe;
        let pretokenizer = match byte_level {
            true => PreTokenizer::new(vocabulary.pre.as_deref().unwrap_or("default"))?,
            false => PreTokenizer::lines()?,
        };
        let bytes = match byte_level {
            true => std::array::from_fn(|byte| {
                vocabulary.plain_id_of(alphabet::char_of(byte as u8).encode_utf8(&mut [0; 4]))
            }),
            false => vocabulary.byte_tokens(),
        };
        let entries = metadata.require_strings("tokenizer.ggml.merges")?;
        let mut merges = HashMap::with_capacity(entries.len());
        let mut whole = String::new();
        for (rank, merge) in (0u32..).zip(entries) {
            let broken = |missing: Option<&str>| Error::Merge {
                index: rank as usize,
                found: merge.clone(),
                missing: missing.map(str::to_owned),
            };
            // The first text may begin with a blank in files that do not use the alphabet's sign for it.
            let blank = merge.bytes().skip(1).position(|byte| byte == b' ').map(|at| at + 1);
            let (left, right) = blank
                .and_then(|at| Some((merge.get(..at)?, merge.get(at + 1..)?)))
                .filter(|(_, right)| !right.is_empty())
                .ok_or_else(|| broken(None))?;
            whole.clear();
            whole.push_str(left);
            whole.push_str(right);
            let token = |text: &str| vocabulary.texts.id_of(text).ok_or_else(|| broken(Some(text)));
            let (left, right, token) = (token(left)?, token(right)?, token(&whole)?);
            // Control tokens never come from text.
            if [left, right, token].into_iter().all(|id| vocabulary.is_plain(id)) {
                merges.entry((left, right)).or_insert(Merge { rank, token });
            }
        }
        Ok(Bpe { pretokenizer, byte_level, bytes, merges })
    }

    /// Appends the tokens of a text in which there are no special ones. Bytes for which the vocabulary has no token
    /// are left out.
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let escaped;
        let text = match self.byte_level {
            true => text,
            false => {
                escaped = text.replace(' ', "▁");
                &escaped
            }
        };
        let mut spelling = String::new();
        for piece in self.pretokenizer.split(text) {
            let piece = &text[piece];
            let whole = match self.pretokenizer.whole_pieces {
                WholePieces::Merged => false,
                WholePieces::Token => true,
                WholePieces::LineEnds => piece.starts_with('\n'),
            };
            if let &[byte] = piece.as_bytes()
                && let Some(id) = self.bytes[usize::from(byte)]
                && self.byte_level
            {
                out.push(id);
                continue;
            }
            if whole && let Some(id) = self.whole(vocabulary, piece, &mut spelling) {
                out.push(id);
                continue;
            }
            self.merge(vocabulary, piece, merger, out);
        }
    }

    /// The token that a piece is as a whole.
    fn whole(&self, vocabulary: &Vocabulary, piece: &str, spelling: &mut String) -> Option<u32> {
        if !self.byte_level {
            return vocabulary.plain_id_of(piece);
        }
        spelling.clear();
        alphabet::encode(piece.as_bytes(), spelling);
        vocabulary.plain_id_of(spelling)
    }

    fn merge(&self, vocabulary: &Vocabulary, piece: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        merger.clear();
        if self.byte_level {
            for (at, byte) in piece.bytes().enumerate() {
                merger.push(at..at + 1, self.bytes[usize::from(byte)]);
            }
        } else {
            for (at, c) in piece.char_indices() {
                let range = at..at + c.len_utf8();
                let token = vocabulary.plain_id_of(&piece[range.clone()]);
                merger.push(range, token);
            }
        }
        let symbols = merger.run(|left, right| self.merges.get(&(left.token?, right.token?)).copied());
        for symbol in symbols {
            match symbol.token {
                Some(token) => out.push(token),
                None if self.byte_level => {}
                None => out.extend(piece[symbol.range()].bytes().filter_map(|b| self.bytes[usize::from(b)])),
            }
        }
    }
}
