//! Tokens that end a generation, and others that steer a model although their files call them ordinary text.
//!
//! Many files mark only one end token, or give a turn's end the type of ordinary text. Their texts are well known; so,
//! as in llama.cpp, a token with one of them is a control token, whatever its type in the file. Plain text then never
//! becomes one of them.

use crate::texts::Texts;
use crate::vocabulary::special_id;
use crate::{Error, TokenType};
use gguf::Metadata;

/// Ends of turns, messages and texts.
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
];

/// Fill-in-the-middle models go on with another file after these. A key takes the place of the texts.
const FILE_ENDS: [(&str, &[&str]); 3] = [
    ("fim_pad_token_id", &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    ("fim_rep_token_id", &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"]),
    ("fim_sep_token_id", &["<|file_sep|>"]),
];

/// Parts of a fill-in-the-middle prompt. They end nothing.
const FILE_PARTS: [(&str, &[&str]); 3] = [
    (
        "fim_pre_token_id",
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        "fim_suf_token_id",
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        "fim_mid_token_id",
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
];

/// The ids that end a generation, ascending. Makes control tokens of those that have a well-known text.
pub(crate) fn find(metadata: &Metadata, texts: &Texts, types: &mut [TokenType]) -> Result<Vec<u32>, Error> {
    let tokens = texts.len();
    let id = |name: &str| special_id(metadata, name, tokens);
    let known = |list: &'static [&str]| list.iter().filter_map(|text| texts.id_of(text));
    let mut control: Vec<u32> = known(ENDS).collect();
    let mut ends: Vec<u32> = Vec::new();
    for (key, list) in FILE_ENDS {
        match id(key)? {
            Some(id) => ends.push(id),
            None => {
                ends.extend(known(list));
                control.extend(known(list));
            }
        }
    }
    for (key, list) in FILE_PARTS {
        if id(key)?.is_none() {
            control.extend(known(list));
        }
    }
    ends.extend(known(ENDS));
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ends.extend(id(key)?);
    }
    let has = |text: &str| texts.id_of(text).is_some();
    // In these formats <|end|> ends a message, and the answer goes on with the next.
    let calls = has("<|call|>") || has("<|calls|>");
    if calls && (has("<|return|>") || has("<|flush|>")) {
        let end = texts.id_of("<|end|>");
        ends.retain(|&id| Some(id) != end);
    }
    // In these vocabularies </s> is a tag of HTML.
    if has("<|tool_response>") || has("<|plamo:eos|>") {
        let tag = texts.id_of("</s>");
        ends.retain(|&id| Some(id) != tag);
        control.retain(|&id| Some(id) != tag);
    }
    for id in control {
        types[id as usize] = TokenType::Control;
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}
