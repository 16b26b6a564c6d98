use crate::tiny::{self, END, bytes};
use crate::util::Dir;
use serde_json::json;

/// A folder with a model in `m.gguf` that always answers "Ok".
fn ok_model() -> Dir {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::scripted(&[&bytes("\nOk")[..], &[END]].concat()));
    dir
}

/// Tokens of a question as the template renders it, and of what begins the answer.
fn question(text: &str) -> usize {
    1 + "user\n".len() + text.len() + 1 + 1 + 1 + "assistant\n".len()
}

#[test]
fn each_line_is_a_turn() {
    let dir = ok_model();
    let outcome = dir.smelt_with(&["chat", "m.gguf", "--temp", "0"], "Hello\n\nAgain");
    assert_eq!(outcome.stderr, "");
    assert_eq!(outcome.ok(), "Ok\nOk\n");
}

#[test]
fn the_second_turn_prefills_only_what_is_new() {
    let dir = ok_model();
    let text = dir.smelt_with(&["chat", "m.gguf", "--temp", "0"], "Hello\n/stats\nAgain\n/stats\n").ok();
    let numbers = |name: &str| -> Vec<usize> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect()
    };
    let first = question("Hello");
    // The question and "Ok" are there; the answer's end, which was only sampled, and a newline are not.
    assert_eq!(numbers("cached: "), [0, first + 2], "{text}");
    assert_eq!(numbers("prefilled: "), [first, 2 + question("Again")], "{text}");
    assert_eq!(numbers("generated: "), [3, 3], "{text}");
    assert_eq!(numbers("context: "), [first + 2, first + 2 + 2 + question("Again") + 2], "{text}");
}

#[test]
fn the_stats_are_those_of_the_last_answer_that_is_left() {
    let dir = ok_model();
    let script = "Hello\n/stats\nAgain\n/undo\n/stats\n/undo\n/stats\nHello\n/regen\n/save a.json\n/stats\n/clear\n/stats\n\
                  /load a.json\n/stats\nAgain\n/undo\n/stats\n";
    let text = dir.smelt_with(&["chat", "m.gguf", "--temp", "0"], script).ok();
    let context: Vec<usize> = text
        .lines()
        .filter_map(|line| line.strip_prefix("context: "))
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    let first = question("Hello") + 2;
    // Of what was loaded nothing was computed here.
    assert_eq!(context, [first, first, 0, first, 0, 0, 0], "{text}");
    assert_eq!(text.matches("generated: 3 tokens").count(), 3, "{text}");
    // The first answer's, word for word, times included.
    let told =
        |at: usize| text.split("Ok\n").nth(at).unwrap().split_inclusive('\n').take(4).collect::<String>();
    assert_eq!(told(1), told(2), "{text}");
}

#[test]
fn an_answer_ends_its_line_once() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::scripted(&[&bytes("\nOk!\n")[..], &[END]].concat()));
    // The answer goes round between its first and its last line break.
    let outcome = dir.smelt_with(&["chat", "m.gguf", "--temp", "0", "-n", "4"], "Hello\nAgain\n");
    assert_eq!(outcome.ok(), "Ok!\nOk!\n");
}

#[test]
fn a_conversation_can_be_saved_changed_and_loaded() {
    let dir = ok_model();
    let script = "/system Be.\nHello\nMore\n/undo\n/save a.json\n/clear\n/save b.json\n/load a.json\n/regen\n/save c.json\n";
    assert_eq!(dir.smelt_with(&["chat", "m.gguf", "--temp", "0"], script).ok(), "Ok\nOk\nOk\n");
    let saved = |name: &str| -> serde_json::Value { serde_json::from_str(&dir.read(name)).unwrap() };
    let system = json!({ "role": "system", "content": "Be." });
    let turn =
        [json!({ "role": "user", "content": "Hello" }), json!({ "role": "assistant", "content": "Ok" })];
    assert_eq!(saved("a.json"), json!([system, turn[0], turn[1]]));
    assert_eq!(saved("b.json"), json!([system]));
    assert_eq!(saved("c.json"), saved("a.json"));
}

#[test]
fn the_first_failure_of_a_script_ends_it() {
    let dir = ok_model();
    for (line, message) in [
        ("/dance", "stdin: unknown command '/dance': /help lists them"),
        ("/load", "stdin: /load needs a FILE"),
        ("/load none.json", "none.json: No such file or directory"),
    ] {
        let outcome = dir.smelt_with(&["chat", "m.gguf", "--temp", "0"], &format!("Hello\n{line}\nHello\n"));
        assert!(outcome.stderr.starts_with(&format!("error: {message}")), "{outcome:#?}");
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), "Ok\n"), "{line}");
    }
}

#[test]
fn what_a_command_did_is_said() {
    let dir = ok_model();
    let script =
        "/undo\n/system Be.\nHello\n/save a.json\n/undo\n/load a.json\n/system\n/clear\n/quit\nnever read\n";
    let outcome = dir.smelt_with(&["chat", "m.gguf", "--temp", "0"], script);
    let said: Vec<&str> = outcome.stderr.lines().collect();
    let expected = [
        "nothing to forget",
        "system message set",
        "a.json: saved 3 messages",
        "forgot the last question",
        "a.json: loaded 3 messages",
        "no system message",
        "a new conversation",
    ];
    assert_eq!(said, expected);
    assert_eq!(outcome.ok(), "Ok\n");
    assert_eq!(dir.smelt_with(&["chat", "m.gguf", "-q"], "/undo\n/clear\n").stderr, "");
}

#[test]
fn r15_a_conversation_that_outgrows_the_context_says_so() {
    let dir = ok_model();
    let outcome = dir.smelt_with(&["chat", "m.gguf", "--temp", "0", "--ctx", "64"], &"x".repeat(60));
    let message = outcome.fails(1);
    assert!(message.contains(&question(&"x".repeat(60)).to_string()) && message.contains("64"), "{message}");
}

#[test]
fn r15_an_answer_that_the_context_cuts_short_says_so() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let chat = |args: &[&str]| {
        let all =
            [&["chat", "m.gguf", "--temp", "0", "--ctx", "64", "--logit-bias", "257=-inf"], args].concat();
        dir.smelt_with(&all, "Hello\n").stderr
    };
    let full = "warning: the answer ends where the context of 64 tokens does; /undo or /clear makes room\n";
    assert_eq!(chat(&[]), full);
    assert_eq!(chat(&["-n", "3"]), "");
}

#[test]
fn a_file_of_another_kind_is_not_written_over() {
    let dir = ok_model();
    dir.file("m.gguf.smelt-packed", "SMELTPAK");
    let model = dir.file("notes.txt", "Do not forget.").with_file_name("m.gguf");
    for name in ["m.gguf", "m.gguf.smelt-packed", "notes.txt"] {
        let file = model.with_file_name(name);
        let expected = std::fs::read(&file).unwrap();
        let message = dir.smelt_with(&["chat", "m.gguf"], &format!("/save ./{name}\n")).fails(2);
        assert!(message.contains(&format!("{name}: not written over: expected a conversation")), "{message}");
        let run = ["run", "m.gguf", "x", "-n", "1", "--dump-graph", name];
        let message = dir.smelt(&run).fails(2);
        assert!(message.contains(&format!("{name}: not written over: expected a graph")), "{message}");
        assert_eq!(std::fs::read(&file).unwrap(), expected);
    }
    // Its own files are.
    dir.file("empty", "");
    for name in ["a.json", "a.json", "empty"] {
        dir.smelt_with(&["chat", "m.gguf"], &format!("/save {name}\n")).ok();
    }
    for _ in 0..2 {
        dir.smelt(&["run", "m.gguf", "x", "-n", "1", "--dump-graph", "g.dot"]).ok();
    }
}

#[test]
fn a_base_model_cannot_chat() {
    let dir = Dir::new();
    dir.file("b.gguf", tiny::base());
    assert!(dir.smelt(&["chat", "b.gguf"]).fails(1).contains("--template"));
}

#[test]
fn an_answer_of_no_tokens_is_an_answer() {
    let dir = ok_model();
    let script = "Hello\n/save a.json\n";
    assert_eq!(dir.smelt_with(&["chat", "m.gguf", "--max-tokens", "0"], script).ok(), "\n");
    let saved: serde_json::Value = serde_json::from_str(&dir.read("a.json")).unwrap();
    assert_eq!(saved[0], json!({ "role": "user", "content": "Hello" }), "the question was meant");
    assert_eq!(saved[1], json!({ "role": "assistant", "content": "" }));
}

#[test]
fn a_template_cannot_come_from_the_conversation() {
    let dir = ok_model();
    assert!(
        dir.smelt_with(&["chat", "m.gguf", "--template", "-"], "Hello\n").fails(2).contains("--template")
    );
}
