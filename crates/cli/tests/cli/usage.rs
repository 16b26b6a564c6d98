//! Command lines that make no sense, and what the program says of itself.

use crate::tiny;
use crate::util::Dir;
use std::io::Read;
use std::process::Stdio;

#[test]
fn a_wrong_command_line_ends_with_2() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    dir.file("p.txt", "hello");
    for args in [
        &["run", "m.gguf", "hello", "--temp", "hot"][..],
        &["run", "m.gguf", "hello", "--logprobs", "1"],
        &["run", "m.gguf", "hello", "--raw", "--system", "x"],
        &["run", "m.gguf", "hello", "--device", "abacus"],
        &["run", "m.gguf", "hello", "--logit-bias", "x"],
        &["run", "m.gguf", "hello", "--top-p", "2"],
        &["chat", "m.gguf", "--temp", "-1"],
        &["run", "m.gguf", "hello", "--seed", "-1"],
        &["bench", "m.gguf", "-p", "0", "-n", "0"],
        &["template", "-", "-m", "p.txt"],
        &["pull", "--list", "--verify"],
        &["run", "m.gguf", "hello", "-t", "0"],
        &["run", "m.gguf", "hello", "--logit-bias", "999999=1"],
        &["chat", "m.gguf", "--logit-bias", "999999=1"],
        &["run", "m.gguf", "hello", "-p", "again"],
        &["tokenize", "m.gguf", "hello", "again"],
        &["run", "p.txt"],
        &["dance"],
    ] {
        let outcome = dir.smelt(args);
        assert!(outcome.code == Some(2) && outcome.stderr.contains("error: "), "{args:?}: {outcome:#?}");
    }
}

#[test]
fn an_unknown_model_is_told_what_there_is() {
    let message = Dir::new().smelt(&["run", "no-such-model", "hello"]).fails(1);
    assert!(message.contains("no-such-model") && message.contains("smollm2"), "{message}");
    assert!(Dir::new().smelt(&["pull", "smolm2"]).fails(1).contains("did you mean `smollm2`?"));
    assert!(Dir::new().smelt(&["pull"]).fails(2).contains("`smelt pull --list`"));
}

/// A single word that is no model is the prompt, which is told where it looks like a model's name.
#[test]
fn a_mistyped_model_alone_is_noticed() {
    let warning = "taking 'smolm2' as the prompt; the model is called 'smollm2'";
    assert!(Dir::new().smelt(&["run", "smolm2"]).fails(1).contains(warning));
    for args in [&["run", "hello"][..], &["run", "-m", "smollm2", "smolm2"], &["run", "-p", "smolm2"]] {
        assert!(!Dir::new().smelt(args).fails(1).contains("as the prompt"));
    }
}

#[test]
fn a_prompt_that_is_the_name_of_a_file_is_noticed() {
    let dir = Dir::new();
    dir.file("question", "Why?");
    for (args, file) in
        [(&["run", "README.md"][..], "README.md"), (&["run", "smollm2", "question"], "question")]
    {
        let message = dir.smelt(args).fails(1);
        assert!(message.contains(&format!("`-f {file}` reads one from a file")), "{message}");
    }
    assert!(!dir.smelt(&["run", "What is 3.txt"]).fails(1).contains("reads one from a file"));
}

#[test]
fn a_prompt_needs_no_quotes_after_the_model() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let ids = |words: &[&str]| {
        dir.smelt(&[&["run"], words, &["--raw", "-n", "0", "--json"]].concat()).json()["prompt_tokens"]
            .clone()
    };
    let expected = serde_json::json!(tiny::bytes("Why is it?"));
    assert_eq!(ids(&["m.gguf", "Why is it?"]), expected);
    assert_eq!(ids(&["m.gguf", "Why", "is", "it?"]), expected);
    assert_eq!(ids(&["-m", "m.gguf", "Why", "is", "it?"]), expected);
    let message = dir.smelt(&["run", "Why", "is", "it?"]).fails(1);
    assert!(message.starts_with("error: no model called `Why`"), "{message}");
    assert!(message.ends_with("; if 'Why' begins the prompt, put the prompt in quotes\n"), "{message}");
    // With a file, one word is a model; a prompt of one word is not told apart from a slip.
    dir.file("q.txt", "Why?");
    let message = dir.smelt(&["run", "Sum:", "-f", "q.txt"]).fails(1);
    assert!(message.ends_with("name the model, too: smelt run -m smollm2 'Sum:'\n"), "{message}");
    for path in ["none/m", "m2.gguf"] {
        let message = dir.smelt(&["run", path, "Why", "is"]).fails(1);
        assert!(message.ends_with("hf:OWNER/REPO[:QUANT]\n"), "{message}");
    }
}

#[test]
fn a_text_as_the_only_word_is_no_bad_model() {
    let dir = Dir::new();
    dir.file("question.txt", "Why?");
    let expected = "error: 'question.txt' is a file, but no GGUF model; to take the prompt from it: smelt run -f \
                    question.txt\n";
    assert_eq!(dir.smelt(&["run", "question.txt"]).fails(2), expected);
    // One that is called a model is taken for one.
    dir.file("bad.gguf", "Why?");
    assert!(dir.smelt_with(&["run", "bad.gguf"], "hello").fails(1).contains("bad.gguf: "));
}

#[test]
fn a_file_comes_after_the_prompt() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::base());
    dir.file("p.txt", "cd");
    let run = |args: &[&str], stdin: &str| {
        let outcome = dir.smelt_with(&[&["run"], args, &["-n", "0", "--json", "-q"]].concat(), stdin);
        outcome.json()["prompt_tokens"].clone()
    };
    let expected = serde_json::json!(tiny::bytes("ab\n\ncd"));
    assert_eq!(run(&["m.gguf", "ab", "-f", "p.txt"], ""), expected);
    assert_eq!(run(&["m.gguf", "-p", "ab", "-f", "p.txt"], ""), expected);
    assert_eq!(run(&["m.gguf", "ab", "-f", "-"], "cd"), expected);
    assert_eq!(run(&["m.gguf", "ab", "-f", "p.txt", "--raw"], ""), serde_json::json!(tiny::bytes("abcd")));
}

#[test]
fn stdin_that_is_not_read_is_told_and_never_waited_for() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let run = ["run", "m.gguf", "ab", "--raw", "-n", "1"];
    let notice = "warning: stdin is not read, since there is a prompt; `-f -` adds it to the prompt\n";
    assert_eq!(dir.smelt_with(&run, "cd").stderr, if cfg!(unix) { notice } else { "" });
    assert_eq!(dir.smelt_with(&run, "").stderr, "");
    assert_eq!(dir.smelt_with(&[&run[..], &["-f", "-"]].concat(), "cd").stderr, "");
    // A pipe that stays open without a byte.
    let (reader, writer) = std::io::pipe().unwrap();
    let output = dir.command().args(run).stdin(reader).output().unwrap();
    drop(writer);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn log_probabilities_have_a_limit() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let run =
        |args: &[&str]| dir.smelt(&[&["run", "m.gguf", "--raw", "--json", "-c", "32768"], args].concat());
    let prompt = "x".repeat(17_000);
    for (args, tokens) in [
        (&[&prompt, "--prompt-logprobs", "9999", "-n", "1"][..], 17_000),
        (&["x", "--logprobs", "9999"], 32_768),
    ] {
        let message = run(args).fails(2);
        let expected = format!(
            "logprobs 258: expected at most 4194304 log-probabilities in all, found up to {tokens} tokens of 258 each: {} in all\n",
            tokens * 258
        );
        assert!(message.ends_with(&expected), "{message}");
    }
    run(&["x", "--logprobs", "9999", "--prompt-logprobs", "9999", "-n", "2"]).ok();
}

#[test]
fn nothing_is_fetched_offline() {
    let message = Dir::new().smelt(&["run", "smollm2", "hello", "--offline"]).fails(1);
    assert!(message.contains("`smollm2`") && message.contains("--offline forbids"), "{message}");
    let message = Dir::new().smelt(&["run", "smollm2", "hello"]).fails(1);
    assert!(message.contains("SMELT_OFFLINE forbids"), "{message}");
}

/// Before anything is loaded or fetched: the model is not there.
#[test]
fn a_prompt_without_content_is_none() {
    let dir = Dir::new();
    dir.file("p.txt", " \n\t\n");
    for args in [
        &["run"][..],
        &["run", "smollm2"],
        &["run", ""],
        &["run", "smollm2", " \n"],
        &["run", "-p", ""],
        &["run", "smollm2", "-f", "p.txt"],
        &["run", "smollm2", "--raw"],
        &["run", "smollm2", "", "--raw"],
    ] {
        let message = dir.smelt(args).fails(2);
        assert!(message.starts_with("error: no prompt: give it as"), "{args:?}: {message}");
    }
}

#[test]
fn a_prompt_can_be_a_flag_and_leaves_stdin_alone() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let ids = |args: &[&str]| {
        let run = ["run", "m.gguf", "--raw", "-n", "0", "--json", "--ctx-size", "64"];
        dir.smelt_with(&[&run[..], args].concat(), "other text").json()["prompt_tokens"].clone()
    };
    assert_eq!(ids(&["-p", "ab"]), serde_json::json!([97, 98]));
    assert_eq!(ids(&["ab"]), serde_json::json!([97, 98]));
    assert_eq!(ids(&["--prompt", "-ab"]), serde_json::json!([45, 97, 98]));
}

#[test]
fn a_context_beyond_what_the_model_knows_is_warned_of() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let run = |ctx| dir.smelt(&["run", "m.gguf", "hello", "--raw", "-n", "1", "-c", ctx]);
    let outcome = run("1048577");
    assert!(outcome.stderr.starts_with("warning: --ctx 1048577: the model was trained with 1048576 tokens"));
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
    outcome.ok();
    assert_eq!(run("1048576").stderr, "");
}

#[test]
fn options_out_of_range_are_named() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let run = |flag, value| dir.smelt(&["run", "m.gguf", "hello", "--raw", flag, value]).fails(2);
    assert!(run("--ctx", "0").contains("context"));
    assert!(run("--batch", "0").contains("batch"));
}

#[test]
fn aliases_are_listed() {
    let text = Dir::new().smelt(&["pull", "--list"]).ok();
    assert!(text.contains("smollm2") && text.contains("98.36 MB"), "{text}");
}

#[test]
fn the_cpu_is_a_device() {
    let dir = Dir::new();
    assert!(dir.smelt(&["devices"]).ok().starts_with("cpu "));
    assert_eq!(dir.smelt(&["devices", "--json"]).json()[0]["name"], "cpu");
    let version = dir.smelt(&["--version"]).ok();
    assert!(version.starts_with(concat!("smelt ", env!("CARGO_PKG_VERSION"))), "{version}");
    assert!(version.contains(std::env::consts::ARCH) && version.contains("\ncpu: "), "{version}");
}

#[test]
fn a_closed_pipe_ends_the_program_quietly() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let mut command = dir.command();
    command.args(["run", "m.gguf", "x", "--raw", "--ignore-eos", "-n", "20000", "--ctx", "32768"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 8]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{:?}: {stderr}", output.status);
}

#[test]
fn negative_numbers_reach_the_check_of_their_range() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let run = |flag, value| dir.smelt(&["run", "m.gguf", "hello", flag, value]).fails(2);
    for (flag, value, words) in [
        ("--temp", "-1", "temperature is -1, expected a finite number, 0 or more"),
        ("--temp", "-inf", "temperature is -inf"),
        ("--top-p", "-0.5", "top_p is -0.5"),
        ("--min-p", "-1e-3", "min_p is -0.001"),
        ("--repeat-penalty", "-1", "repeat_penalty is -1"),
        ("--top-k", "-1", "expected a whole number, 0 or more, found '-1'"),
        ("-n", "-1", "expected a whole number, 0 or more, found '-1'"),
        ("--threads", "-1", "expected a whole number, 0 or more, found '-1'"),
    ] {
        let message = run(flag, value);
        assert!(message.contains(words), "{flag} {value}: {message}");
    }
}

#[test]
fn more_threads_than_processors_are_not_used() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let run = |flags: &[&str]| dir.smelt(&[&["run", "m.gguf", "hello", "--raw", "-n", "2"], flags].concat());
    let available = std::thread::available_parallelism().unwrap();
    let outcome = run(&["-t", "100000"]);
    let warning = format!("using {available}\n");
    assert!(outcome.stderr.starts_with("warning: -t 100000: only ") && outcome.stderr.ends_with(&warning));
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    outcome.ok();
    assert_eq!(run(&["-t", &available.to_string()]).stderr, "");
    assert_eq!(run(&["-t", "100000", "--quiet"]).stderr, "");
}

#[cfg(unix)]
#[test]
fn what_is_there_but_no_file_is_said() {
    let dir = Dir::new();
    let pipe = dir.file("x", "").with_file_name("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::create_dir(pipe.with_file_name("folder")).unwrap();
    for (name, words) in
        [("pipe", "pipe is a pipe"), ("folder", "folder is a folder"), ("/dev/null", "a device")]
    {
        let message = dir.smelt(&["run", "-m", name, "hello"]).fails(1);
        assert!(message.contains(words) && message.contains("expected a GGUF file"), "{message}");
    }
}

/// The help and the version are answers, too.
#[cfg(target_os = "linux")]
#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    for args in
        [&["--help"][..], &["--version"], &["run", "--help"], &["run", "m.gguf", "x", "--raw", "-n", "2"]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = dir.command().args(args).stdin(Stdio::null()).stdout(full).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: stdout: "), "{args:?}: {stderr}");
    }
}

#[test]
fn help_into_a_closed_pipe_is_quiet() {
    let dir = Dir::new();
    for args in [&["--help"][..], &["--version"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = dir.command().args(args).stdin(Stdio::null()).stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}
