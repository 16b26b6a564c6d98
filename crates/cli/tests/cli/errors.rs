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
fn names_in_a_file_do_not_steer_the_terminal() {
    let dir = Dir::new();
    let mut writer = gguf::Writer::new();
    writer.metadata("general.architecture", gguf::Value::String("ll\x1b[2Jama".into()));
    dir.file("evil.gguf", writer.to_bytes().unwrap());
    let message = dir.smelt(&["run", "evil.gguf", "x"]).fails(1);
    assert!(message.contains("'ll\\u{1b}[2Jama'"), "{message}");
}

#[test]
fn what_comes_from_stdin_is_called_so() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    for (messages, expected) in [
        ("[]", "error: stdin: the conversation is empty"),
        ("{}", "error: stdin: expected a JSON array of messages"),
        ("[", "error: stdin: line 1, column 1: expected a JSON array of messages"),
    ] {
        let message = dir.smelt_with(&["template", "m.gguf", "-m", "-"], messages).fails(1);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn devices_are_those_that_a_model_would_run_on() {
    let dir = Dir::new();
    let devices = |level: &str| {
        let output = dir.command().arg("devices").env("SMELT_CPU", level).output().unwrap();
        Outcome::of(output).ok()
    };
    assert!(devices("scalar").contains(" threads, scalar\n"), "{}", devices("scalar"));
    assert!(devices("mmx").contains(" threads, but SMELT_CPU: expected scalar, "), "{}", devices("mmx"));
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

/// By default the system ends a program that writes beyond the limit on the size of files.
#[cfg(unix)]
#[test]
fn a_limit_on_the_size_of_files_is_told() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let program = dir.command();
    let limited = |args: &[&str]| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -f 1; exec \"$@\"", "sh"]).arg(program.get_program()).args(args);
        command.current_dir(program.get_current_dir().unwrap());
        Outcome::of(command.output().unwrap())
    };
    let run = ["run", "m.gguf", "x", "--raw", "-n", "1"];
    let message = limited(&[&run[..], &["--dump-graph", "g.dot"]].concat()).fails(1);
    assert!(message.starts_with("error: g.dot: the graph cannot be written: File too large"), "{message}");
}

/// Runs the arguments after the first on a terminal of their own, but for stderr, and types the first, in hexadecimal
/// digits: what is before the first comma at the first prompt, and so on. Ends with 124 where nothing happens for half a minute.
#[cfg(unix)]
const TYPIST: &str = r#"
import os, pty, select, signal, sys
stderr = os.dup(2)
child, terminal = pty.fork()
if child == 0:
    os.dup2(stderr, 2)
    os.execv(sys.argv[2], sys.argv[2:])
seen = b""
pieces = sys.argv[1].split(",")
typed = 0
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
    # The line editor asks for brackets around pastes before each prompt.
    prompts = seen.split(b"\x1b[?2004h")
    if typed < len(pieces) and len(prompts) > typed + 1 and b"> " in prompts[-1]:
        os.write(terminal, bytes.fromhex(pieces[typed]))
        typed += 1
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

/// Chats with a person who types these bytes, each piece at a prompt. A terminal takes a pseudo-terminal, and Python has one: the tests of real
/// models need Python, too.
#[cfg(unix)]
fn typed(dir: &Dir, pieces: &[&[u8]]) -> Outcome {
    dir.file("m.gguf", tiny::random());
    let program = dir.command();
    let mut command = std::process::Command::new("python3");
    let digits = |piece: &&[u8]| piece.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let digits: Vec<String> = pieces.iter().map(digits).collect();
    command.args(["-c", TYPIST, &digits.join(",")]).arg(program.get_program());
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
    let outcome = typed(&Dir::new(), &[b"\xff", b"/undo\r\x04"]);
    let invalid = "error: terminal: expected UTF-8, found an invalid byte; the line is dropped\n";
    assert!(outcome.stderr.contains(invalid), "{outcome:#?}");
    assert!(outcome.stderr.ends_with("nothing to forget\n"), "the conversation goes on: {outcome:#?}");
    outcome.ok();
}

/// As of a paste, or of a person who types while the answer comes.
#[cfg(unix)]
#[test]
fn lines_that_come_in_one_piece_are_all_read() {
    for end in [&b"/exit\r"[..], b"\x04"] {
        let outcome = typed(&Dir::new(), &[&[b"hello\r/undo\r/undo\r", end].concat()]);
        assert!(outcome.stderr.ends_with("forgot the last question\nnothing to forget\n"), "{outcome:#?}");
        outcome.ok();
    }
}

/// The outcome of the program with so many KiB of address space: where the system has such a limit and keeps to it.
#[cfg(target_os = "linux")]
fn limited(dir: &Dir, kibibytes: usize, args: &[&str]) -> (Option<i32>, String) {
    let program = dir.command();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -v $0; exec \"$@\"", &kibibytes.to_string()]).arg(program.get_program());
    let output = command.args(args).current_dir(program.get_current_dir().unwrap()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_beyond_the_address_space_is_told_from_one_beyond_the_memory() {
    let dir = Dir::new();
    let path = dir.file("large.gguf", tiny::random());
    // A hole: it takes no room on the disk.
    std::fs::File::options().write(true).open(path).unwrap().set_len(64 << 30).unwrap();
    let (code, stderr) = limited(&dir, 8 << 20, &["inspect", "large.gguf"]);
    assert!(stderr.starts_with("error: large.gguf: Cannot allocate memory"), "{stderr}");
    assert!(stderr.contains("address space") && stderr.contains("`ulimit -v`"), "{stderr}");
    assert_eq!(code, Some(1));
}

#[cfg(target_os = "linux")]
#[test]
fn the_end_of_the_memory_is_told_in_a_sentence() {
    let dir = Dir::new();
    dir.file("t.jinja", "{{ messages | length }}");
    // Three million values of their own, in small lists: more than what is left beside the program, in debug builds too.
    let list = format!("[{}\"abc\"]", "\"abc\",".repeat(999));
    let lists = format!("{}{list}", format!("{list},").repeat(2999));
    dir.file("m.json", format!("[{{\"role\": \"user\", \"content\": [{lists}]}}]"));
    let args = ["template", "-", "-m", "m.json", "--template", "t.jinja"];
    let (code, stderr) = limited(&dir, 160_000, &args);
    assert!(stderr.starts_with("error: no memory is left; ") && stderr.lines().count() == 1, "{stderr}");
    assert_eq!(code, Some(1));
}
