//! The errors of this crate.

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
    /// The vocabulary has no tokens, or more than ids can tell.
    Size(usize),
    /// A special token's id is not in the vocabulary.
    Id {
        /// The metadata key.
        key: String,
        /// The id.
        found: u32,
        /// Tokens of the vocabulary.
        tokens: usize,
    },
    /// A merge is not two texts with a space between.
    Merge {
        /// Its index.
        index: usize,
        /// The merge.
        found: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Metadata(error) => error.fmt(f),
            Error::Kind { found } => {
                write!(
                    f,
                    "'tokenizer.ggml.model': expected gpt2 (byte-level BPE) or llama (SentencePiece), found '{found}'"
                )
            }
            Error::PreTokenizer { found } => write!(
                f,
                "'tokenizer.ggml.pre': unknown pre-tokenizer '{found}'; known: {}",
                crate::pretokenizer_names().collect::<Vec<_>>().join(", ")
            ),
            Error::Length { key, found, expected } => {
                write!(f, "'{key}': expected an entry for each of {expected} tokens, found {found}")
            }
            Error::Size(found) => {
                write!(f, "'tokenizer.ggml.tokens': expected 1 to 16777216 tokens, found {found}")
            }
            Error::Id { key, found, tokens } => {
                write!(f, "'{key}': expected an id below the {tokens} tokens, found {found}")
            }
            Error::Merge { index, found } => write!(
                f,
                "'tokenizer.ggml.merges', entry {index}: expected two texts with a space between, found '{}'",
                found.escape_debug()
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Metadata(error) => Some(error),
            _ => None,
        }
    }
}

impl From<gguf::Error> for Error {
    fn from(error: gguf::Error) -> Error {
        Error::Metadata(error)
    }
}
