//! What can go wrong, as the user is told it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of a command.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum Error {
    /// The command line makes no sense.
    Usage(String),
    /// A file could not be read or written.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file's content is not what it should be.
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The model could not be found or fetched.
    Hub(hub::Error),
    /// The model's file is broken.
    Gguf(gguf::Error),
    /// The model's vocabulary cannot be used.
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// Why.
        source: tokenizer::Error,
    },
    /// A chat template could not be read or rendered.
    Template {
        /// The file that it came from.
        path: PathBuf,
        /// Why.
        source: chat::Error,
    },
    /// The model could not be loaded or run.
    Engine(engine::Error),
    /// The server could not start or go on.
    Server(server::Error),
    /// The terminal could not be read.
    Terminal(String),
    /// stdout could not be written. A closed pipe is no failure: who read it has seen enough.
    Stdout(io::Error),
    /// Ctrl-C.
    Interrupted,
    /// Another error, and what the user may have meant.
    Hint {
        /// The error, which says how the program ends.
        error: Box<Error>,
        /// The hint.
        hint: String,
    },
}

impl Error {
    /// For `map_err` on the access to a file.
    pub fn file(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        |source| Error::File { path: path.to_path_buf(), source }
    }

    /// The same error with a hint at its end.
    pub fn with_hint(self, hint: String) -> Error {
        Error::Hint { error: Box::new(self), hint }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(message) => f.write_str(message),
            Error::File { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Content { path, message } => write!(f, "{}: {message}", path.display()),
            Error::Hub(error) => error.fmt(f),
            Error::Gguf(error) => error.fmt(f),
            Error::Tokenizer { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Template { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Engine(error) => error.fmt(f),
            Error::Server(error) => error.fmt(f),
            Error::Terminal(message) => write!(f, "terminal: {message}"),
            Error::Stdout(error) => write!(f, "stdout: {error}"),
            Error::Interrupted => f.write_str("interrupted"),
            Error::Hint { error, hint } => write!(f, "{error}; {hint}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::File { source, .. } => Some(source),
            Error::Hub(error) => Some(error),
            Error::Gguf(error) => Some(error),
            Error::Tokenizer { source, .. } => Some(source),
            Error::Template { source, .. } => Some(source),
            Error::Engine(error) => Some(error),
            Error::Server(error) => Some(error),
            Error::Stdout(error) => Some(error),
            Error::Hint { error, .. } => error.source(),
            Error::Usage(_) | Error::Content { .. } | Error::Terminal(_) | Error::Interrupted => None,
        }
    }
}

impl From<hub::Error> for Error {
    fn from(error: hub::Error) -> Error {
        Error::Hub(error)
    }
}

impl From<gguf::Error> for Error {
    fn from(error: gguf::Error) -> Error {
        Error::Gguf(error)
    }
}

impl From<server::Error> for Error {
    fn from(error: server::Error) -> Error {
        Error::Server(error)
    }
}

impl From<engine::Error> for Error {
    fn from(error: engine::Error) -> Error {
        Error::Engine(error)
    }
}
