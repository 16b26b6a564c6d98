//! Tokenizers from GGUF vocabularies: byte-level BPE and SentencePiece.
//!
//! [`Tokenizer::from_metadata`] reads the vocabulary of a model (or of a vocabulary-only file); a [`Detokenizer`]
//! turns ids back to text as they come, never emitting half a character.
//!
//! This crate does not know chat: which parts of a text may become control tokens is told by its caller, as byte
//! ranges that are literal ([`Tokenizer::encode_rendered`]).

mod alphabet;
mod bpe;
mod detokenizer;
mod error;
mod pretokenizer;
mod sentencepiece;
mod special;
mod tokenizer;
mod vocabulary;

pub use detokenizer::Detokenizer;
pub use error::Error;
pub use pretokenizer::pretokenizer_names;
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use vocabulary::{Kind, TokenType};
