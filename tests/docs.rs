//! What the documentation names exists.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file and folder of the repository, with `/` in front.
fn entries() -> Vec<String> {
    let root = root();
    let (mut entries, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            if name.to_str().is_none_or(|name| name.starts_with('.') || name == "target") {
                continue;
            }
            let path = entry.path();
            entries.push(format!("/{}", path.strip_prefix(&root).unwrap().display()));
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            }
        }
    }
    entries
}

fn read(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The names of files and folders between backticks: what has a slash and no space, or the ending of a source file.
fn paths(text: &str) -> Vec<&str> {
    const ENDINGS: [&str; 10] = [".rs", ".h", ".metal", ".cu", ".cuh", ".md", ".py", ".sh", ".toml", ".html"];
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter(|name| {
            let plain = !name.is_empty() && !name.contains([' ', ':', '=', '<', '(', '*']);
            plain && (name.contains('/') || ENDINGS.iter().any(|ending| name.ends_with(ending)))
        })
        .collect()
}

/// Where a name stands for no entry: neither a whole path nor the end of one.
fn missing<'n>(entries: &[String], names: &[&'n str]) -> Vec<&'n str> {
    let exists = |name: &str| {
        let end = format!("/{}", name.trim_end_matches('/'));
        entries.iter().any(|entry| entry.ends_with(&end))
    };
    names.iter().copied().filter(|name| !exists(name)).collect()
}

#[test]
fn names_of_files_are_told_from_other_code() {
    let text =
        "`graph/src`, `a.rs`, `Scheduler::run`, `cargo test -p x/y`, a/b, `SMELT_X=a/b`, ``, `models/`";
    assert_eq!(paths(text), ["graph/src", "a.rs", "models/"]);
    let entries = ["/crates/graph/src".to_owned(), "/crates/graph/src/aa.rs".to_owned()];
    assert_eq!(missing(&entries, &["graph/src/", "aa.rs", "a.rs", "raph/src"]), ["a.rs", "raph/src"]);
}

#[test]
fn every_line_of_the_comparison_names_a_file_of_ours() {
    let (entries, text) = (entries(), read("docs/comparison.md"));
    let mut steps = 0;
    for line in text.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| smelt |")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        assert_eq!(cells.len(), 5, "{line}");
        let ours = paths(cells[4]);
        assert!(!ours.is_empty(), "no file of ours: {line}");
        assert_eq!(missing(&entries, &ours), [""; 0], "{line}");
        assert!(cells.iter().all(|cell| !cell.trim().is_empty()), "{line}");
        steps += 1;
    }
    for phase in 0..12 {
        assert!(text.contains(&format!("\n## P{phase} ")), "phase P{phase}");
    }
    assert!(steps > 80, "{steps} lines");
}

#[test]
fn every_file_of_the_checklist_exists() {
    let (entries, text) = (entries(), read("docs/checklist.md"));
    let mut names = 0;
    for line in text.lines().filter(|line| line.starts_with("- [")) {
        // Before the dash is what was asked for, with names of others.
        let (_, ours) = line.rsplit_once(" — ").unwrap_or_else(|| panic!("no answer: {line}"));
        let ours = paths(ours);
        assert_eq!(missing(&entries, &ours), [""; 0], "{line}");
        names += ours.len();
    }
    assert!(names > 100, "{names} files");
}

/// The sources of a crate, by their paths below `crates`.
fn sources(crates: &[&str]) -> Vec<(String, String)> {
    let of_crate = |name: &String| crates.iter().any(|of| name.starts_with(&format!("/crates/{of}/src/")));
    let entries = entries().into_iter().filter(|name| of_crate(name) && name.ends_with(".rs"));
    entries.map(|name| (name.trim_start_matches("/crates/").to_owned(), read(&name[1..]))).collect()
}

/// Which system it is asked for by the device's module and where devices are opened, and nowhere else.
#[test]
fn what_is_for_macos_alone_is_the_device_and_its_registration() {
    let mut asking: Vec<String> = sources(&["metal", "engine", "graph", "models", "server"])
        .into_iter()
        .filter(|(_, text)| text.contains("target_os = \"macos\"") || text.contains("target_vendor"))
        .map(|(name, _)| name)
        .collect();
    asking.sort();
    assert_eq!(asking, ["engine/src/device.rs", "metal/src/device/mod.rs"]);
}

/// What calls Apple's interface runs on a Mac alone: it is to be read at a glance.
#[test]
fn the_device_of_apple_stays_small() {
    let parts = sources(&["metal"]).into_iter().filter(|(name, _)| name.contains("/device/objc/"));
    let lines: usize = parts.map(|(_, text)| text.lines().count()).sum();
    assert!((1..=640).contains(&lines), "{lines} lines");
}
