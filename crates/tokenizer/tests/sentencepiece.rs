//! SentencePiece: order of merging, bytes to fall back on, blanks.

mod common;

use common::{NORMAL, PLAIN, USER_DEFINED, sentencepiece};
use gguf::{Array, Value};
use tokenizer::Tokenizer;

fn texts(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let ids = tokenizer.encode(text, PLAIN);
    ids.iter().map(|&id| tokenizer.token_text(id).unwrap().to_owned()).collect()
}

#[test]
fn the_best_score_merges_first() {
    let tokens = [("a", NORMAL), ("b", NORMAL), ("c", NORMAL), ("ab", NORMAL), ("bc", NORMAL)];
    let keys = sentencepiece(&tokens).with("add_space_prefix", Value::Bool(false));
    assert_eq!(texts(&keys.tokenizer(), "abc"), ["ab", "c"]);
    let scores = |ab: f32, bc: f32| {
        let mut scores = vec![0.0; 259 + 5];
        scores[259 + 3..].copy_from_slice(&[ab, bc]);
        keys.clone().with("scores", Value::Array(Array::F32(scores))).tokenizer()
    };
    assert_eq!(texts(&scores(-2.0, -1.0), "abc"), ["a", "bc"]);
    assert_eq!(texts(&scores(1.0, 0.5), "abc"), ["ab", "c"]);
    // The leftmost of equals.
    assert_eq!(texts(&scores(-1.0, -1.0), "abc"), ["ab", "c"]);
}

#[test]
fn what_is_in_no_token_falls_back_to_bytes() {
    let tokenizer = sentencepiece(&[("▁", NORMAL)]).tokenizer();
    assert_eq!(texts(&tokenizer, "é\n"), ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("é\n", PLAIN), false), " é\n".as_bytes());
    // A text that spells a byte's token is not that byte.
    assert!(!texts(&tokenizer, "<0x0A>").contains(&"<0x0A>".to_owned()));
}

#[test]
fn user_defined_tokens_are_matched_on_raw_text() {
    // Two blanks, as files have them: not with the sign for a blank.
    let tokenizer = sentencepiece(&[("  ", USER_DEFINED), ("▁", NORMAL), ("a", NORMAL)])
        .with("add_space_prefix", Value::Bool(false))
        .tokenizer();
    assert_eq!(texts(&tokenizer, "a   a"), ["a", "  ", "▁", "a"]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("a   a", PLAIN), false), b"a   a");
}

#[test]
fn a_blank_goes_first_unless_the_file_says_otherwise() {
    let tokens = [("▁", NORMAL), ("a", NORMAL), ("▁a", NORMAL)];
    assert_eq!(texts(&sentencepiece(&tokens).tokenizer(), "a"), ["▁a"]);
    assert_eq!(texts(&sentencepiece(&tokens).tokenizer(), ""), [""; 0]);
    let without = sentencepiece(&tokens).with("add_space_prefix", Value::Bool(false));
    assert_eq!(texts(&without.tokenizer(), "a"), ["a"]);
}

#[test]
fn extra_white_space_goes_if_the_file_says_so() {
    let keys = sentencepiece(&[("▁", NORMAL), ("a", NORMAL)]).with("add_space_prefix", Value::Bool(false));
    assert_eq!(texts(&keys.tokenizer(), " a  a "), ["▁", "a", "▁", "▁", "a", "▁"]);
    let tokenizer = keys.with("remove_extra_whitespaces", Value::Bool(true)).tokenizer();
    assert_eq!(texts(&tokenizer, " a  a "), ["a", "▁", "a"]);
    assert_eq!(texts(&tokenizer, "   "), [""; 0]);
}
