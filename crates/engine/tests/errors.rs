//! What an engine refuses, and what it says. Files that do not load and options out of range need no weights.

use engine::{DType, Engine, Error, LoadOptions};
use gguf::{Value, Writer};
use std::path::PathBuf;

fn load(writer: &Writer, name: &str, options: &LoadOptions) -> Error {
    let path = std::env::temp_dir().join(format!("smelt-engine-{}-{name}.gguf", std::process::id()));
    std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
    let loaded = Engine::load(&path, options, &mut |_, _| {});
    std::fs::remove_file(&path).unwrap();
    loaded.err().unwrap_or_else(|| panic!("{name} loaded"))
}

#[test]
fn a_file_that_is_not_there() {
    let missing = PathBuf::from("no-such-file.gguf");
    let error = Engine::load(&missing, &LoadOptions::default(), &mut |_, _| {}).err().unwrap();
    assert!(matches!(error, Error::File(_)) && error.to_string().contains("no-such-file.gguf"), "{error}");
}

#[test]
fn a_file_that_is_no_model() {
    let mut writer = Writer::new();
    writer.metadata("general.architecture", Value::String("nonsense".into()));
    let error = load(&writer, "nonsense", &LoadOptions::default());
    assert!(matches!(error, Error::Model { .. }), "{error}");
    assert!(
        error.to_string().contains("smelt-engine") && error.to_string().contains("'nonsense'"),
        "{error}"
    );
}

#[test]
fn errors_say_what_was_found_and_expected() {
    for (error, text) in [
        (Error::ContextExceeded { tokens: 300, context: 256 }, "300 tokens, more than the context of 256"),
        (Error::OutOfPages { needed: 3, free: 1 }, "3 pages needed, 1 free"),
        (Error::EmptyPrompt, "the prompt is empty"),
        (Error::TextTooShort { tokens: 5, chunk: 512 }, "at least 512 tokens, found 5"),
        (
            Error::Vocabulary { path: "m.gguf".into(), tokens: 9, rows: 8 },
            "9 tokens, but the embedding 8 rows",
        ),
        (Error::Device { name: "cpu".into(), message: "no threads".into() }, "device 'cpu': no threads"),
        (Error::Option { name: "batch", message: "expected 1".into() }, "batch: expected 1"),
        (graph::GraphError::NotRun.into(), "before a forward pass finished"),
        (graph::BatchError::QueryRanges.into(), "query ranges"),
        (sampling::Error::EmptyLogits.into(), ""),
    ] {
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(DType::F16.to_string(), "f16");
}
