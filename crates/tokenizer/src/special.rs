//! Tokens that are matched on raw text, before anything else: control tokens and user-defined ones.

use crate::vocabulary::{Kind, Vocabulary};
use crate::{Error, TokenType};
use aho_corasick::{AhoCorasick, Input, MatchKind};
use gguf::Metadata;
use std::ops::Range;

/// A stretch of text, or a token that was found in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    Text(Range<usize>),
    Token(u32),
}

/// Finds special tokens, leftmost and longest first.
#[derive(Debug)]
pub(crate) struct SpecialTokens {
    all: Matcher,
    user_defined: Matcher,
}

#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    /// By pattern of the automaton.
    tokens: Vec<Special>,
}

#[derive(Clone, Copy, Debug)]
struct Special {
    id: u32,
    user_defined: bool,
    /// White space before the token is part of it.
    strip_left: bool,
    /// White space after the token is part of it.
    strip_right: bool,
}

impl SpecialTokens {
    pub fn new(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<SpecialTokens, Error> {
        let strips = Strips::of(metadata, vocabulary)?;
        let matcher = |types: &[TokenType]| {
            let tokens = vocabulary.texts.iter().zip(&vocabulary.types);
            let wanted = tokens.filter(|((_, text), kind)| types.contains(kind) && !text.is_empty());
            let (texts, tokens): (Vec<&str>, Vec<Special>) = wanted
                .map(|((id, text), &kind)| {
                    let user_defined = kind == TokenType::UserDefined;
                    let (strip_left, strip_right) = strips.sides(text);
                    (text, Special { id, user_defined, strip_left, strip_right })
                })
                .unzip();
            let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
            automaton
                .map(|automaton| Matcher { automaton, tokens })
                .map_err(|error| Error::SpecialTokens(error.into()))
        };
        Ok(SpecialTokens {
            all: matcher(&[TokenType::Control, TokenType::Unknown, TokenType::UserDefined])?,
            user_defined: matcher(&[TokenType::UserDefined])?,
        })
    }

    /// Splits a text. Control tokens are only found if `parse_special`, and never where they would touch a literal
    /// range (ascending, not overlapping); user-defined tokens are text that is always one token, so they are found
    /// everywhere.
    pub fn split(&self, text: &str, parse_special: bool, literal: &[Range<usize>]) -> Vec<Fragment> {
        let matcher = if parse_special { &self.all } else { &self.user_defined };
        let mut fragments = Vec::new();
        let push_text = |fragments: &mut Vec<Fragment>, range: Range<usize>| {
            if !range.is_empty() {
                fragments.push(Fragment::Text(range));
            }
        };
        let mut done = 0;
        let mut at = 0;
        while let Some((found, special)) = matcher.find(text, at..text.len()) {
            let Some((found, special)) = matcher.allowed(text, found.clone(), special, literal) else {
                // What the token begins with is text.
                at = found.start + text[found.start..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            let mut before = done..found.start;
            if special.strip_left {
                before.end = done + text[before.clone()].trim_end().len();
            }
            push_text(&mut fragments, before);
            fragments.push(Fragment::Token(special.id));
            done = found.end;
            if special.strip_right {
                done = text.len() - text[done..].trim_start().len();
            }
            at = done;
        }
        push_text(&mut fragments, done..text.len());
        fragments
    }
}

impl Matcher {
    fn find(&self, text: &str, range: Range<usize>) -> Option<(Range<usize>, Special)> {
        let found = self.automaton.find(Input::new(text).range(range))?;
        Some((found.range(), *self.tokens.get(found.pattern().as_usize())?))
    }

    /// The longest token that begins where `found` does and may be there.
    fn allowed(
        &self,
        text: &str,
        mut found: Range<usize>,
        mut special: Special,
        literal: &[Range<usize>],
    ) -> Option<(Range<usize>, Special)> {
        let start = found.start;
        while !special.user_defined && touches(&found, literal) {
            (found, special) = self.find(text, start..found.end - 1)?;
            if found.start != start {
                return None;
            }
        }
        Some((found, special))
    }
}

/// Whether a match overlaps a literal range, or spans an empty one.
fn touches(found: &Range<usize>, literal: &[Range<usize>]) -> bool {
    let first = literal.partition_point(|range| range.end <= found.start);
    literal[first..].iter().take_while(|range| range.start < found.end).any(|range| range.end > found.start)
}

/// Which tokens take the white space beside them. Files do not say; these models are known to.
enum Strips {
    None,
    /// All but a few, on the right.
    Phi3,
    /// One token, on the left.
    Mask(&'static str),
}

impl Strips {
    fn of(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Strips, Error> {
        let name = metadata.str("general.name")?.unwrap_or_default().to_lowercase();
        let pre = vocabulary.pre.as_deref().unwrap_or_default();
        Ok(match vocabulary.kind {
            Kind::SentencePiece if name.contains("phi-3") || name.contains("phi3") => Strips::Phi3,
            Kind::Bpe if ["jina-v2-de", "jina-v2-es", "jina-v2-code"].contains(&pre) => {
                Strips::Mask("<mask>")
            }
            Kind::Bpe if name.contains("modern-bert") || pre == "modern-bert" => Strips::Mask("[MASK]"),
            _ => Strips::None,
        })
    }

    /// Whether a token takes white space on its left and on its right.
    fn sides(&self, text: &str) -> (bool, bool) {
        match self {
            Strips::None => (false, false),
            Strips::Phi3 => (false, !["<unk>", "<s>", "<|endoftext|>"].contains(&text)),
            Strips::Mask(mask) => (text == *mask, false),
        }
    }
}
