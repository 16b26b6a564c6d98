//! Text that the user hands over: an argument, a file or stdin.

use crate::error::{Error, Result};
use serde_json::Value;
use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether stdin was read.
static READ: AtomicBool = AtomicBool::new(false);

/// A file's text, or all of stdin for `-`. It is taken as it is, a newline at its end included.
pub fn file(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        return stdin();
    }
    let file = fs::File::open(path).map_err(Error::file(path))?;
    bounded(path, file)
}

/// All of stdin. It can be read once: a second time there would be nothing left, and no sign of that.
pub fn stdin() -> Result<String> {
    if READ.swap(true, Ordering::SeqCst) {
        let message =
            "stdin can be read once, and two inputs are to come from it: only one of them can be `-`";
        return Err(Error::Usage(message.into()));
    }
    bounded(Path::new("stdin"), io::stdin().lock())
}

/// How a file is called in messages: `-` is stdin.
pub fn name(path: &Path) -> &Path {
    if path == Path::new("-") { Path::new("stdin") } else { path }
}

/// The first bytes of a file, at most `len`; `None` for what is no regular file, since a pipe would have to be waited for.
pub fn start(path: &Path, len: usize) -> io::Result<Option<Vec<u8>>> {
    if !path.metadata()?.is_file() {
        return Ok(None);
    }
    let mut start = Vec::new();
    fs::File::open(path)?.take(len as u64).read_to_end(&mut start)?;
    Ok(Some(start))
}

/// The items of a JSON array; `path` and what they are, in words, are named in errors.
pub fn json_array(text: &str, path: &Path, items: &str) -> Result<Vec<Value>> {
    let wrong = |place: String, found: &str| {
        let message = format!("{place}expected a JSON array of {items}, found {found}");
        Err(Error::Content { path: name(path).to_path_buf(), message })
    };
    // Without space at the end, so that a text that ends too soon is told of where it ends.
    let found = match serde_json::from_str(text.trim_end()) {
        Ok(Value::Array(items)) => return Ok(items),
        Ok(Value::Null) => "null",
        Ok(Value::Bool(_)) => "a boolean",
        Ok(Value::Number(_)) => "a number",
        Ok(Value::String(_)) => "a string",
        Ok(Value::Object(_)) => "an object",
        Err(error) => {
            let place = format!("line {}, column {}: ", error.line(), error.column());
            if error.is_eof() {
                return wrong(place, "the end of the text");
            }
            // The reader's words without the place, which stands before.
            let words = error.to_string();
            let words = words.split(" at line ").next().unwrap_or_default();
            return wrong(place, &format!("what is no JSON ({words})"));
        }
    };
    wrong(String::new(), found)
}

/// The text of an argument, of a file, or of stdin if that is no terminal.
pub fn text(argument: Option<&str>, path: Option<&Path>, what: &str) -> Result<String> {
    match (argument, path) {
        (Some(text), _) => Ok(text.to_owned()),
        (None, Some(path)) => file(path),
        (None, None) if !io::stdin().is_terminal() => stdin(),
        (None, None) => Err(missing(what)),
    }
}

/// The error for a text that is not there, or has nothing in it.
pub fn missing(what: &str) -> Error {
    Error::Usage(format!("no {what}: give it as an argument, with -f FILE, or on stdin"))
}

/// Longest text, in bytes: far more than any context holds, and an end to devices that have none.
pub const MAX_TEXT: u64 = 256 << 20;

fn bounded(path: &Path, from: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(Error::file(path))?;
    if bytes.len() as u64 > MAX_TEXT {
        let message = format!("expected a text of at most {MAX_TEXT} bytes");
        return Err(Error::Content { path: path.to_path_buf(), message });
    }
    utf8(path, bytes)
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
