//! The tokenizer itself.

use crate::Error;
use crate::bpe::Bpe;
use crate::merge::{MAX_TEXT, Merger};
use crate::sentencepiece::SentencePiece;
use crate::special::{Fragment, SpecialTokens};
use crate::vocabulary::{Kind, TokenType, Vocabulary};
use crate::wordpiece::WordPiece;
use gguf::Metadata;
use std::ops::Range;

/// How a text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put the begin and end tokens that the model asks for around the text.
    pub add_special: bool,
    /// Find control tokens in the text; otherwise they are text like any other. User-defined tokens, which are text
    /// that is always one token, are found either way.
    pub parse_special: bool,
}

/// A model's tokenizer. Immutable, and to be shared between threads.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: Model,
    special: SpecialTokens,
}

#[derive(Debug)]
enum Model {
    Bpe(Bpe),
    SentencePiece(SentencePiece),
    WordPiece(WordPiece),
}

impl Tokenizer {
    /// Reads the vocabulary of a file.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, Error> {
        let vocabulary = Vocabulary::read(metadata)?;
        let model = match vocabulary.kind {
            Kind::Bpe | Kind::CharacterBpe => Model::Bpe(Bpe::new(metadata, &vocabulary)?),
            Kind::SentencePiece => Model::SentencePiece(SentencePiece::new(metadata, &vocabulary)?),
            Kind::WordPiece => Model::WordPiece(WordPiece::new(metadata, &vocabulary)?),
        };
        let special = SpecialTokens::new(metadata, &vocabulary)?;
        Ok(Tokenizer { vocabulary, model, special })
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        self.encode_rendered(text, &[], options)
    }

    /// The ids of a text of which some byte ranges are literal: no control token is found where it would overlap one
    /// (or span an empty one). The ids are otherwise those of the whole text, so a word that is partly literal is
    /// still one word.
    pub fn encode_rendered(&self, text: &str, literal: &[Range<usize>], options: EncodeOptions) -> Vec<u32> {
        let literal = in_order(literal);
        let mut merger = Merger::default();
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        if options.add_special && self.vocabulary.add_bos {
            ids.extend(self.vocabulary.bos);
        }
        let mut after_token = true;
        for fragment in self.special.split(text, options.parse_special, &literal) {
            match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    after_token = true;
                }
                Fragment::Text(range) => {
                    let prefix = self.vocabulary.add_space_prefix && after_token;
                    self.encode_plain(&text[range], prefix, &mut merger, &mut ids);
                    after_token = false;
                }
            }
        }
        if options.add_special {
            ids.extend(self.vocabulary.closing);
        }
        ids
    }

    /// Appends the ids of a text in which there are no special tokens. A text of more than a gibibyte is cut there.
    fn encode_plain(&self, text: &str, prefix: bool, merger: &mut Merger, ids: &mut Vec<u32>) {
        let cut = (0..=text.len().min(MAX_TEXT)).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let (text, rest) = text.split_at(cut);
        match &self.model {
            Model::Bpe(model) => model.encode(&self.vocabulary, text, merger, ids),
            Model::SentencePiece(model) => model.encode(&self.vocabulary, text, prefix, merger, ids),
            Model::WordPiece(model) => model.encode(&self.vocabulary, text, ids),
        }
        if !rest.is_empty() {
            self.encode_plain(rest, false, merger, ids);
        }
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
        self.vocabulary.bytes.get(id).unwrap_or(&[])
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

    /// Whether the model wants the end token, or a separator, after every text.
    pub fn add_eos(&self) -> bool {
        self.vocabulary.add_eos
    }

    /// Whether encoding puts a blank before a text.
    pub fn adds_space_prefix(&self) -> bool {
        self.vocabulary.add_space_prefix
    }

    /// Whether a generation ends with this token.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.vocabulary.end_of_generation.binary_search(&id).is_ok()
    }

    /// The tokens with which a generation ends, ascending.
    pub fn end_of_generation_ids(&self) -> &[u32] {
        &self.vocabulary.end_of_generation
    }

    /// What a token is for; `None` if the id is not in the vocabulary.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.vocabulary.type_of(id)
    }

    /// Whether a token controls the model, so that it has no text.
    pub fn is_control(&self, id: u32) -> bool {
        self.token_type(id) == Some(TokenType::Control)
    }

    /// A token's text as the file has it: in the alphabet of byte-level BPE, or with ▁ for blanks.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocabulary.texts.get(id)
    }

    /// The token of a text as the file has it.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocabulary.texts.id_of(text)
    }

    /// The texts of all control tokens.
    pub fn control_token_texts(&self) -> impl Iterator<Item = &str> {
        self.vocabulary.texts.iter().filter(|&(id, _)| self.is_control(id)).map(|(_, text)| text)
    }

    /// The kind of tokenizer.
    pub fn kind(&self) -> Kind {
        self.vocabulary.kind
    }

    /// The name of the pre-tokenizer in the file.
    pub fn pre(&self) -> Option<&str> {
        self.vocabulary.pre.as_deref()
    }
}

/// Ranges in order, overlapping ones joined, so that a binary search finds every one.
fn in_order(ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| (range.start, range.end));
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
