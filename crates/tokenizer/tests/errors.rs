//! One test for each error, and arbitrary metadata: an error, never a panic.

mod common;

use common::{CONTROL, Keys, NORMAL, byte_level, sentencepiece, strings, text};
use gguf::{Array, Value};
use proptest::prelude::*;
use tokenizer::{EncodeOptions, Error};

fn bpe() -> Keys {
    byte_level("gpt-2", &[("a", "b")], &[("<|im_end|>", CONTROL)])
}

/// The error of a vocabulary, and its text, which is one line.
fn error(keys: &Keys) -> (Error, String) {
    let error = keys.load().unwrap_err();
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    (error, text)
}

#[test]
fn a_missing_key() {
    for (keys, name) in [
        (bpe(), "model"),
        (bpe(), "tokens"),
        (bpe(), "merges"),
        (sentencepiece(&[]), "tokens"),
        (sentencepiece(&[]), "scores"),
    ] {
        let (error, text) = error(&keys.without(name));
        assert!(matches!(error, Error::Metadata(_)), "{error:?}");
        assert!(text.contains(&format!("tokenizer.ggml.{name}")), "{text}");
    }
}

#[test]
fn a_key_of_the_wrong_type() {
    for name in ["tokens", "merges", "token_type", "bos_token_id", "add_bos_token"] {
        let (error, text) = error(&bpe().with(name, Value::F32(1.0)));
        assert!(matches!(error, Error::Metadata(_)), "{error:?}");
        assert!(text.contains(&format!("tokenizer.ggml.{name}")), "{text}");
    }
}

#[test]
fn an_unknown_kind() {
    let (error, text) = error(&bpe().with("model", common::text("rwkv\n")));
    assert!(matches!(error, Error::Kind { .. }), "{error:?}");
    assert!(text.contains(r"found 'rwkv\n'") && text.contains("gpt2, llama, gemma4, bert"), "{text}");
}

#[test]
fn an_unknown_pretokenizer() {
    let (error, text) = error(&bpe().with("pre", text("gpt-17")));
    assert!(matches!(error, Error::PreTokenizer { .. }), "{error:?}");
    assert!(text.contains("'gpt-17'") && tokenizer::pretokenizer_names().all(|name| text.contains(name)));
}

#[test]
fn no_tokens() {
    let (error, text) = error(&bpe().with("tokens", strings([""; 0])));
    assert!(matches!(error, Error::Size { found: 0, .. }), "{error:?}");
    assert!(text.contains("'tokenizer.ggml.tokens'") && text.contains("found 0"), "{text}");
}

#[test]
fn types_and_scores_of_the_wrong_length() {
    let (types, types_text) = error(&bpe().with("token_type", Value::Array(Array::I32(vec![NORMAL; 5]))));
    assert!(matches!(types, Error::Length { found: 5, expected: 258, .. }), "{types:?}");
    assert!(types_text.contains("'tokenizer.ggml.token_type'"), "{types_text}");
    let (scores, scores_text) =
        error(&sentencepiece(&[]).with("scores", Value::Array(Array::F32(vec![0.0; 300]))));
    assert!(matches!(scores, Error::Length { found: 300, expected: 259, .. }), "{scores:?}");
    assert!(scores_text.contains("'tokenizer.ggml.scores'"), "{scores_text}");
}

#[test]
fn an_id_that_is_not_in_the_vocabulary() {
    for name in ["bos_token_id", "eos_token_id", "eot_token_id", "unknown_token_id", "fim_pad_token_id"] {
        let (error, text) = error(&bpe().with(name, Value::U32(258)));
        assert!(matches!(error, Error::Id { found: 258, tokens: 258, .. }), "{error:?}");
        assert!(text.contains(&format!("'tokenizer.ggml.{name}'")), "{text}");
        assert!(bpe().with(name, Value::U32(257)).load().is_ok());
        // What some writers put where a model has no such token.
        assert!(bpe().with(name, Value::U32(u32::MAX)).load().is_ok());
    }
}

#[test]
fn merges_of_nothing() {
    for (merge, what) in [
        ("ab", "two texts"),
        ("a ", "two texts"),
        ("", "two texts"),
        ("a zzz", "'zzz' is no token"),
        ("zzz a", "'zzz' is no token"),
        ("b a", "'ba' is no token"),
        ("é é", "'éé' is no token"),
    ] {
        let (error, text) = error(&bpe().with("merges", strings(["a b", merge])));
        assert!(matches!(error, Error::Merge { index: 1, .. }), "{error:?}");
        assert!(text.contains("entry 1") && text.contains(what), "{text}");
    }
}

/// No file brings these about: the one takes more special tokens than ids, the other a fault of this crate.
#[test]
fn errors_of_the_search_and_of_patterns() {
    let search = Error::SpecialTokens("too many states".into());
    assert!(
        search.to_string().contains("'tokenizer.ggml.tokens'")
            && search.to_string().contains("too many states")
    );
    let pattern = Error::Pattern { pattern: "(", error: "unclosed".into() };
    assert!(pattern.to_string().contains("'('") && pattern.to_string().contains("unclosed"));
}

/// Texts that a vocabulary may hold, many of which mean something.
fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c]{0,3}",
        "[Ġ▁ĊÃ©]{1,2}[a-b]{0,2}",
        "<0x[0-9A-Gé]{0,3}>",
        prop::sample::select(vec!["<unk>", "</s>", "<|end|>", "<|call|>", "<|return|>", "", " ", "é", "\0"])
            .prop_map(str::to_owned),
        any::<String>(),
    ]
}

fn keys() -> impl Strategy<Value = Keys> {
    let model = prop::sample::select(vec!["gpt2", "llama", "gemma4", "bert", "other"]);
    let pre = prop::sample::select(vec!["gpt-2", "llama-bpe", "default", "deepseek-llm", "gemma4", "other"]);
    let tokens = prop::collection::vec(token(), 0..12);
    let merges = prop::collection::vec("[a-cĠ▁é]{0,2} ?[a-cĠ▁é]{0,2}", 0..4);
    let types = prop::collection::vec(-1..8i32, 0..12);
    let scores = prop::collection::vec(any::<f32>(), 0..12);
    let ids = prop::collection::vec((0..6usize, 0..14u32), 0..4);
    (model, pre, tokens, merges, types, scores, ids, any::<[bool; 6]>()).prop_map(
        |(model, pre, tokens, merges, mut types, mut scores, ids, flags)| {
            // Mostly of the right length, or else nothing else would be tried.
            if flags[0] {
                types.resize(tokens.len(), NORMAL);
                scores.resize(tokens.len(), 0.0);
            }
            let names = ["bos", "eos", "eot", "unknown", "seperator", "fim_pad"];
            let mut keys = Keys::new(model)
                .with("pre", text(pre))
                .with("tokens", strings(&tokens))
                .with("token_type", Value::Array(Array::I32(types)))
                .with("scores", Value::Array(Array::F32(scores)))
                .with("merges", if flags[1] { strings([""; 0]) } else { strings(&merges) })
                .with("add_bos_token", Value::Bool(flags[2]))
                .with("add_eos_token", Value::Bool(flags[3]))
                .with("add_space_prefix", Value::Bool(flags[4]))
                .with("remove_extra_whitespaces", Value::Bool(flags[5]));
            for (name, id) in ids {
                keys = keys.with(&format!("{}_token_id", names[name]), Value::U32(id));
            }
            keys
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_metadata_never_panics(keys in keys(), input in "([abc é<>|/s▁]|<unk>|</s>|\\PC){0,20}") {
        if let Ok(tokenizer) = keys.load() {
            for add_special in [false, true] {
                for parse_special in [false, true] {
                    let ids = tokenizer.encode(&input, EncodeOptions { add_special, parse_special });
                    prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
                    let literal: Vec<_> = (0..input.len()).map(|at| at..at + 1).collect();
                    tokenizer.encode_rendered(&input, &literal, EncodeOptions { add_special, parse_special });
                    tokenizer.decode(&ids, parse_special);
                }
            }
        }
    }
}
