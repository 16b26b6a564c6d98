//! Tokenizers from GGUF vocabularies: byte-level BPE, SentencePiece and WordPiece.
//!
//! [`Tokenizer::from_metadata`] reads the vocabulary of a model (or of a vocabulary-only file); a [`Detokenizer`]
//! turns ids back to text as they come, never emitting half a character.
//!
//! This crate does not know chat: which parts of a text may become control tokens is told by its caller, as byte
//! ranges that are literal ([`Tokenizer::encode_rendered`]).
//!
//! ```
//! use gguf::{Array, Header, Value, Writer};
//! use tokenizer::{EncodeOptions, Tokenizer};
//!
//! let strings = |texts: &[&str]| Value::Array(Array::String(texts.iter().map(|t| t.to_string()).collect()));
//! let mut file = Writer::new();
//! file.metadata("tokenizer.ggml.model", Value::String("gpt2".into()))
//!     .metadata("tokenizer.ggml.pre", Value::String("gpt-2".into()))
//!     .metadata("tokenizer.ggml.tokens", strings(&["h", "e", "y", "Ġ", "he", "Ġhe", "<|im_end|>"]))
//!     .metadata("tokenizer.ggml.merges", strings(&["h e", "Ġ he"]))
//!     .metadata("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1, 1, 1, 1, 1, 3])));
//! let header = Header::parse(&file.to_bytes()?)?;
//!
//! let tokenizer = Tokenizer::from_metadata(header.metadata())?;
//! let options = EncodeOptions { add_special: false, parse_special: true };
//! let ids = tokenizer.encode("hey he<|im_end|>", options);
//! assert_eq!(ids, [4, 2, 5, 6]);
//! assert_eq!(tokenizer.decode(&ids, false), b"hey he");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod alphabet;
mod bpe;
mod detokenizer;
mod ends;
mod error;
mod merge;
mod pretokenizer;
mod sentencepiece;
mod special;
mod texts;
mod tokenizer;
mod vocabulary;
mod wordpiece;

pub use detokenizer::Detokenizer;
pub use error::Error;
pub use pretokenizer::pretokenizer_names;
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use vocabulary::{Kind, TokenType};
