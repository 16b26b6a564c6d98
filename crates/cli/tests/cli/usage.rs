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
        &["run", "m.gguf", "hello", "-f", "p.txt"],
        &["run", "m.gguf", "hello", "--logprobs", "1"],
        &["run", "m.gguf", "hello", "--raw", "--system", "x"],
        &["run", "m.gguf", "hello", "--device", "abacus"],
        &["run", "m.gguf", "hello", "--logit-bias", "x"],
        &["run", "m.gguf", "hello", "--top-p", "2"],
        &["chat", "m.gguf", "--temp", "-1"],
        &["run", "-m", "m.gguf", "hello", "again"],
        &["bench", "m.gguf", "-p", "0", "-n", "0"],
        &["template", "-", "-m", "p.txt"],
        &["pull"],
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
}

#[test]
fn nothing_is_fetched_offline() {
    let message = Dir::new().smelt(&["run", "smollm2", "hello", "--offline"]).fails(1);
    assert!(message.contains("smollm2"), "{message}");
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
