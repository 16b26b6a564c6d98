//! Identical ids to llama.cpp's own test files: no special tokens added, none parsed.

use std::fs;
use std::path::Path;
use tokenizer::{EncodeOptions, Tokenizer};

const BETWEEN_CASES: &str = "\n__ggml_vocab_test__\n";

/// Every case of a vocabulary's `.inp` and `.out`.
fn check(name: &str) {
    let dir = testdata::llama_cpp_models_dir();
    let path = |extension: &str| dir.join(format!("ggml-vocab-{name}.gguf{extension}"));
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = gguf::File::open(path("")).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    let (inputs, outputs) = (read(&path(".inp")), read(&path(".out")));
    let texts: Vec<&str> = inputs.split(BETWEEN_CASES).collect();
    let mut expected: Vec<&str> = outputs.split('\n').collect();
    // The last line of ids may end with a line end.
    if expected.len() == texts.len() + 1 {
        assert_eq!(expected.pop(), Some(""), "{name}");
    }
    assert_eq!(texts.len(), expected.len(), "{name}");
    assert!(texts.len() > 40, "{name}: {} cases", texts.len());
    for (text, expected) in texts.iter().zip(expected) {
        let expected: Vec<u32> = expected.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let ids = tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: false });
        assert_eq!(ids, expected, "{name}: {text:?}");
    }
}

macro_rules! vocabularies {
    ($($test:ident $name:literal;)*) => {
        $(
            #[test]
            fn $test() {
                check($name);
            }
        )*
    };
}

vocabularies! {
    bert_bge "bert-bge";
    command_r "command-r";
    deepseek_coder "deepseek-coder";
    deepseek_llm "deepseek-llm";
    falcon "falcon";
    gemma_4 "gemma-4";
    gpt_2 "gpt-2";
    llama_bpe "llama-bpe";
    llama_spm "llama-spm";
    mpt "mpt";
    phi_3 "phi-3";
    qwen2 "qwen2";
    qwen35 "qwen35";
    refact "refact";
    starcoder "starcoder";
}

#[test]
fn a_kind_that_is_not_supported_is_one_clear_error() {
    let path = testdata::llama_cpp_models_dir().join("ggml-vocab-nomic-bert-moe.gguf");
    let file = gguf::File::open(path).unwrap();
    let error = Tokenizer::from_metadata(file.metadata()).unwrap_err().to_string();
    assert!(error.contains("found 't5'") && error.contains("gpt2") && !error.contains('\n'), "{error}");
}
