use crate::tiny;
use crate::util::Dir;

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
    }
    let table = dir.smelt(&["bench", "m.gguf", "-p", "8", "-n", "0", "-r", "1"]).ok();
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
}
