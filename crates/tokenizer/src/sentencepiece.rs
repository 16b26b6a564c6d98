//! SentencePiece's BPE (Kudo and Richardson 2018): neighbours whose union is the best-scored token merge first.

use crate::Error;
use crate::merge::{Merge, Merger};
use crate::vocabulary::Vocabulary;
use gguf::Metadata;

/// Tokens merge in the order of their scores.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    /// By token: the higher its score, the lower its rank.
    ranks: Vec<u32>,
    /// The token of each single byte, for text that is in no token.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    /// Blanks at both ends are dropped and runs of them become one.
    remove_extra_whitespaces: bool,
}

impl SentencePiece {
    pub fn new(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<SentencePiece, Error> {
        let key = "tokenizer.ggml.scores";
        let scores = metadata.require_f32s(key)?;
        if scores.len() != vocabulary.texts.len() {
            return Err(Error::Length { key, found: scores.len(), expected: vocabulary.texts.len() });
        }
        let remove = metadata.bool("tokenizer.ggml.remove_extra_whitespaces")?;
        Ok(SentencePiece {
            ranks: scores.iter().copied().map(rank).collect(),
            bytes: vocabulary.byte_tokens(),
            unknown: vocabulary.unknown,
            remove_extra_whitespaces: remove.unwrap_or(false),
        })
    }

    /// Appends the tokens of a text in which there are no special ones, after a blank if `prefix`.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        prefix: bool,
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        let text = self.normalize(text, prefix);
        merger.clear();
        for (at, c) in text.char_indices() {
            let range = at..at + c.len_utf8();
            merger.push(range.clone(), vocabulary.plain_id_of(&text[range]));
        }
        let symbols = merger.run(|left, right| {
            let token = vocabulary.plain_id_of(&text[left.range().start..right.range().end])?;
            Some(Merge { rank: *self.ranks.get(token as usize)?, token })
        });
        for symbol in symbols {
            match symbol.token {
                Some(token) => out.push(token),
                None => {
                    let bytes = text[symbol.range()].bytes();
                    out.extend(bytes.filter_map(|byte| self.bytes[usize::from(byte)].or(self.unknown)));
                }
            }
        }
    }

    /// The text as tokens spell it, with `▁` for blanks.
    fn normalize(&self, text: &str, prefix: bool) -> String {
        let mut normal = String::with_capacity(text.len() + text.len() / 2);
        let text = if self.remove_extra_whitespaces { text.trim_matches(' ') } else { text };
        if text.is_empty() {
            return normal;
        }
        if prefix {
            normal.push('▁');
        }
        let mut after_blank = false;
        for c in text.chars() {
            let blank = c == ' ';
            if !(blank && after_blank && self.remove_extra_whitespaces) {
                normal.push(if blank { '▁' } else { c });
            }
            after_blank = blank;
        }
        normal
    }
}

/// Ranks in the order of falling scores; what is no number comes last.
fn rank(score: f32) -> u32 {
    // Adding zero makes the two zeros one. The bits of positive floats are in the order of the floats, those of
    // negative ones in the reverse order.
    let score = if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 };
    let bits = score.to_bits();
    if score.is_sign_negative() { bits } else { !(bits | 1 << 31) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_fall_as_scores_rise() {
        let scores = [f32::INFINITY, 2.0, 1.0, 0.0, -1.0, -2.0, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!(rank(0.0), rank(-0.0));
        assert_eq!(rank(f32::NAN), rank(f32::NEG_INFINITY));
    }
}
