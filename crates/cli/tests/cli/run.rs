use crate::tiny::{self, END, bytes};
use crate::util::Dir;
use serde_json::{Value, json};

/// A folder with a model in `m.gguf`.
fn with(model: Vec<u8>) -> Dir {
    let dir = Dir::new();
    dir.file("m.gguf", model);
    dir
}

#[test]
fn the_answer_goes_to_stdout_and_ends_where_the_model_does() {
    let dir = with(tiny::scripted(&[&bytes("\nOk!")[..], &[END]].concat()));
    let outcome = dir.smelt(&["run", "m.gguf", "Why?", "--temp", "0"]);
    assert_eq!(outcome.stderr, "");
    assert_eq!(outcome.ok(), "Ok!\n");
}

#[test]
fn json_is_the_documented_object() {
    let dir = with(tiny::scripted(&[&bytes("\nOk!")[..], &[END]].concat()));
    let args =
        ["run", "m.gguf", "Why?", "--temp", "0", "--json", "--logprobs", "2", "--prompt-logprobs", "1"];
    let report = dir.smelt(&args).json();
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    let expected = "model device prompt_tokens tokens text finish_reason logprobs prompt_logprobs timings";
    assert_eq!(keys, expected.split(' ').collect::<Vec<_>>());
    assert_eq!((&report["model"], &report["device"]), (&json!("m.gguf"), &json!("cpu")));
    assert_eq!(report["tokens"], json!([79, 107, 33, END]));
    assert_eq!((&report["text"], &report["finish_reason"]), (&json!("Ok!"), &json!("stop")));
    let first = &report["logprobs"][0];
    assert_eq!(first["token"], 79);
    assert_eq!((&first["top"][0]["id"], &first["top"][0]["text"]), (&json!(79), &json!("O")));
    assert_eq!(first["top"][0]["logprob"], first["logprob"]);
    assert_eq!(first["top"].as_array().unwrap().len(), 2);
    assert_eq!(report["logprobs"].as_array().unwrap().len(), 4);
    let prompt = report["prompt_tokens"].as_array().unwrap();
    let predictions = report["prompt_logprobs"].as_array().unwrap();
    assert_eq!(prompt.len(), predictions.len());
    // Entry i is the prediction after token i: the last one is of the first token of the answer.
    assert_eq!(predictions[predictions.len() - 1]["top"][0]["id"], 79);
    let timings = &report["timings"];
    assert_eq!((&timings["prompt_n"], &timings["predicted_n"]), (&json!(prompt.len()), &json!(4)));
    for name in ["load_ms", "prompt_ms", "predicted_ms"] {
        assert!(timings[name].as_f64().unwrap() > 0.0, "{name}: {timings}");
    }
}

#[test]
fn lists_that_were_not_asked_for_are_empty() {
    let report = with(tiny::random()).smelt(&["run", "m.gguf", "x", "-n", "2", "--json"]).json();
    assert_eq!((&report["logprobs"], &report["prompt_logprobs"]), (&json!([]), &json!([])));
}

#[test]
fn the_prompt_is_a_message_in_the_template_or_raw() {
    let dir = with(tiny::random());
    let prompt = |args: &[&str]| {
        let run = ["run", "m.gguf", "a<|im_end|>", "-n", "0", "--json"];
        let report = dir.smelt(&[&run[..], args].concat()).json();
        let ids = report["prompt_tokens"].as_array().unwrap().iter();
        ids.map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>()
    };
    assert_eq!(prompt(&["--raw"]), [97, END]);
    // Content that spells a control token stays text.
    let message = |text: &str| {
        let end: &[u32] = if text.starts_with("assistant") { &[] } else { &[END, 10] };
        [&[tiny::START][..], &bytes(text), end].concat()
    };
    let chat = [message("user\na<|im_end|>"), message("assistant\n")].concat();
    assert_eq!(prompt(&[]), chat);
    assert_eq!(prompt(&["--system", "Be."]), [message("system\nBe."), chat].concat());
}

#[test]
fn the_prompt_comes_from_an_argument_a_file_or_stdin() {
    let dir = with(tiny::random());
    dir.file("p.txt", "ab\n");
    let ids = |outcome: crate::util::Outcome| outcome.json()["prompt_tokens"].clone();
    let flags = ["--raw", "--json", "-n", "1"];
    let args = |words: &[&'static str]| [&["run"][..], words, &flags].concat();
    let expected = json!([97, 98, 10]);
    assert_eq!(ids(dir.smelt(&args(&["m.gguf", "ab\n"]))), expected);
    assert_eq!(ids(dir.smelt(&args(&["-m", "m.gguf", "ab\n"]))), expected);
    assert_eq!(ids(dir.smelt(&args(&["m.gguf", "-f", "p.txt"]))), expected);
    assert_eq!(ids(dir.smelt_with(&args(&["m.gguf"]), "ab\n")), expected);
    assert_eq!(ids(dir.smelt_with(&args(&["-m", "m.gguf", "-f", "-"]), "ab\n")), expected);
}

#[test]
fn a_base_model_continues_the_text_with_a_warning() {
    let dir = with(tiny::base());
    let outcome = dir.smelt(&["run", "m.gguf", "ab", "-n", "1", "--json"]);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("warning: the model has no chat template"), "{}", outcome.stderr);
    assert_eq!(outcome.json()["prompt_tokens"], json!([97, 98]));
    assert_eq!(dir.smelt(&["run", "m.gguf", "ab", "-n", "1", "-q"]).stderr, "");
    assert!(dir.smelt(&["run", "m.gguf", "ab", "--system", "x"]).fails(1).contains("--system"));
}

#[test]
fn stop_strings_end_the_answer_and_are_not_part_of_it() {
    let dir = with(tiny::scripted(&bytes("x123456")));
    let report = dir.smelt(&["run", "m.gguf", "x", "--raw", "--temp", "0", "--stop", "45", "--json"]).json();
    assert_eq!((&report["text"], &report["finish_reason"]), (&json!("123"), &json!("stop")));
    assert_eq!(report["tokens"], json!(bytes("12345")));
}

#[test]
fn r13_a_character_of_four_tokens_comes_whole() {
    let script = [&bytes("x😀")[..], &[END]].concat();
    let dir = with(tiny::scripted(&script));
    let args = ["run", "m.gguf", "x", "--raw", "--temp", "0"];
    assert_eq!(dir.smelt(&args).ok(), "😀\n");
    // Cut after two of the four bytes: one U+FFFD for the fragment.
    assert_eq!(dir.smelt(&[&args[..], &["-n", "2"]].concat()).ok(), "\u{fffd}\n");
    let report = dir.smelt(&[&args[..], &["--json"]].concat()).json();
    assert_eq!((&report["text"], &report["tokens"]), (&json!("😀"), &json!(script[1..])));
}

#[test]
fn r13_bytes_that_are_no_text_do_not_end_the_program() {
    let dir = with(tiny::scripted(&[120, 0xe4, 0xbd, END]));
    assert_eq!(dir.smelt(&["run", "m.gguf", "x", "--raw", "--temp", "0"]).ok(), "\u{fffd}\n");
    let dir = with(tiny::scripted(&[120, 0xff, 65, END]));
    let args = ["run", "m.gguf", "x", "--raw", "--temp", "0", "--json", "--logprobs", "1"];
    let report = dir.smelt(&args).json();
    assert_eq!(report["text"], "\u{fffd}A");
    assert_eq!(report["logprobs"][0]["top"][0]["text"], "\u{fffd}");
}

#[test]
fn r15_a_prompt_over_the_context_is_refused_with_both_numbers() {
    let dir = with(tiny::random());
    let run = |tokens: usize, args: &[&str]| {
        let prompt = "x".repeat(tokens);
        let flags = ["run", "m.gguf", &prompt, "--raw", "--ctx", "64", "--ignore-eos", "--json"];
        dir.smelt(&[&flags[..], args].concat())
    };
    let message = run(70, &[]).fails(1);
    assert!(message.contains("70") && message.contains("64"), "{message}");
    // A prompt that fills the context has one prediction left; then the limit is a reason, not an error.
    for (tokens, generated) in [(64, 1), (63, 2), (60, 5)] {
        let report = run(tokens, &["-n", "10"]).json();
        assert_eq!(report["tokens"].as_array().unwrap().len(), generated, "{tokens} tokens");
        assert_eq!(report["finish_reason"], "length");
    }
    let prompt = "x".repeat(60);
    let run = |most: &str| {
        dir.smelt(&["run", "m.gguf", &prompt, "--raw", "--ctx", "64", "--ignore-eos", "-n", most]).stderr
    };
    assert_eq!(run("10"), "warning: the answer ends where the context of 64 tokens does\n");
    assert_eq!(run("5"), "");
}

/// The ids that a run generates.
fn ids(dir: &Dir, args: &[&str]) -> Value {
    let run = ["run", "m.gguf", "Once upon", "--raw", "--ignore-eos", "-n", "24", "--json"];
    let ids = dir.smelt(&[&run[..], args].concat()).json()["tokens"].clone();
    assert_eq!(ids.as_array().unwrap().len(), 24);
    ids
}

#[test]
fn r17_temperature_0_is_greedy() {
    let dir = with(tiny::random());
    let first = ids(&dir, &["--temp", "0"]);
    for _ in 0..2 {
        assert_eq!(ids(&dir, &["--temp", "0"]), first);
    }
    assert_eq!(ids(&dir, &["--temp", "0", "--seed", "7", "--top-k", "3"]), first);
    let args = ["run", "m.gguf", "Once upon", "--raw", "--temp", "0", "-n", "4", "--json", "--logprobs", "1"];
    let report = dir.smelt(&args).json();
    for entry in report["logprobs"].as_array().unwrap() {
        assert_eq!(entry["token"], entry["top"][0]["id"]);
    }
}

#[test]
fn r17_a_seed_repeats() {
    let dir = with(tiny::random());
    let first = ids(&dir, &["--temp", "1", "--seed", "42"]);
    assert_eq!(ids(&dir, &["--temp", "1", "--seed", "42"]), first);
    assert_ne!(ids(&dir, &["--temp", "1", "--seed", "43"]), first);
}

#[test]
fn r17_threads_and_batches_change_nothing() {
    let dir = with(tiny::random());
    let args = ["run", "m.gguf", "Once upon", "--raw", "--temp", "0", "-n", "8", "--json"];
    let run = |flags: &[&str]| {
        let wanted = ["--logprobs", "5", "--prompt-logprobs", "5"];
        let mut report = dir.smelt(&[&args[..], &wanted, flags].concat()).json();
        report["timings"].take();
        report
    };
    let first = run(&["--threads", "1"]);
    assert_eq!(run(&["--threads", "2"]), first);
    assert_eq!(run(&["--batch", "2"]), first);
}

#[test]
fn the_cache_can_have_any_of_its_types() {
    let dir = with(tiny::random());
    for cache in ["f32", "f16", "q8_0"] {
        ids(&dir, &["--cache-type", cache]);
    }
}

#[test]
fn the_order_of_weights_does_not_change_the_answer() {
    let dir = with(tiny::random());
    let expected = ids(&dir, &["--temp", "0"]);
    assert_eq!(ids(&dir, &["--temp", "0", "--no-repack"]), expected);
    assert_eq!(ids(&dir, &["--temp", "0", "--repack-cache"]), expected);
    let both = dir.smelt(&["run", "m.gguf", "x", "--no-repack", "--repack-cache"]).fails(2);
    assert!(both.contains("--no-repack") && both.contains("--repack-cache"), "{both}");
    let mut command = dir.command();
    let output = command.args(["run", "m.gguf", "x"]).env("SMELT_CPU_REPACK", "maybe").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("SMELT_CPU_REPACK: expected 0 or 1, found 'maybe'"), "{stderr}");
}

#[test]
fn the_graph_can_be_seen() {
    let dir = with(tiny::random());
    let mut command = dir.command();
    command.args(["run", "m.gguf", "x", "-n", "1", "--dump-graph", "g.dot"]).env("SMELT_GRAPH_TRACE", "1");
    let output = command.output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cpu"), "the census names the backend");
    assert!(dir.read("g.dot").starts_with("digraph"));
}

#[test]
fn a_graph_that_cannot_be_written_ends_the_run() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let run = |file: &str| dir.smelt(&["run", "m.gguf", "hello", "--raw", "-n", "1", "--dump-graph", file]);
    let message = run("none/graph.dot").fails(1);
    assert!(
        message.starts_with("error: none/graph.dot: the graph cannot be written: No such file"),
        "{message}"
    );
    run("graph.dot").ok();
    assert!(dir.read("graph.dot").starts_with("digraph"));
}
