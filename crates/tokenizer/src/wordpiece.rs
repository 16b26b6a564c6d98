//! WordPiece (Schuster and Nakajima 2012) after BERT's normalisation: words are taken apart into the longest tokens.

use crate::Error;
use crate::vocabulary::Vocabulary;
use gguf::Metadata;
use regex::Regex;
use unicode_normalization::UnicodeNormalization;

/// Control and format characters that are no white space to BERT, and the sign for what could not be read.
const DROPPED: &str = r"[[\p{Cc}\p{Cf}\p{Co}\u{fffd}]--[\t\n\r]]+";

/// Signs and ideographs are words of their own. The range that begins at U+2B920 does so in the original, too.
macro_rules! alone {
    () => {
        concat!(
            r"[:punct:]\p{P}\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}",
            r"\u{2b920}-\u{2ceaf}\u{f900}-\u{faff}\u{2f800}-\u{2fa1f}"
        )
    };
}
const WORDS: &str = concat!("[", alone!(), r"]|[^\s", alone!(), "]+");

/// Longer words are unknown as a whole, in characters.
const MAX_WORD: usize = 100;

/// Tokens begin a word with `▁`, and go on with one without.
#[derive(Debug)]
pub(crate) struct WordPiece {
    dropped: Regex,
    marks: Regex,
    words: Regex,
    lowercase: bool,
    strip_accents: bool,
    /// Bytes of the longest token.
    longest: usize,
}

impl WordPiece {
    pub fn new(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<WordPiece, Error> {
        // All patterns are constants, and a test compiles each.
        let compile = |pattern: &'static str| {
            Regex::new(pattern).map_err(|error| Error::Pattern { pattern, error: error.into() })
        };
        let lowercase = metadata.bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
        let strip_accents = metadata.bool("tokenizer.ggml.normalizer.strip_accents")?;
        Ok(WordPiece {
            dropped: compile(DROPPED)?,
            marks: compile(r"\p{Mn}+")?,
            words: compile(WORDS)?,
            lowercase,
            strip_accents: strip_accents.unwrap_or(lowercase),
            longest: vocabulary.texts.iter().map(|(_, text)| text.len()).max().unwrap_or(0),
        })
    }

    /// Appends the tokens of a text in which there are no special ones.
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let mut spelling = String::new();
        for word in self.words.find_iter(&self.normalize(text)) {
            spelling.clear();
            spelling.push('▁');
            spelling.push_str(word.as_str());
            let begin = out.len();
            if !self.split_word(vocabulary, &spelling, out) {
                out.truncate(begin);
                out.extend(vocabulary.unknown);
            }
        }
    }

    /// Appends the tokens of a word; false if it does not consist of tokens.
    fn split_word(&self, vocabulary: &Vocabulary, word: &str, out: &mut Vec<u32>) -> bool {
        if word.chars().count() > 1 + MAX_WORD {
            return false;
        }
        let mut rest = word;
        while !rest.is_empty() {
            let ends = (1..=rest.len().min(self.longest)).rev().filter(|&end| rest.is_char_boundary(end));
            let longest = ends.map(|end| (end, vocabulary.plain_id_of(&rest[..end])));
            let Some((end, id)) = longest.filter_map(|(end, id)| Some((end, id?))).next() else {
                return false;
            };
            out.push(id);
            rest = &rest[end..];
        }
        true
    }

    fn normalize(&self, text: &str) -> String {
        let mut text = self.dropped.replace_all(text, "").into_owned();
        if self.strip_accents {
            let decomposed: String = text.nfd().collect();
            text = self.marks.replace_all(&decomposed, "").into_owned();
        }
        if self.lowercase {
            // Character by character: a word-final sigma stays what it is.
            text = text.chars().flat_map(char::to_lowercase).collect();
        }
        text
    }
}
