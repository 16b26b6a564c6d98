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

/// Runs the arguments after the first on a terminal of their own, but for stderr, and types the first, in hexadecimal
/// digits, at the first prompt. Ends with 124 where nothing happens for half a minute.
#[cfg(unix)]
const TYPIST: &str = r#"
import os, pty, select, signal, sys
stderr = os.dup(2)
child, terminal = pty.fork()
if child == 0:
    os.dup2(stderr, 2)
    os.execv(sys.argv[2], sys.argv[2:])
seen = b""
typed = False
while True:
    if not select.select([terminal], [], [], 30)[0]:
        os.kill(child, signal.SIGKILL)
        sys.exit(124)
    try:
        read = os.read(terminal, 1024)
    except OSError:
        break
    if not read:
        break
    seen += read
    if not typed and b"> " in seen:
        os.write(terminal, bytes.fromhex(sys.argv[1]))
        typed = True
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

/// Chats with a person who types these bytes. A terminal takes a pseudo-terminal, and Python has one: the tests of real
/// models need Python, too.
#[cfg(unix)]
fn typed(dir: &Dir, bytes: &[u8]) -> Outcome {
    dir.file("m.gguf", tiny::random());
    let program = dir.command();
    let mut command = std::process::Command::new("python3");
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    command.args(["-c", TYPIST, &digits]).arg(program.get_program());
    command.args(["chat", "m.gguf", "-n", "2", "--temp", "0"]).env("TERM", "xterm");
    command.current_dir(program.get_current_dir().unwrap());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Outcome::of(command.stdin(std::process::Stdio::null()).output().unwrap())
}

#[cfg(unix)]
#[test]
fn a_terminal_that_sends_what_is_no_text() {
    let message = typed(&Dir::new(), b"\xff\xff\r").fails(1);
    assert!(message.contains("error: terminal: "), "{message}");
}

/// As of a paste, or of a person who types while the answer comes.
#[cfg(unix)]
#[test]
fn lines_that_come_in_one_piece_are_all_read() {
    for end in [&b"/exit\r"[..], b"\x04"] {
        let outcome = typed(&Dir::new(), &[b"hello\r/undo\r/undo\r", end].concat());
        assert!(outcome.stderr.ends_with("forgot the last question\nnothing to forget\n"), "{outcome:#?}");
        outcome.ok();
    }
}
