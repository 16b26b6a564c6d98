//! Splitting text into the pieces within which byte-pair encoding merges: a set of patterns per model family.

mod families;

use crate::Error;
use families::{DIGITS_FROM_RIGHT, FAMILIES, Family, LINES_ONLY};
use regex::Regex;
use std::ops::Range;

/// Every name of a pre-tokenizer that is known.
pub fn pretokenizer_names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.names.iter().copied())
}

/// Whether models with this pre-tokenizer put a begin token first where their file does not say.
pub(crate) fn adds_bos(name: &str) -> bool {
    FAMILIES.iter().any(|family| family.names.contains(&name) && family.adds_bos)
}

/// Whether a piece that is a token as a whole is taken without merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WholePieces {
    /// Pieces are always merged.
    Merged,
    /// Taken as they are.
    Token,
    /// Only runs of line ends are.
    LineEnds,
}

/// The compiled patterns of a family.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    stages: Vec<Stage>,
    pub whole_pieces: WholePieces,
}

/// One pattern. The engine behind it is a finite automaton, which takes time linear in the text.
///
/// It has no look-ahead. The only one that the families' patterns have is `\s+(?!\S)`, before or in place of a last
/// `\s+`: white space as far as no word follows. So white space matches as a whole, and then gives its last character
/// back to the word that follows.
#[derive(Debug)]
struct Stage {
    regex: Regex,
    /// White space gives its last character back before a word.
    gives_back: bool,
    /// White space up to a line end is a piece of its own, and gives nothing back.
    line_ends: bool,
    /// Matches are split in threes from the right.
    threes: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer of this name in files.
    pub fn new(name: &str) -> Result<PreTokenizer, Error> {
        let unknown = || Error::PreTokenizer { found: name.into() };
        let family = FAMILIES.iter().find(|family| family.names.contains(&name)).ok_or_else(unknown)?;
        PreTokenizer::of(family)
    }

    /// Splits text at runs of line ends only.
    pub fn lines() -> Result<PreTokenizer, Error> {
        PreTokenizer::of(&LINES_ONLY)
    }

    fn of(family: &Family) -> Result<PreTokenizer, Error> {
        let stages = family.patterns.iter().map(|pattern| Stage::new(pattern)).collect::<Result<_, _>>()?;
        Ok(PreTokenizer { stages, whole_pieces: family.whole_pieces })
    }

    /// The pieces of a text, in order; together they are the text, and none is empty.
    pub fn split(&self, text: &str) -> Vec<Range<usize>> {
        let whole = 0..text.len();
        let mut pieces = if whole.is_empty() { Vec::new() } else { vec![whole] };
        for stage in &self.stages {
            let mut finer = Vec::with_capacity(pieces.len());
            for piece in pieces {
                stage.split(text, piece, &mut finer);
            }
            pieces = finer;
        }
        pieces
    }
}

impl Stage {
    fn new(pattern: &'static str) -> Result<Stage, Error> {
        Ok(Stage {
            // All patterns are constants, and a test compiles each.
            regex: Regex::new(pattern).map_err(|error| Error::Pattern { pattern, error: error.into() })?,
            gives_back: pattern.ends_with(r"|\s+"),
            line_ends: pattern.contains(r"\s*[\r\n]+"),
            threes: pattern == DIGITS_FROM_RIGHT,
        })
    }

    /// Matches are pieces, and so is what lies between.
    fn split(&self, text: &str, piece: Range<usize>, out: &mut Vec<Range<usize>>) {
        let part = &text[piece.clone()];
        let mut push = |range: Range<usize>| {
            if !range.is_empty() {
                out.push(piece.start + range.start..piece.start + range.end);
            }
        };
        let mut done = 0;
        while let Some(found) = self.regex.find_at(part, done) {
            let mut end = found.end();
            if self.gives_back && end < part.len() {
                end -= given_back(found.as_str(), self.line_ends);
            }
            push(done..found.start());
            let mut start = found.start();
            // To the patterns' own engine, a number of another kind is no end of a word.
            if self.threes && !part[end..].starts_with(char::is_numeric) {
                // Every digit is one character, but not one byte.
                let digits = found.as_str().chars().count();
                for (at, (offset, _)) in found.as_str().char_indices().enumerate() {
                    if at > 0 && (digits - at) % 3 == 0 {
                        push(start..found.start() + offset);
                        start = found.start() + offset;
                    }
                }
            }
            push(start..end);
            // No pattern matches nothing, and a match that gives back keeps something: this always moves on.
            done = end;
        }
        push(done..part.len());
    }
}

/// Bytes that a match gives back: the last character of white space that more than one character makes up.
fn given_back(found: &str, line_ends: bool) -> usize {
    let mut chars = found.chars();
    let Some(last) = chars.next_back() else { return 0 };
    let white = last.is_whitespace() && !chars.as_str().is_empty() && chars.all(char::is_whitespace);
    if white && !(line_ends && matches!(last, '\r' | '\n')) { last.len_utf8() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        PreTokenizer::new(name).unwrap().split(text).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn every_known_name_compiles_and_loses_nothing() {
        let text = "I'll SAY  it's\t\n\n 12345 times — naïve 한국어 ع\u{301} <|x|>   \r\n end  ";
        for name in pretokenizer_names() {
            assert_eq!(split(name, text).concat(), text, "{name}");
            assert_eq!(split(name, ""), [""; 0], "{name}");
        }
        assert!(PreTokenizer::lines().is_ok());
    }

    #[test]
    fn no_pattern_matches_nothing() {
        for family in FAMILIES.iter().chain([&LINES_ONLY]) {
            for pattern in family.patterns {
                assert!(!Regex::new(pattern).unwrap().is_match(""), "{pattern}");
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = pretokenizer_names().collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn white_space_leaves_one_blank_to_the_word() {
        assert_eq!(split("gpt-2", "a   b \n c"), ["a", "  ", " b", " \n", " c"]);
        assert_eq!(split("gpt-2", "a\n\n\nb  "), ["a", "\n\n", "\n", "b", "  "]);
        assert_eq!(split("llama-bpe", "a\n\n  b"), ["a", "\n\n", " ", " b"]);
        assert_eq!(split("llama-bpe", "a \t\u{3000}1"), ["a", " \t", "\u{3000}", "1"]);
    }

    #[test]
    fn digits_go_by_family() {
        assert_eq!(split("llama-bpe", "x12345"), ["x", "123", "45"]);
        assert_eq!(split("qwen2", "x12345"), ["x", "1", "2", "3", "4", "5"]);
        assert_eq!(split("smollm", "x 12"), ["x", " ", "1", "2"]);
        assert_eq!(split("gpt-2", "x 12"), ["x", " 12"]);
        assert_eq!(
            split("tiny_aya", "1234567 ٣٤٥٦ 1234a"),
            ["1", "234", "567", " ", "٣", "٤٥٦", " ", "123", "4", "a"]
        );
    }

    #[test]
    fn contractions_go_by_family() {
        assert_eq!(split("gpt-2", "I'll I'LL"), ["I", "'ll", " I", "'", "LL"]);
        assert_eq!(split("qwen2", "I'll I'LL"), ["I", "'ll", " I", "'LL"]);
        assert_eq!(split("gpt-4o", "I'll I'LL"), ["I'll", " I'LL"]);
        assert_eq!(split("ufakzeka", "I'll"), ["I", "'ll"]);
        // The long s is an s to a case-insensitive pattern.
        assert_eq!(split("qwen2", "it'ſo"), ["it", "'ſ", "o"]);
    }

    #[test]
    fn marks_go_by_family() {
        assert_eq!(split("qwen2", "हिन्दी"), ["ह", "िन", "्द", "ी"]);
        assert_eq!(split("qwen35", "हिन्दी"), ["हिन्दी"]);
        assert_eq!(split("tekken", "HelloWorld"), ["Hello", "World"]);
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        let error = PreTokenizer::new("nonsense").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("'nonsense'") && text.contains("qwen2") && text.contains("llama-bpe"),
            "{text}"
        );
    }
}
