//! The vocabulary as a file has it, checked: the one place where a file's arrays and ids are compared.

use crate::texts::{Arena, Texts};
use crate::{Error, alphabet, ends};
use gguf::Metadata;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// Ordinary text.
    Normal,
    /// What is in no token.
    Unknown,
    /// Controls the model (turns, begin, end); never comes from plain text.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// Not used.
    Unused,
    /// One byte, for text that is in no token.
    Byte,
}

/// The kind of a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Byte-level byte-pair encoding (`gpt2`).
    Bpe,
    /// Byte-pair encoding of characters, with `▁` for blanks and bytes for what is in no token (`gemma4`).
    CharacterBpe,
    /// SentencePiece (`llama`).
    SentencePiece,
    /// WordPiece with BERT's normalisation (`bert`).
    WordPiece,
}

impl Kind {
    /// Every kind, with its `tokenizer.ggml.model` in files.
    pub(crate) const ALL: [(&'static str, Kind); 4] = [
        ("gpt2", Kind::Bpe),
        ("llama", Kind::SentencePiece),
        ("gemma4", Kind::CharacterBpe),
        ("bert", Kind::WordPiece),
    ];
}

/// Tokens and everything about them.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    pub kind: Kind,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// Texts as the file has them.
    pub texts: Texts,
    pub types: Vec<TokenType>,
    /// What each token stands for, in bytes of output.
    pub bytes: Arena,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    /// Put after a text, if anything is; the end token or a separator.
    pub closing: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
    pub add_space_prefix: bool,
    /// Ascending.
    pub end_of_generation: Vec<u32>,
}

/// Ids are 32 bits; this many tokens are beyond any model, and keep all sums of ids far from overflow.
const MAX_TOKENS: usize = 1 << 24;

impl Vocabulary {
    pub fn read(metadata: &Metadata) -> Result<Vocabulary, Error> {
        let model = metadata.require_str("tokenizer.ggml.model")?;
        let kind = Kind::ALL.iter().find(|(name, _)| *name == model).map(|&(_, kind)| kind);
        let kind = kind.ok_or_else(|| Error::Kind { found: model.into() })?;
        let pre = metadata.str("tokenizer.ggml.pre")?;
        let kind = match (kind, pre) {
            (Kind::Bpe, Some("gemma4" | "granite-embed-multi-311m")) => Kind::CharacterBpe,
            _ => kind,
        };
        let texts = metadata.require_strings("tokenizer.ggml.tokens")?;
        if texts.is_empty() || texts.len() > MAX_TOKENS {
            return Err(Error::Size { found: texts.len(), max: MAX_TOKENS });
        }
        let texts = Texts::new(texts);
        let mut types = read_types(metadata, texts.len())?;
        let end_of_generation = ends::find(metadata, &texts, &mut types)?;
        let id = |name: &str| special_id(metadata, name, texts.len());
        let flag = |name: &str, default: bool| -> Result<bool, Error> {
            Ok(metadata.bool(&format!("tokenizer.ggml.{name}"))?.unwrap_or(default))
        };
        // What files of each kind mean where they do not say.
        let default = |id: u32| ((id as usize) < texts.len()).then_some(id);
        let (bos, eos, unknown, separator) = match kind {
            Kind::Bpe | Kind::CharacterBpe => (None, None, None, None),
            Kind::SentencePiece => (default(1), default(2), default(0), None),
            Kind::WordPiece => (id("cls_token_id")?.or(default(101)), None, default(100), default(102)),
        };
        let (bos, eos) = (id("bos_token_id")?.or(bos), id("eos_token_id")?.or(eos));
        // The key is misspelt in files.
        let separator = id("seperator_token_id")?.or(separator);
        let (add_bos, add_eos) = match kind {
            Kind::Bpe => (pre.is_some_and(crate::pretokenizer::adds_bos), false),
            Kind::CharacterBpe | Kind::SentencePiece => (true, false),
            Kind::WordPiece => (true, true),
        };
        let add_eos = flag("add_eos_token", add_eos)?;
        let mut bytes = Arena::default();
        for ((_, text), &token_type) in texts.iter().zip(&types) {
            push_bytes(kind, text, token_type, &mut bytes);
        }
        Ok(Vocabulary {
            add_bos: flag("add_bos_token", add_bos)?,
            add_eos,
            add_space_prefix: flag("add_space_prefix", true)? && kind == Kind::SentencePiece,
            closing: if kind == Kind::WordPiece { separator } else { eos }.filter(|_| add_eos),
            unknown: id("unknown_token_id")?.or(unknown),
            pre: pre.map(str::to_owned),
            kind,
            texts,
            types,
            bytes,
            bos,
            eos,
            end_of_generation,
        })
    }

    pub fn type_of(&self, id: u32) -> Option<TokenType> {
        self.types.get(id as usize).copied()
    }

    /// Whether plain text may become this token: no control token, whatever the text spells.
    pub fn is_plain(&self, id: u32) -> bool {
        use TokenType::{Normal, Unused, UserDefined};
        matches!(self.type_of(id), Some(Normal | UserDefined | Unused))
    }

    /// The token of a text, if plain text may become it.
    pub fn plain_id_of(&self, text: &str) -> Option<u32> {
        self.texts.id_of(text).filter(|&id| self.is_plain(id))
    }

    /// The tokens that stand for single bytes, spelt `<0x00>` to `<0xFF>`.
    pub fn byte_tokens(&self) -> [Option<u32>; 256] {
        let mut bytes = [None; 256];
        for (id, text) in self.texts.iter() {
            if self.type_of(id) == Some(TokenType::Byte)
                && let Some(byte) = byte_token(text)
            {
                bytes[usize::from(byte)].get_or_insert(id);
            }
        }
        bytes
    }
}

/// The id in a key of `tokenizer.ggml`, checked.
pub(crate) fn special_id(metadata: &Metadata, name: &str, tokens: usize) -> Result<Option<u32>, Error> {
    let key = format!("tokenizer.ggml.{name}");
    match metadata.u32(&key)? {
        // Some writers put -1 for a token that a model does not have.
        Some(u32::MAX) => Ok(None),
        Some(id) if id as usize >= tokens => Err(Error::Id { key, found: id, tokens }),
        id => Ok(id),
    }
}

fn read_types(metadata: &Metadata, tokens: usize) -> Result<Vec<TokenType>, Error> {
    let key = "tokenizer.ggml.token_type";
    let Some(numbers) = metadata.i32s(key)? else { return Ok(vec![TokenType::Normal; tokens]) };
    if numbers.len() != tokens {
        return Err(Error::Length { key, found: numbers.len(), expected: tokens });
    }
    let token_type = |number| match number {
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        _ => TokenType::Normal,
    };
    Ok(numbers.into_iter().map(token_type).collect())
}

/// Appends what a token stands for.
fn push_bytes(kind: Kind, text: &str, token_type: TokenType, out: &mut Arena) {
    match (kind, token_type) {
        // These are matched on raw text, so they are raw text.
        (_, TokenType::Control | TokenType::Unknown | TokenType::UserDefined) => out.push(text.as_bytes()),
        (Kind::Bpe, _) => match alphabet::decode(text) {
            Some(bytes) => out.push(&bytes),
            None => out.push(text.as_bytes()),
        },
        (_, TokenType::Byte) => match byte_token(text) {
            Some(byte) => out.push(&[byte]),
            None => out.push(text.as_bytes()),
        },
        (_, _) if text.contains('▁') => out.push(text.replace('▁', " ").as_bytes()),
        (_, _) => out.push(text.as_bytes()),
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hex.then(|| u8::from_str_radix(digits, 16).ok())?
}
