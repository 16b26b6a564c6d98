//! The vocabulary as a file has it, checked.

use crate::Error;
use crate::alphabet;
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
    /// SentencePiece (`llama`).
    SentencePiece,
}

/// Tokens and everything about them.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    pub kind: Kind,
    /// Texts as the file has them.
    pub texts: Vec<String>,
    pub types: Vec<TokenType>,
    /// What each token stands for, in bytes of output.
    pub bytes: Vec<Box<[u8]>>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
    pub add_space_prefix: bool,
    /// Ascending.
    pub end_of_generation: Vec<u32>,
}

/// Texts of tokens that end a generation, whatever a file's keys say.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|eot|>",
    // Fill-in-the-middle models go on with another file after these.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

impl Vocabulary {
    pub fn read(metadata: &Metadata) -> Result<Vocabulary, Error> {
        let kind = match metadata.require_str("tokenizer.ggml.model")? {
            "gpt2" => Kind::Bpe,
            "llama" => Kind::SentencePiece,
            other => return Err(Error::Kind { found: other.into() }),
        };
        let texts = metadata.require_strings("tokenizer.ggml.tokens")?.to_vec();
        if texts.is_empty() || texts.len() > 1 << 24 {
            return Err(Error::Size(texts.len()));
        }
        let types = read_types(metadata, texts.len())?;
        let special = |name: &str| -> Result<Option<u32>, Error> {
            let key = format!("tokenizer.ggml.{name}");
            match metadata.u32(&key)? {
                Some(id) if id as usize >= texts.len() => {
                    Err(Error::Id { key, found: id, tokens: texts.len() })
                }
                id => Ok(id),
            }
        };
        let sentencepiece = kind == Kind::SentencePiece;
        // What files of each kind mean where they do not say.
        let bos = special("bos_token_id")?.or((sentencepiece && texts.len() > 1).then_some(1));
        let eos = special("eos_token_id")?.or((sentencepiece && texts.len() > 2).then_some(2));
        let mut ends: Vec<u32> =
            [eos, special("eot_token_id")?, special("eom_token_id")?].into_iter().flatten().collect();
        ends.extend((0..texts.len()).filter(|&id| ENDS.contains(&texts[id].as_str())).map(|id| id as u32));
        ends.sort_unstable();
        ends.dedup();
        // In the harmony format, <|end|> ends a message, not the answer.
        let has = |text: &str| ends.iter().any(|&id| texts[id as usize] == text);
        if has("<|return|>") && (has("<|call|>") || has("<|calls|>")) {
            ends.retain(|&id| texts[id as usize] != "<|end|>");
        }
        let bytes = texts.iter().zip(&types).map(|(text, &kind_of)| bytes_of(kind, text, kind_of)).collect();
        let bpe_adds_bos = metadata.str("tokenizer.ggml.pre")?.is_some_and(crate::pretokenizer::adds_bos);
        let flag = |name: &str, default: bool| -> Result<bool, Error> {
            Ok(metadata.bool(&format!("tokenizer.ggml.{name}"))?.unwrap_or(default))
        };
        Ok(Vocabulary {
            add_bos: flag("add_bos_token", sentencepiece || bpe_adds_bos)?,
            add_eos: flag("add_eos_token", false)?,
            add_space_prefix: flag("add_space_prefix", sentencepiece)?,
            unknown: special("unknown_token_id")?.or(sentencepiece.then_some(0)),
            kind,
            texts,
            types,
            bytes,
            bos,
            eos,
            end_of_generation: ends,
        })
    }
}

fn read_types(metadata: &Metadata, tokens: usize) -> Result<Vec<TokenType>, Error> {
    let key = "tokenizer.ggml.token_type";
    let Some(numbers) = metadata.i32s(key)? else { return Ok(vec![TokenType::Normal; tokens]) };
    if numbers.len() != tokens {
        return Err(Error::Length { key, found: numbers.len(), expected: tokens });
    }
    Ok(numbers
        .into_iter()
        .map(|number| match number {
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Normal,
        })
        .collect())
}

/// What a token stands for.
fn bytes_of(kind: Kind, text: &str, token_type: TokenType) -> Box<[u8]> {
    let bytes = match (kind, token_type) {
        (_, TokenType::Control | TokenType::Unknown) => text.as_bytes().to_vec(),
        (Kind::SentencePiece, TokenType::Byte) => match byte_token(text) {
            Some(byte) => vec![byte],
            None => text.as_bytes().to_vec(),
        },
        (Kind::SentencePiece, _) => text.replace('▁', " ").into_bytes(),
        // User-defined tokens are raw text; so is a normal one that is not of the alphabet.
        (Kind::Bpe, TokenType::UserDefined) => text.as_bytes().to_vec(),
        (Kind::Bpe, _) => alphabet::decode(text).unwrap_or_else(|| text.as_bytes().to_vec()),
    };
    bytes.into_boxed_slice()
}

/// The byte of a token such as `<0x0A>`.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}
