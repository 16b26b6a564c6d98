//! Where the user's lines come from: an editor with history on a terminal, plain lines otherwise.

use crate::error::{Error, Result};
use crate::input::MAX_TEXT;
use crate::output::Output;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::fs;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// What the user did.
pub enum Line {
    /// A line, without its end.
    Text(String),
    /// Ctrl-C: the line is dropped.
    Interrupted,
    /// A person's terminal sent what is no text.
    Invalid,
    /// No more lines.
    End,
}

/// The source of lines.
pub enum Lines {
    /// A person.
    Editor {
        /// The line editor.
        editor: Box<DefaultEditor>,
        /// Where its history is, if there is a place for it.
        history: Option<PathBuf>,
    },
    /// A file or a pipe.
    Plain,
}

impl Lines {
    /// An editor if stdin and stdout are a terminal.
    pub fn new(output: &Output) -> Lines {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Lines::Plain;
        }
        let mut editor = match DefaultEditor::new() {
            Ok(editor) => Box::new(editor),
            Err(error) => {
                output.warning(format_args!("no line editing: {error}"));
                return Lines::Plain;
            }
        };
        let history = history_file();
        if let Some(path) = &history
            && path.exists()
            && let Err(error) = editor.load_history(path)
        {
            output.warning(format_args!("{}: {error}", path.display()));
        }
        output.info("/help lists the commands, Ctrl-D leaves");
        Lines::Editor { editor, history }
    }

    /// Whether a person is typing.
    pub fn interactive(&self) -> bool {
        matches!(self, Lines::Editor { .. })
    }

    /// The next line.
    pub fn next(&mut self) -> Result<Line> {
        match self {
            Lines::Editor { editor, history } => match editor.readline("> ") {
                Ok(line) => {
                    remember(editor, history.as_deref(), &line);
                    Ok(Line::Text(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    Ok(Line::Invalid)
                }
                Err(error) => Err(Error::Terminal(error.to_string())),
            },
            Lines::Plain => {
                let path = Path::new("stdin");
                let mut line = String::new();
                let read = io::stdin().lock().take(MAX_TEXT + 1).read_line(&mut line);
                match read.map_err(Error::file(path))? as u64 {
                    0 => Ok(Line::End),
                    length if length > MAX_TEXT => Err(Error::Content {
                        path: path.into(),
                        message: format!("expected a line of at most {MAX_TEXT} bytes"),
                    }),
                    _ => Ok(Line::Text(line.trim_end_matches(['\n', '\r']).to_owned())),
                }
            }
        }
    }
}

/// A history that cannot be written is no reason to disturb a conversation.
fn remember(editor: &mut DefaultEditor, history: Option<&Path>, line: &str) {
    let added = editor.add_history_entry(line).unwrap_or(false);
    if let Some(path) = history.filter(|_| added) {
        let _ = path.parent().map_or(Ok(()), fs::create_dir_all);
        let _ = editor.append_history(path);
    }
}

/// `smelt/history` in the user's data folder, by the custom of the system.
fn history_file() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let data = if cfg!(target_os = "macos") {
        home?.join("Library").join("Application Support")
    } else if cfg!(windows) {
        absolute("APPDATA")?
    } else {
        absolute("XDG_DATA_HOME").or_else(|| home.map(|home| home.join(".local").join("share")))?
    };
    // A pipe of this name would have the program wait for its other end.
    Some(data.join("smelt").join("history")).filter(|path| path.is_file() || !path.exists())
}
