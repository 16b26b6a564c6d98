//! Tokens that are matched on raw text, before anything else: control tokens and user-defined ones.

use crate::TokenType;
use crate::vocabulary::Vocabulary;
use aho_corasick::{AhoCorasick, MatchKind};
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
    /// `None` if there are no such tokens.
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl SpecialTokens {
    pub fn new(vocabulary: &Vocabulary) -> SpecialTokens {
        let with = |types: &[TokenType]| {
            let ids = (0..vocabulary.texts.len())
                .filter(|&id| types.contains(&vocabulary.types[id]) && !vocabulary.texts[id].is_empty());
            Matcher::new(ids.map(|id| id as u32).collect(), &vocabulary.texts)
        };
        SpecialTokens {
            all: with(&[TokenType::Control, TokenType::Unknown, TokenType::UserDefined]),
            user_defined: with(&[TokenType::UserDefined]),
        }
    }

    /// Splits a text. Control tokens are only found if `parse_special`, and never where they would touch a literal
    /// range (ascending, not overlapping); user-defined tokens are text that is always one token, so they are found
    /// everywhere.
    pub fn split(
        &self,
        text: &str,
        parse_special: bool,
        literal: &[Range<usize>],
        types: &[TokenType],
    ) -> Vec<Fragment> {
        let matcher = if parse_special { &self.all } else { &self.user_defined };
        let mut fragments = Vec::new();
        let mut begin = 0;
        let mut at = 0;
        while let Some((range, id)) = matcher.find(text, at) {
            let (range, id) = match literal_hit(&range, literal) {
                // A control token's text that content wrote: as if it were no token. What begins at the same place or
                // inside may still be a user-defined one.
                Some(()) if types[id as usize] != TokenType::UserDefined => {
                    match self.user_defined.find(&text[..range.end], range.start) {
                        Some(found) if found.0.start == range.start => found,
                        _ => {
                            at = next_char(text, range.start);
                            continue;
                        }
                    }
                }
                _ => (range, id),
            };
            if begin < range.start {
                fragments.push(Fragment::Text(begin..range.start));
            }
            fragments.push(Fragment::Token(id));
            begin = range.end;
            at = range.end;
        }
        if begin < text.len() {
            fragments.push(Fragment::Text(begin..text.len()));
        }
        fragments
    }
}

/// Whether a match overlaps a literal range, or spans an empty one.
fn literal_hit(found: &Range<usize>, literal: &[Range<usize>]) -> Option<()> {
    let first = literal.partition_point(|range| range.end <= found.start && range.start < found.start);
    let hit = literal[first..]
        .iter()
        .take_while(|range| range.start < found.end)
        .any(|range| if range.is_empty() { range.start > found.start } else { range.end > found.start });
    hit.then_some(())
}

fn next_char(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(1, char::len_utf8)
}

impl Matcher {
    fn new(ids: Vec<u32>, texts: &[String]) -> Matcher {
        let patterns = ids.iter().map(|&id| texts[id as usize].as_bytes());
        // Building fails only past automaton limits that no vocabulary of 2^24 tokens reaches; without an automaton
        // nothing is found, so report it as no tokens rather than stop.
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns).ok();
        Matcher { automaton: automaton.filter(|_| !ids.is_empty()), ids }
    }

    fn find(&self, text: &str, at: usize) -> Option<(Range<usize>, u32)> {
        let input = aho_corasick::Input::new(text).range(at..);
        let found = self.automaton.as_ref()?.find(input)?;
        Some((found.range(), self.ids[found.pattern().as_usize()]))
    }
}
