//! Bug report 9: long unbroken text takes time in proportion to its length. That merging takes `n log n` steps is
//! counted where merging is; here, whole texts are encoded, within a bound that no quadratic way would keep.

mod common;

use common::{PLAIN, byte_level, sentencepiece};
use std::time::{Duration, Instant};
use tokenizer::Tokenizer;

const LENGTH: usize = 262_144;

/// Encodes long texts. Merging each pair by looking at all others would take more than ten minutes.
fn r09_long_texts_are_fast(tokenizer: &Tokenizer) {
    for part in ["x", "中", " ", "ab", "=", "\n", "0", "</s", "'s"] {
        let text = part.repeat(LENGTH / part.chars().count());
        let begin = Instant::now();
        let ids = tokenizer.encode(&text, PLAIN);
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(20), "{part:?}: {took:?}");
        let decoded = tokenizer.decode(&ids, false);
        assert!(decoded.ends_with(text.as_bytes()), "{part:?}");
    }
}

/// Merges of equal halves of these, to 64 bytes: every queue is as busy as it gets.
fn doubling() -> Vec<(String, String)> {
    let mut merges = Vec::new();
    for part in ["x", "Ġ", "ab", "=", "Ċ", "0"] {
        let mut whole = part.to_owned();
        if part.len() == 2 {
            merges.push(("a".to_owned(), "b".to_owned()));
        }
        while whole.chars().count() < 64 {
            merges.push((whole.clone(), whole.clone()));
            whole = whole.repeat(2);
        }
    }
    merges
}

#[test]
fn r09_bpe() {
    let merges = doubling();
    let merges: Vec<(&str, &str)> = merges.iter().map(|(l, r)| (l.as_str(), r.as_str())).collect();
    for pre in ["gpt-2", "qwen2", "default", "deepseek-llm", "gpt-4o", "bloom"] {
        r09_long_texts_are_fast(&byte_level(pre, &merges, &[]).tokenizer());
    }
}

#[test]
fn r09_sentencepiece() {
    let merges = doubling();
    let mut tokens: Vec<String> = ["x", "▁", "a", "b", "=", "\n", "0"].map(String::from).to_vec();
    tokens.extend(merges.iter().map(|(l, r)| format!("{l}{r}").replace('Ġ', "▁").replace('Ċ', "\n")));
    let tokens: Vec<(&str, i32)> = tokens.iter().map(|token| (token.as_str(), common::NORMAL)).collect();
    r09_long_texts_are_fast(&sentencepiece(&tokens).tokenizer());
}
