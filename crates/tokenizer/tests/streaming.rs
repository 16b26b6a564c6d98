//! Bug report 13: text comes out of ids in whole characters.

mod common;

use common::{CONTROL, NORMAL, PLAIN, byte_level, sentencepiece};
use proptest::prelude::*;
use std::sync::Arc;
use tokenizer::{Detokenizer, Tokenizer};

/// A token for each byte; id = byte.
fn bytes() -> Arc<Tokenizer> {
    Arc::new(byte_level("gpt-2", &[], &[("<|im_end|>", CONTROL)]).tokenizer())
}

/// The pieces of text, the last of them at the end.
fn stream(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer.clone());
    let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

#[test]
fn r13_a_character_over_four_tokens_comes_with_the_last() {
    assert_eq!(stream(&bytes(), &[0xf0, 0x9f, 0x98, 0x80]), ["", "", "", "😀", ""]);
}

#[test]
fn r13_a_fragment_at_the_end_is_one_replacement() {
    assert_eq!(stream(&bytes(), &[0xe4, 0xbd]), ["", "", "\u{fffd}"]);
    assert_eq!(stream(&bytes(), &[0xf0, 0x9f]), ["", "", "\u{fffd}"]);
}

#[test]
fn r13_bytes_that_are_no_text_come_at_once() {
    assert_eq!(stream(&bytes(), &[0xff]), ["\u{fffd}", ""]);
    assert_eq!(stream(&bytes(), &[0xe4, 0x61]), ["", "\u{fffd}a", ""]);
    assert_eq!(stream(&bytes(), &[0xe4, 0xe4, 0xbd, 0xa0]), ["", "\u{fffd}", "", "你", ""]);
}

#[test]
fn r13_a_family_is_never_broken_inside_a_character() {
    let family = "👨‍👩‍👧‍👦";
    let ids: Vec<u32> = family.bytes().map(u32::from).collect();
    let pieces = stream(&bytes(), &ids);
    assert_eq!(pieces.concat(), family);
    assert!(pieces.iter().all(|piece| piece.chars().count() <= 1 && !piece.contains('\u{fffd}')));
}

#[test]
fn control_tokens_and_ids_beyond_the_vocabulary_have_no_text() {
    assert_eq!(stream(&bytes(), &[0xc3, 256, 9999, 0xa9]), ["", "", "", "é", ""]);
}

#[test]
fn a_blank_that_encoding_put_first_is_dropped_at_the_start_only() {
    let tokenizer = Arc::new(sentencepiece(&[("▁a", NORMAL)]).tokenizer());
    let ids = tokenizer.encode("a a", PLAIN);
    let mut detokenizer = Detokenizer::from_start(tokenizer.clone());
    assert_eq!(ids.iter().map(|&id| detokenizer.push(id)).collect::<String>(), "a a");
    assert_eq!(stream(&tokenizer, &ids).concat(), " a a");
}

proptest! {
    #[test]
    fn r13_joined_pieces_are_the_text_of_all_bytes(
        ids in prop::collection::vec(prop_oneof![
            0..258u32,
            prop::sample::select(vec![0x80, 0xbf, 0xc3, 0xe0, 0xed, 0xe4, 0xf0, 0xf4, 0x9f, 0xa0]),
        ], 0..40)
    ) {
        let tokenizer = bytes();
        let whole = tokenizer.decode(&ids, false);
        prop_assert_eq!(stream(&tokenizer, &ids).concat(), String::from_utf8_lossy(&whole));
    }
}
