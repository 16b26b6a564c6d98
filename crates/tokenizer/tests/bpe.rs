//! Byte-pair encoding on small vocabularies: what goes in comes out again.

mod common;

use common::{NORMAL, PLAIN, byte_level, strings};
use proptest::prelude::*;
use tokenizer::Tokenizer;

const MERGES: [(&str, &str); 9] = [
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("a", "a"),
    ("aa", "aa"),
    ("Ã", "©"),
    ("Ġ", "Ġ"),
    ("1", "2"),
    ("'", "s"),
];

fn texts<'t>(tokenizer: &'t Tokenizer, text: &str) -> Vec<&'t str> {
    tokenizer.encode(text, PLAIN).iter().map(|&id| tokenizer.token_text(id).unwrap()).collect()
}

#[test]
fn the_lowest_rank_merges_first() {
    let tokenizer = byte_level("gpt-2", &MERGES, &[]).tokenizer();
    assert_eq!(texts(&tokenizer, "the then"), ["the", "Ġthe", "n"]);
    assert_eq!(texts(&tokenizer, "aaaaaaa"), ["aaaa", "aa", "a"]);
    assert_eq!(texts(&tokenizer, "é"), ["Ã©"]);
}

#[test]
fn whole_pieces_are_taken_where_the_family_does_so() {
    // No merges lead to this token.
    let special = [("xyz", NORMAL)];
    assert_eq!(texts(&byte_level("gpt-2", &MERGES, &special).tokenizer(), "xyz"), ["x", "y", "z"]);
    assert_eq!(texts(&byte_level("llama-bpe", &MERGES, &special).tokenizer(), "xyz"), ["xyz"]);
}

#[test]
fn a_byte_without_a_token_is_left_out_and_keeps_its_neighbours_apart() {
    let tokens = ["a", "aa", "<|endoftext|>"];
    let tokenizer = common::Keys::new("gpt2")
        .with("pre", common::text("gpt-2"))
        .with("tokens", strings(tokens))
        .with("merges", strings(["a a"]))
        .with("unknown_token_id", gguf::Value::U32(2))
        .tokenizer();
    assert_eq!(texts(&tokenizer, "aa"), ["aa"]);
    assert_eq!(texts(&tokenizer, "aba"), ["a", "a"]);
    assert_eq!(texts(&tokenizer, "b"), [""; 0]);
}

proptest! {
    #[test]
    fn decoding_gives_the_text_back(
        text in "(the| the|aa|é|[ \\n\\t\u{3000}]{1,4}|'[sS]|[0-9]{1,5}|\\PC|\u{301}|👨‍👩‍👧){0,20}",
        name in prop::sample::select(tokenizer::pretokenizer_names().collect::<Vec<_>>()),
    ) {
        let tokenizer = byte_level(name, &MERGES, &[]).tokenizer();
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, PLAIN), false), text.as_bytes());
    }
}
