//! WordPiece on a small vocabulary.

mod common;

use common::{CONTROL, Keys, NORMAL, UNKNOWN};
use gguf::Value;
use tokenizer::{EncodeOptions, Tokenizer};

fn keys() -> Keys {
    let tokens = [
        ("[UNK]", UNKNOWN),
        ("[CLS]", CONTROL),
        ("[SEP]", CONTROL),
        ("▁un", NORMAL),
        ("▁una", NORMAL),
        ("aff", NORMAL),
        ("able", NORMAL),
        ("▁!", NORMAL),
        ("▁中", NORMAL),
        ("▁cafe", NORMAL),
    ];
    Keys::new("bert")
        .with_tokens(&tokens.map(|(text, kind)| (text.to_owned(), kind)))
        .with("unknown_token_id", Value::U32(0))
        .with("cls_token_id", Value::U32(1))
        .with("seperator_token_id", Value::U32(2))
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: false })
}

#[test]
fn words_are_taken_apart_into_the_longest_tokens() {
    let tokenizer = keys().tokenizer();
    // The longest first token leaves a rest that is no token: the whole word is unknown.
    assert_eq!(encode(&tokenizer, "unaable un unable"), [4, 6, 3, 0]);
    assert_eq!(encode(&tokenizer, "UNAABLE!中中"), [4, 6, 7, 8, 8]);
    assert_eq!(encode(&tokenizer, "café cafe\u{301} xyz"), [9, 9, 0]);
    assert_eq!(encode(&tokenizer, &"x".repeat(262_144)), [0]);
    assert_eq!(encode(&tokenizer, " \n"), [0; 0]);
}

#[test]
fn every_text_is_put_between_two_tokens() {
    let added = EncodeOptions { add_special: true, parse_special: true };
    assert_eq!(keys().tokenizer().encode("unaable[SEP]", added), [1, 4, 6, 2, 2]);
}

#[test]
fn case_and_accents_stay_if_the_file_says_so() {
    let tokenizer = keys().with("normalizer.lowercase", Value::Bool(false)).tokenizer();
    assert_eq!(encode(&tokenizer, "cafe Cafe café"), [9, 0, 0]);
}
