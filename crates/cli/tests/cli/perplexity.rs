use crate::tiny::{self, bytes};
use crate::util::Dir;

#[test]
fn a_text_that_the_model_knows_has_a_low_perplexity() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::scripted(&bytes("abcdefgha")));
    dir.file("known.txt", "abcdefgh".repeat(16));
    dir.file("unknown.txt", "hgfedcba".repeat(16));
    let value = |file| {
        let args = ["perplexity", "m.gguf", "-f", file, "--chunk", "64", "--json"];
        let report = dir.smelt(&args).json();
        assert_eq!((&report["chunks"], &report["scored"]), (&2.into(), &62.into()));
        report["perplexity"].as_f64().unwrap()
    };
    let (known, unknown) = (value("known.txt"), value("unknown.txt"));
    assert!((1.0..2.0).contains(&known) && unknown > 10.0, "{known}, {unknown}");
}

#[test]
fn running_values_go_to_stderr_and_the_result_to_stdout() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let args = ["perplexity", "m.gguf", "-f", "-", "--chunk", "32", "--chunks", "2"];
    let outcome = dir.smelt_with(&args, &"Once upon a time. ".repeat(10));
    assert_eq!(outcome.stderr.lines().filter(|line| line.starts_with('[')).count(), 2, "{outcome:?}");
    let text = outcome.ok();
    assert!(text.starts_with("perplexity: ") && text.contains(" +/- "), "{text}");
}

#[test]
fn a_text_shorter_than_a_chunk_is_refused() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let message = dir.smelt_with(&["perplexity", "m.gguf", "-f", "-"], "short").fails(1);
    assert!(message.contains("512") && message.contains('5'), "{message}");
}
