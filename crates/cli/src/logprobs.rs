//! Log-probabilities as `run --json` prints them.

use crate::prompt::token_text;
use engine::{Token, TokenLogProb};
use serde::Serialize;
use tokenizer::Tokenizer;

/// One of the most likely tokens in a place.
#[derive(Debug, Serialize)]
pub struct Top {
    id: u32,
    text: String,
    logprob: f64,
}

/// A generated token.
#[derive(Debug, Serialize)]
pub struct TokenEntry {
    token: u32,
    logprob: Option<f64>,
    top: Vec<Top>,
}

/// The prediction after a token of the prompt.
#[derive(Debug, Serialize)]
pub struct PromptEntry {
    top: Vec<Top>,
}

impl TokenEntry {
    /// The entry of a generated token.
    pub fn new(tokenizer: &Tokenizer, token: &Token) -> TokenEntry {
        TokenEntry { token: token.id, logprob: token.logprob, top: top(tokenizer, &token.top) }
    }
}

impl PromptEntry {
    /// The entry of a prompt token.
    pub fn new(tokenizer: &Tokenizer, tokens: &[TokenLogProb]) -> PromptEntry {
        PromptEntry { top: top(tokenizer, tokens) }
    }
}

fn top(tokenizer: &Tokenizer, tokens: &[TokenLogProb]) -> Vec<Top> {
    let entry = |token: &TokenLogProb| Top {
        id: token.id,
        text: token_text(tokenizer, token.id),
        logprob: token.log_prob,
    };
    tokens.iter().map(entry).collect()
}
