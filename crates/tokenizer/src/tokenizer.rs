//! The tokenizer itself.

use crate::bpe::Bpe;
use crate::sentencepiece::SentencePiece;
use crate::special::{Fragment, SpecialTokens};
use crate::vocabulary::Vocabulary;
use crate::{Error, Kind, TokenType};
use gguf::Metadata;
use std::collections::HashMap;
use std::ops::Range;

/// How a text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put the begin and end tokens that the model asks for around the text.
    pub add_special: bool,
    /// Find control tokens in the text; otherwise they are text like any other.
    pub parse_special: bool,
}

/// A model's tokenizer. Immutable, and to be shared between threads.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: Model,
    special: SpecialTokens,
    by_text: HashMap<String, u32>,
}

#[derive(Debug)]
enum Model {
    Bpe(Bpe),
    SentencePiece(SentencePiece),
}

impl Tokenizer {
    /// Reads the vocabulary of a file.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, Error> {
        let vocabulary = Vocabulary::read(metadata)?;
        let model = match vocabulary.kind {
            Kind::Bpe => Model::Bpe(Bpe::new(metadata, &vocabulary)?),
            Kind::SentencePiece => Model::SentencePiece(SentencePiece::new(metadata, &vocabulary)?),
        };
        let special = SpecialTokens::new(&vocabulary);
        let mut by_text = HashMap::with_capacity(vocabulary.texts.len());
        for (id, text) in vocabulary.texts.iter().enumerate() {
            by_text.entry(text.clone()).or_insert(id as u32);
        }
        Ok(Tokenizer { vocabulary, model, special, by_text })
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        self.encode_rendered(text, &[], options)
    }

    /// The ids of a text of which some byte ranges (ascending, not overlapping) are literal: no control token is
    /// found where it would touch one. The ids are otherwise those of the whole text.
    pub fn encode_rendered(&self, text: &str, literal: &[Range<usize>], options: EncodeOptions) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if options.add_special && self.vocabulary.add_bos {
            ids.extend(self.vocabulary.bos);
        }
        let mut after_token = true;
        for fragment in self.special.split(text, options.parse_special, literal, &self.vocabulary.types) {
            match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    after_token = true;
                }
                Fragment::Text(range) => {
                    let part = &text[range];
                    match &self.model {
                        Model::Bpe(bpe) => bpe.encode(part, &mut ids),
                        Model::SentencePiece(model) if self.vocabulary.add_space_prefix && after_token => {
                            model.encode(&format!(" {part}"), &mut ids);
                        }
                        Model::SentencePiece(model) => model.encode(part, &mut ids),
                    }
                    after_token = false;
                }
            }
        }
        if options.add_special && self.vocabulary.add_eos {
            ids.extend(self.vocabulary.eos);
        }
        ids
    }

    /// The bytes of a token in text: nothing for control tokens and ids that are not in the vocabulary.
    pub fn text_bytes(&self, id: u32) -> &[u8] {
        match self.token_type(id) {
            None | Some(TokenType::Control | TokenType::Unknown) => &[],
            Some(_) => self.token_bytes(id),
        }
    }

    /// The bytes of a token with control tokens spelled out; nothing for ids that are not in the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes.get(id as usize).map_or(&[], |bytes| bytes)
    }

    /// The bytes of several tokens, control tokens spelled out or left out.
    pub fn decode(&self, ids: &[u32], special: bool) -> Vec<u8> {
        let bytes = ids.iter().map(|&id| if special { self.token_bytes(id) } else { self.text_bytes(id) });
        bytes.collect::<Vec<_>>().concat()
    }

    /// Tokens of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.texts.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.vocabulary.eos
    }

    /// Whether the model wants the begin token before every text.
    pub fn add_bos(&self) -> bool {
        self.vocabulary.add_bos
    }

    /// Whether the model wants the end token after every text.
    pub fn add_eos(&self) -> bool {
        self.vocabulary.add_eos
    }

    /// Whether encoding puts a blank before a text.
    pub fn adds_space_prefix(&self) -> bool {
        self.vocabulary.kind == Kind::SentencePiece && self.vocabulary.add_space_prefix
    }

    /// Whether a generation ends with this token.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.vocabulary.end_of_generation.binary_search(&id).is_ok()
    }

    /// The tokens with which a generation ends, ascending.
    pub fn end_of_generation_ids(&self) -> &[u32] {
        &self.vocabulary.end_of_generation
    }

    /// What a token is for.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.vocabulary.types.get(id as usize).copied()
    }

    /// A token's text as the file has it: in the alphabet of byte-level BPE, or with ▁ for blanks.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocabulary.texts.get(id as usize).map(String::as_str)
    }

    /// The token of a text as the file has it.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.by_text.get(text).copied()
    }

    /// The texts of all control tokens.
    pub fn control_token_texts(&self) -> impl Iterator<Item = &str> {
        let control = |id: &usize| self.vocabulary.types[*id] == TokenType::Control;
        (0..self.vocab_size()).filter(control).map(|id| self.vocabulary.texts[id].as_str())
    }

    /// The kind of tokenizer.
    pub fn kind(&self) -> Kind {
        self.vocabulary.kind
    }
}
