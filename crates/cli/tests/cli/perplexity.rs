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
    assert_eq!(
        message,
        "error: stdin: the text is too short to score: expected at least 512 tokens, found 5; a smaller --chunk takes shorter texts\n"
    );
}

#[test]
fn a_model_without_finite_logits_has_no_perplexity() {
    let dir = Dir::new();
    for factor in [f32::NAN, f32::INFINITY] {
        dir.file("m.gguf", tiny::broken(factor));
        let args = ["perplexity", "m.gguf", "-f", "-", "--chunk", "16", "--json"];
        let message = dir.smelt_with(&args, "a text of more than sixteen bytes").fails(1);
        assert!(message.contains("not finite"), "{factor}: {message}");
    }
}

#[test]
fn chunks_that_cannot_be_are_named() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let text = "Once upon a time. ".repeat(10);
    let run = |flags: &[&str]| {
        dir.smelt_with(&[&["perplexity", "m.gguf", "-f", "-"][..], flags].concat(), &text).fails(2)
    };
    assert!(run(&["--chunks", "0"]).contains("--chunks: expected at least 1, found 0"));
    assert!(run(&["--chunk", "2"]).contains("--chunk: expected at least 3 tokens, found 2"));
    assert!(run(&["--chunk", "-2"]).contains("expected a whole number, 0 or more, found '-2'"));
    assert!(
        run(&["--chunk", "65", "--ctx", "64"])
            .contains("--chunk: expected 3 to 64 tokens, the context, found 65")
    );
    let three = ["perplexity", "m.gguf", "-f", "-", "--chunk", "3", "--chunks", "1"];
    assert!(dir.smelt_with(&three, &text).ok().starts_with("perplexity: "));
}
