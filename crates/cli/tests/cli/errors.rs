//! Kinds of failures that no other file of tests comes across, each as a user meets it.

use crate::tiny;
use crate::util::{Dir, Outcome};

#[test]
fn a_text_that_is_not_there() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    for args in [
        &["run", "m.gguf", "-f", "none.txt"][..],
        &["run", "m.gguf", "x", "--template", "none.txt"],
        &["tokenize", "m.gguf", "-f", "none.txt"],
        &["template", "m.gguf", "-m", "none.txt"],
        &["perplexity", "m.gguf", "-f", "none.txt"],
    ] {
        let message = dir.smelt(args).fails(1);
        assert!(message.starts_with("error: none.txt: No such file or directory"), "{args:?}: {message}");
    }
}

#[test]
fn a_file_without_a_vocabulary() {
    let dir = Dir::new();
    let mut writer = gguf::Writer::new();
    writer.metadata("general.architecture", gguf::Value::String("llama".into()));
    dir.file("bare.gguf", writer.to_bytes().unwrap());
    let message = dir.smelt(&["tokenize", "bare.gguf", "x"]).fails(1);
    assert!(message.starts_with("error: bare.gguf: ") && message.contains("tokenizer.ggml"), "{message}");
}

/// Runs its arguments on a terminal of their own, but for stderr, and types what is no text at the first prompt.
#[cfg(unix)]
const TYPIST: &str = r#"
import os, pty, sys
stderr = os.dup(2)
child, terminal = pty.fork()
if child == 0:
    os.dup2(stderr, 2)
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
typed = False
while True:
    try:
        read = os.read(terminal, 1024)
    except OSError:
        break
    if not read:
        break
    seen += read
    if not typed and b"> " in seen:
        os.write(terminal, b"\xff\xff\r")
        typed = True
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

/// A terminal takes a pseudo-terminal, and Python has one: the tests of real models need Python, too.
#[cfg(unix)]
#[test]
fn a_terminal_that_sends_what_is_no_text() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let program = dir.command();
    let mut command = std::process::Command::new("python3");
    command.args(["-c", TYPIST]).arg(program.get_program()).args(["chat", "m.gguf"]).env("TERM", "xterm");
    command.current_dir(program.get_current_dir().unwrap());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let outcome = Outcome::of(command.stdin(std::process::Stdio::null()).output().unwrap());
    let message = outcome.fails(1);
    assert!(message.contains("error: terminal: "), "{message}");
}
