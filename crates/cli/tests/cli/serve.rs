//! `smelt serve`, as a process: what it refuses, and how it ends. What it answers is tested in the `server` crate.

use crate::tiny;
use crate::util::Dir;

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    for (flags, words) in [
        (&["--host", "0.0.0.0", "--port", "0"][..], "0.0.0.0:0 can be reached from other machines"),
        (&["--port", "0", "--parallel", "0"], "sequences at a time: expected 1 to 4096, found 0"),
        (&["--port", "0", "--cache-tokens", "1"], "tokens of the KV cache: expected"),
        (&["--port", "0", "--lookup", "100"], "guessed tokens: expected 0 to 64, found 100"),
        (&["--host", "nowhere"], "--host"),
        (&["--api-key", "x", "--no-auth"], "cannot be used with"),
    ] {
        let args = [&["serve", "m.gguf"], flags].concat();
        let outcome = dir.smelt(&args);
        assert_eq!(outcome.code, Some(2), "{outcome:#?}");
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    // Without a line of the log: the server does not begin.
    dir.file("text.gguf", "# no model");
    let message = dir.smelt(&["serve", "not-there.gguf", "--port", "0"]).fails(1);
    assert!(message.starts_with("error: no model called `not-there.gguf`"), "{message}");
    let message = dir.smelt(&["serve", "text.gguf", "--port", "0"]).fails(1);
    assert!(message.starts_with("error: text.gguf: not a GGUF file"), "{message}");
}

#[cfg(unix)]
mod signals {
    use super::*;
    use serde_json::{Value, json};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::process::{Child, ChildStderr, Command, Stdio};

    /// A server, its log, and where it listens. Its model is `m.gguf`.
    fn start(dir: &Dir, flags: &[&str]) -> (Child, BufReader<ChildStderr>, String) {
        let (child, mut log, address) = spawn(dir, flags);
        assert_eq!(wait_for(&mut log, "KV cache")["model"], "m");
        (child, log, address)
    }

    /// The same before the model is loaded.
    fn spawn(dir: &Dir, flags: &[&str]) -> (Child, BufReader<ChildStderr>, String) {
        let mut command = dir.command();
        command.args(["serve", "m.gguf", "--port", "0", "--log", "json"]).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = wait_for(&mut log, "listening")["address"].as_str().unwrap().to_owned();
        (child, log, address.strip_prefix("http://").unwrap().to_owned())
    }

    /// The line of the log whose message begins so.
    fn wait_for(log: &mut impl BufRead, message: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "'{message}' did not come");
            let line: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if line["message"].as_str().is_some_and(|text| text.starts_with(message)) {
                return line;
            }
        }
    }

    /// A request that was sent.
    fn send(address: &str, path: &str, body: &Value) -> BufReader<TcpStream> {
        let body = body.to_string();
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nx-request-id: mine\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        BufReader::new(stream)
    }

    /// A streamed request whose answer has begun.
    fn ask(address: &str, tokens: usize) -> BufReader<TcpStream> {
        let body = json!({"prompt": "abc", "max_tokens": tokens, "ignore_eos": true, "stream": true});
        let mut reader = send(address, "/v1/completions", &body);
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the answer did not begin");
        }
        reader
    }

    fn signal(child: &Child, name: &str) {
        assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
    }

    #[test]
    fn what_a_model_lacks_and_why_a_request_is_refused_is_in_the_log() {
        let dir = Dir::new();
        dir.file("m.gguf", tiny::base());
        let (mut child, mut log, address) = spawn(&dir, &[]);
        let warning = wait_for(&mut log, "the model has no chat template");
        assert_eq!(warning["level"], "WARN");
        wait_for(&mut log, "ready");
        let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let mut refused = String::new();
        send(&address, "/v1/chat/completions", &body).read_to_string(&mut refused).unwrap();
        assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
        let line = wait_for(&mut log, "request");
        assert_eq!((&line["status"], &line["request_id"]), (&json!(400), &json!("mine")));
        assert!(line["reason"].as_str().unwrap().contains("no chat template"), "{line}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn answers_end_after_sigterm_and_the_program_after_them() {
        let dir = Dir::new();
        dir.file("m.gguf", tiny::random());
        for name in ["-TERM", "-INT"] {
            let (mut child, mut log, address) = start(&dir, &["--ctx", "4096"]);
            let mut answer = ask(&address, 2000);
            signal(&child, name);
            let mut rest = String::new();
            answer.read_to_string(&mut rest).unwrap();
            assert!(rest.contains("\"length\"") && rest.contains("data: [DONE]"), "{rest}");
            wait_for(&mut log, "stopped");
            assert_eq!(child.wait().unwrap().code(), Some(0));
        }
    }

    #[test]
    fn an_answer_that_does_not_end_is_cut_off() {
        let dir = Dir::new();
        dir.file("m.gguf", tiny::random());
        let (mut child, mut log, address) = start(&dir, &["--ctx", "1000000", "--drain", "0"]);
        let _answer = ask(&address, 900_000);
        signal(&child, "-TERM");
        assert_eq!(wait_for(&mut log, "stopped")["cut_off"], 1);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    #[test]
    fn a_server_that_was_killed_starts_again() {
        let dir = Dir::new();
        dir.file("m.gguf", tiny::random());
        for _ in 0..3 {
            let (mut child, _log, address) = start(&dir, &["--ctx", "4096"]);
            let _answer = ask(&address, 2000);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
