//! The help texts, word for word: whoever changes a flag sees what users will see. `UPDATE_HELP=1` writes them anew.

use crate::util::Dir;
use std::path::Path;

#[test]
fn help_texts_are_those_on_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/help");
    let commands = [
        "",
        "run",
        "chat",
        "serve",
        "inspect",
        "tokenize",
        "template",
        "perplexity",
        "bench",
        "pull",
        "devices",
    ];
    for command in commands {
        let args: Vec<&str> = [command, "--help"].into_iter().filter(|arg| !arg.is_empty()).collect();
        let found = Dir::new().smelt(&args).ok();
        let words: Vec<&str> = ["help", command].into_iter().filter(|arg| !arg.is_empty()).collect();
        assert_eq!(Dir::new().smelt(&words).ok(), found, "smelt {}", words.join(" "));
        let path = folder.join(format!("{}.txt", if command.is_empty() { "smelt" } else { command }));
        if std::env::var_os("UPDATE_HELP").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert_eq!(found, expected, "{}", path.display());
    }
}
