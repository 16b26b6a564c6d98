//! The errors of this crate.

use crate::vocabulary::Kind;
use std::fmt;

/// A vocabulary cannot be used.
#[derive(Debug)]
pub enum Error {
    /// A metadata key is missing or of the wrong type.
    Metadata(gguf::Error),
    /// A kind of tokenizer that is not supported.
    Kind {
        /// `tokenizer.ggml.model` of the file.
        found: String,
    },
    /// A pre-tokenizer that is not known: splitting text in another way would give wrong ids.
    PreTokenizer {
        /// `tokenizer.ggml.pre` of the file.
        found: String,
    },
    /// An array does not have an entry per token.
    Length {
        /// The metadata key.
        key: &'static str,
        /// Its entries.
        found: usize,
        /// Tokens of the vocabulary.
        expected: usize,
    },
    /// The vocabulary has no tokens, or too many.
    Size {
        /// Tokens of the vocabulary.
        found: usize,
        /// The most there may be.
        max: usize,
    },
    /// A special token's id is not in the vocabulary.
    Id {
        /// The metadata key.
        key: String,
        /// The id.
        found: u32,
        /// Tokens of the vocabulary.
        tokens: usize,
    },
    /// A merge is not two tokens with a space between that together are a token.
    Merge {
        /// Its index.
        index: usize,
        /// The merge.
        found: String,
        /// What is in no token; `None` if there are no two texts.
        missing: Option<String>,
    },
    /// The special tokens' texts are too much for one search.
    SpecialTokens(Box<dyn std::error::Error + Send + Sync>),
    /// A pattern of this crate does not compile: a fault of this crate.
    Pattern {
        /// The pattern.
        pattern: &'static str,
        /// What is wrong with it.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Metadata(error) => error.fmt(f),
            Error::Kind { found } => {
                let kinds = Kind::ALL.map(|(name, _)| name).join(", ");
                write!(f, "'tokenizer.ggml.model': expected one of {kinds}, found '{}'", found.escape_debug())
            }
            Error::PreTokenizer { found } => write!(
                f,
                "'tokenizer.ggml.pre': unknown pre-tokenizer '{}'; known: {}",
                found.escape_debug(),
                crate::pretokenizer_names().collect::<Vec<_>>().join(", ")
            ),
            Error::Length { key, found, expected } => {
                write!(f, "'{key}': expected an entry for each of {expected} tokens, found {found}")
            }
            Error::Size { found, max } => {
                write!(f, "'tokenizer.ggml.tokens': expected 1 to {max} tokens, found {found}")
            }
            Error::Id { key, found, tokens } => {
                write!(f, "'{key}': expected an id below the {tokens} tokens, found {found}")
            }
            Error::Merge { index, found, missing } => {
                write!(f, "'tokenizer.ggml.merges', entry {index}: ")?;
                match missing {
                    None => write!(f, "expected two texts with a space between")?,
                    Some(missing) => write!(f, "'{}' is no token", missing.escape_debug())?,
                }
                write!(f, ", found '{}'", found.escape_debug())
            }
            Error::SpecialTokens(error) => {
                write!(f, "the special tokens of 'tokenizer.ggml.tokens' cannot be searched for: {error}")
            }
            Error::Pattern { pattern, error } => {
                write!(f, "the pattern '{pattern}' does not compile: {error}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Metadata(error) => Some(error),
            Error::SpecialTokens(error) => Some(error.as_ref()),
            Error::Pattern { error, .. } => Some(error.as_ref()),
            _ => None,
        }
    }
}

impl From<gguf::Error> for Error {
    fn from(error: gguf::Error) -> Error {
        Error::Metadata(error)
    }
}
