use crate::tiny;
use crate::util::Dir;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn bench_has_a_line_per_test() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let args = ["bench", "m.gguf", "-p", "8,16", "-n", "4", "-d", "0,32", "-r", "3", "-o", "json"];
    let rows = dir.smelt(&args).json();
    let tests: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp8", "pp16", "tg4", "pp8 @ d32", "pp16 @ d32", "tg4 @ d32"]);
    for row in rows.as_array().unwrap() {
        let [min, median, max] = ["min", "median", "max"].map(|name| row[name].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{row}");
        assert_eq!(row["reps"], 3);
        // Only generation is set against the speed of memory.
        let generates = row["test"].as_str().unwrap().starts_with("tg");
        for key in ["read_gb_per_s", "of_memory"] {
            assert_eq!(row[key].as_f64().is_some_and(|value| value > 0.0), generates, "{key}: {row}");
        }
    }
    let outcome = dir.smelt(&["bench", "m.gguf", "-p", "8", "-n", "0", "-r", "1"]);
    assert_eq!(outcome.stderr, "[1/1] pp8\n");
    let table = outcome.ok();
    assert!(table.lines().count() == 3 && table.contains("| pp8 |"), "{table}");
}

#[test]
fn a_model_without_finite_logits_is_not_measured() {
    let dir = Dir::new();
    for factor in [f32::NAN, f32::INFINITY] {
        dir.file("m.gguf", tiny::broken(factor));
        for work in [["-p", "8", "-n", "0"], ["-p", "0", "-n", "2"]] {
            let message = dir.smelt(&[&["bench", "m.gguf", "-r", "1"][..], &work].concat()).fails(1);
            assert!(message.contains("not finite"), "{factor}: {message}");
        }
    }
}

#[test]
fn the_table_has_the_threads_that_were_used() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let rows = dir.smelt(&["bench", "m.gguf", "-p", "8", "-n", "0", "-r", "1", "-o", "json", "-t", "100000"]);
    assert_eq!(rows.stderr.matches("warning: -t 100000: only ").count(), 1, "{rows:?}");
    let available = std::thread::available_parallelism().unwrap().get();
    assert_eq!(rows.json()[0]["threads"], available);
    let rows = dir.smelt(&["bench", "m.gguf", "-p", "8", "-n", "0", "-r", "1", "-o", "json"]).json();
    assert!((1..=available as u64).contains(&rows[0]["threads"].as_u64().unwrap()), "{rows}");
}

#[test]
fn what_the_context_has_no_room_for_is_refused_before_anything_is_measured() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let message = dir.smelt(&["bench", "m.gguf", "-p", "8", "-n", "4", "-d", "0,60", "--ctx", "64"]).fails(2);
    assert_eq!(message, "error: pp8 @ d60 needs 68 tokens, more than the context (--ctx) of 64\n");
    let message = dir.smelt(&["bench", "m.gguf", "-p", "8", "-n", "4", "-d", "1048570"]).fails(2);
    assert_eq!(
        message,
        "error: pp8 @ d1048570 needs 1048578 tokens, more than the model's context of 1048576\n"
    );
}

#[test]
fn a_line_is_there_as_soon_as_it_is_measured() {
    let dir = Dir::new();
    dir.file("m.gguf", tiny::random());
    let mut command = dir.command();
    command.args(["bench", "m.gguf", "-p", "8,100000", "-n", "0", "-r", "1"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines: Vec<String> =
        BufReader::new(child.stdout.take().unwrap()).lines().take(3).map(Result::unwrap).collect();
    assert!(lines[2].contains("| pp8 |"), "{lines:?}");
    // The second test takes minutes.
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}
