//! Ctrl-C.
#![cfg(unix)]

use crate::tiny;
use crate::util::{Dir, Outcome};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// A run that would take minutes.
fn long_run(dir: &Dir, flags: &[&str]) -> Child {
    dir.file("m.gguf", tiny::random());
    let mut command = dir.command();
    command.args(["run", "m.gguf", "x", "--raw", "--ignore-eos", "--ctx", "1000000"]).args(flags);
    // A line on stderr whenever a graph is built shows that the model is at work.
    command.env("SMELT_GRAPH_TRACE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn the_answer_so_far_is_kept() {
    let dir = Dir::new();
    let mut child = long_run(&dir, &[]);
    let mut begin = [0; 16];
    child.stdout.as_mut().unwrap().read_exact(&mut begin).unwrap();
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.ends_with(b"\n"));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("error"));
}

#[test]
fn json_is_printed_with_what_there_is() {
    let dir = Dir::new();
    let mut child = long_run(&dir, &["--json"]);
    child.stderr.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    interrupt(&child);
    let outcome = Outcome::of(child.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(130));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["finish_reason"], "cancelled");
    assert_eq!(report["prompt_tokens"], serde_json::json!([120]));
}

#[test]
fn a_piped_conversation_ends() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let mut command = dir.command();
    command.args(["chat", "m.gguf", "--logit-bias", "257=-inf", "--ctx", "1000000"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"Hello\nNever answered\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 16]).unwrap();
    interrupt(&child);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
}

/// Before there is anything to keep, as while a prompt is read, a model loads or a text becomes tokens. A pipe that the
/// program has opened shows that it is running, and holds it there.
#[test]
fn nothing_is_waited_for_before_the_work_begins() {
    let dir = Dir::new();
    let model = dir.file("m.gguf", tiny::random());
    for args in [
        &["run", "m.gguf", "--raw", "-f", "pipe"][..],
        &["tokenize", "m.gguf", "-f", "pipe"],
        &["template", "m.gguf", "-m", "pipe"],
        &["chat", "m.gguf", "--template", "pipe"],
        &["perplexity", "m.gguf", "-f", "pipe"],
    ] {
        let pipe = model.with_file_name("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut command = dir.command();
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let writer = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
        interrupt(&child);
        let outcome = Outcome::of(child.wait_with_output().unwrap());
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(130), ""), "{args:?}: {outcome:?}");
        drop(writer);
        std::fs::remove_file(&pipe).unwrap();
    }
}

#[test]
fn a_perplexity_of_a_part_is_no_result() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    dir.file("t.txt", "Once upon a time. ".repeat(200_000));
    for flags in [&[][..], &["--json"]] {
        let mut command = dir.command();
        command.args(["perplexity", "m.gguf", "-f", "t.txt", "--chunk", "32"]).args(flags);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The first running value.
        child.stderr.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
        interrupt(&child);
        let outcome = Outcome::of(child.wait_with_output().unwrap());
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(130), ""), "{flags:?}");
        let last = outcome.stderr.lines().last().unwrap();
        assert!(last.starts_with("interrupted after ") && last.ends_with(" of 112500 chunks"), "{last}");
    }
}
