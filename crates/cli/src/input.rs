//! Text that the user hands over: an argument, a file or stdin.

use crate::error::{Error, Result};
use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

/// A file's text, or all of stdin for `-`. It is taken as it is, a newline at its end included.
pub fn file(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        return stdin();
    }
    let bytes = fs::read(path).map_err(Error::file(path))?;
    utf8(path, bytes)
}

/// All of stdin.
pub fn stdin() -> Result<String> {
    let path = Path::new("stdin");
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).map_err(Error::file(path))?;
    utf8(path, bytes)
}

/// The text of an argument, of a file, or of stdin if that is no terminal.
pub fn text(argument: Option<&str>, path: Option<&Path>, what: &str) -> Result<String> {
    match (argument, path) {
        (Some(text), _) => Ok(text.to_owned()),
        (None, Some(path)) => file(path),
        (None, None) if !io::stdin().is_terminal() => stdin(),
        (None, None) => {
            Err(Error::Usage(format!("no {what}: give it as an argument, with -f FILE, or on stdin")))
        }
    }
}

fn utf8(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| Error::Content {
        path: path.to_path_buf(),
        message: format!("expected UTF-8, found an invalid byte at {}", error.utf8_error().valid_up_to()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_byte_is_named() {
        let error = utf8(Path::new("a.txt"), b"ab\xffc".to_vec()).unwrap_err();
        assert_eq!(error.to_string(), "a.txt: expected UTF-8, found an invalid byte at 2");
    }
}
