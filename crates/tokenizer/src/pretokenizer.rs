//! Splitting text into the pieces within which byte-level BPE merges: a set of patterns per model family.
//!
//! The patterns are those that the families were trained with. Their one look-ahead, `\s+(?!\S)` (white space up to
//! the last character before a word), is not in the expressions, which therefore run in linear time: a match of white
//! space alone gives its last character back.

use crate::Error;
use regex::Regex;
use std::ops::Range;

/// Contractions, words with a blank before, digits, other signs, white space (GPT-2).
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
/// As GPT-2's, with contractions in capitals, words with any sign before, and line ends with what precedes them. The
/// pattern of digits differs between families.
macro_rules! llama3 {
    ($digits:literal) => {
        concat!(
            r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        )
    };
}
/// Words of one case run, as in tekken and o200k: capitals, then small letters. `$tail` may follow a word.
macro_rules! cased {
    ($tail:literal, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $tail,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $tail,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        )
    };
}
const QWEN35: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##;
const SEED_CODER: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+";

/// A family: the names it has in files, its patterns (each applied to the pieces that the ones before left), whether
/// a piece that is a token as a whole is taken without merging, and whether a begin token is put first where a file
/// does not say.
struct Family {
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    whole_pieces: bool,
    adds_bos: bool,
}

const fn family(names: &'static [&'static str], patterns: &'static [&'static str]) -> Family {
    Family { names, patterns, whole_pieces: false, adds_bos: false }
}

static FAMILIES: &[Family] = &[
    family(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        &[GPT2],
    ),
    family(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    Family {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        patterns: &[llama3!(r"\p{N}{1,3}")],
        whole_pieces: true,
        adds_bos: true,
    },
    family(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"], &[llama3!(r"\p{N}{1,3}")]),
    family(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[llama3!(r"\p{N}")],
    ),
    family(&["qwen35"], &[QWEN35]),
    family(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        &[r"\p{N}", GPT2],
    ),
    family(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    family(
        &["deepseek-llm"],
        &[
            r"[\r\n]",
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-\u{d7ff}]+",
            r"\p{N}+",
        ],
    ),
    family(
        &["deepseek-coder"],
        &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-\u{d7ff}]+", r"\p{N}"],
    ),
    family(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
    ),
    Family { names: &["tekken"], patterns: &[cased!("", r"\p{N}")], whole_pieces: true, adds_bos: true },
    family(
        &["gpt-4o", "llama4", "kanana2", "minimax-m2"],
        &[cased!("(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?", r"\p{N}{1,3}")],
    ),
    family(&["seed-coder"], &[SEED_CODER]),
];

/// Every name of a pre-tokenizer that is known.
pub fn pretokenizer_names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.names.iter().copied())
}

/// Whether models with this pre-tokenizer put a begin token first where their file does not say.
pub(crate) fn adds_bos(name: &str) -> bool {
    FAMILIES.iter().any(|family| family.names.contains(&name) && family.adds_bos)
}

/// The compiled patterns of a family.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    stages: Vec<Stage>,
    pub whole_pieces: bool,
}

#[derive(Debug)]
struct Stage {
    regex: Regex,
    /// White space gives its last character back before a word.
    gives_back: bool,
    /// White space up to a line end is a piece of its own, and gives nothing back.
    line_ends: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer of this name in files; without one, GPT-2's, as before files had names.
    pub fn new(name: Option<&str>) -> Result<PreTokenizer, Error> {
        let name = name.unwrap_or("gpt-2");
        let unknown = || Error::PreTokenizer { found: name.into() };
        let family = FAMILIES.iter().find(|family| family.names.contains(&name)).ok_or_else(unknown)?;
        let stages = family.patterns.iter().map(|pattern| {
            Ok::<_, Error>(Stage {
                // All patterns are constants, and a test compiles them.
                regex: Regex::new(pattern).map_err(|_| unknown())?,
                gives_back: pattern.ends_with(r"|\s+"),
                line_ends: pattern.contains(r"\s*[\r\n]+"),
            })
        });
        Ok(PreTokenizer { stages: stages.collect::<Result<_, _>>()?, whole_pieces: family.whole_pieces })
    }

    /// The pieces of a text, in order; together they are the text.
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
    /// Matches are pieces, and so is what lies between.
    fn split(&self, text: &str, piece: Range<usize>, out: &mut Vec<Range<usize>>) {
        let part = &text[piece.clone()];
        let mut done = 0;
        let mut at = 0;
        while let Some(found) = self.regex.find_at(part, at) {
            let mut end = found.end();
            if self.gives_back && end < part.len() {
                end -= self.give_back(found.as_str());
            }
            if done < found.start() {
                out.push(piece.start + done..piece.start + found.start());
            }
            // No pattern matches nothing, but a loop must not depend on it.
            if end == found.start() {
                at = end + part[end..].chars().next().map_or(1, char::len_utf8);
                done = end;
                if at > part.len() {
                    break;
                }
                continue;
            }
            out.push(piece.start + found.start()..piece.start + end);
            done = end;
            at = end;
        }
        if done < part.len() {
            out.push(piece.start + done..piece.end);
        }
    }

    /// Bytes that a match gives back: the last character of white space that more than one character makes up.
    fn give_back(&self, found: &str) -> usize {
        let mut chars = found.chars();
        let Some(last) = chars.next_back() else { return 0 };
        let white = last.is_whitespace() && !chars.as_str().is_empty() && chars.all(char::is_whitespace);
        if white && !(self.line_ends && matches!(last, '\r' | '\n')) { last.len_utf8() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        PreTokenizer::new(Some(name)).unwrap().split(text).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn every_known_name_compiles_and_loses_nothing() {
        let text = "I'll SAY  it's\t\n\n 12345 times — naïve 한국어 ع\u{301} <|x|>   \r\n end  ";
        for name in pretokenizer_names() {
            assert_eq!(split(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn white_space_leaves_one_blank_to_the_word() {
        assert_eq!(split("gpt-2", "a   b \n c"), ["a", "  ", " b", " \n", " c"]);
        assert_eq!(split("gpt-2", "a\n\n\nb  "), ["a", "\n\n", "\n", "b", "  "]);
        assert_eq!(split("llama-bpe", "a\n\n  b"), ["a", "\n\n", " ", " b"]);
    }

    #[test]
    fn digits_go_by_family() {
        assert_eq!(split("llama-bpe", "x12345"), ["x", "123", "45"]);
        assert_eq!(split("qwen2", "x12345"), ["x", "1", "2", "3", "4", "5"]);
        assert_eq!(split("smollm", "x 12"), ["x", " ", "1", "2"]);
        assert_eq!(split("gpt-2", "x 12"), ["x", " 12"]);
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        let error = PreTokenizer::new(Some("nonsense")).unwrap_err();
        assert!(error.to_string().contains("unknown pre-tokenizer 'nonsense'"), "{error}");
    }
}
