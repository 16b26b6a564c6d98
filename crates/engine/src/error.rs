//! The errors of this crate.

use std::fmt;
use std::path::PathBuf;

/// Loading a model or running it failed.
#[derive(Debug)]
pub enum Error {
    /// The file could not be read.
    File(gguf::Error),
    /// The file was read, but is no model that can be run.
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: models::Error,
    },
    /// The file's vocabulary cannot be used.
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: tokenizer::Error,
    },
    /// The vocabulary has tokens that the embedding has no row for.
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Tokens of the vocabulary.
        tokens: usize,
        /// Rows of the embedding.
        rows: usize,
    },
    /// A device could not be set up.
    Device {
        /// The device's name.
        name: String,
        /// Why.
        message: String,
    },
    /// The graph could not be built or run.
    Graph(Box<graph::GraphError>),
    /// A batch broke a rule: a fault of the caller of [`forward`](crate::Engine::forward).
    Batch(graph::BatchError),
    /// The sampler refused its parameters or the logits.
    Sampling(sampling::Error),
    /// The prompt is longer than the context.
    ContextExceeded {
        /// Tokens of the prompt, with those already in the sequence.
        tokens: usize,
        /// Tokens that the context holds.
        context: usize,
    },
    /// All KV pages are taken by other sequences.
    OutOfPages {
        /// Pages that would be needed.
        needed: usize,
        /// Pages that are free.
        free: usize,
    },
    /// There is nothing to predict from: the prompt has no tokens.
    EmptyPrompt,
    /// A text to score has fewer tokens than one chunk.
    TextTooShort {
        /// Its tokens.
        tokens: usize,
        /// Tokens of a chunk.
        chunk: usize,
    },
    /// The model gave numbers that nothing can be computed from.
    NotFinite {
        /// The token whose logit is the first such one.
        token: usize,
        /// The logit.
        logit: f32,
        /// How many logits there are.
        vocabulary: usize,
    },
    /// The model gave an embedding that no direction can be taken from.
    NotFiniteEmbedding {
        /// The first column that is not a finite number.
        column: usize,
        /// What it is.
        value: f32,
        /// Columns in all.
        columns: usize,
    },
    /// The graph could not be written where [`Trace::dot`](crate::Trace::dot) wants it.
    GraphFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A constraint on an answer failed; its own words.
    Constraint(String),
    /// A fault of ours, which cost one request: the words of the panic.
    Internal(String),
    /// As many requests wait as may.
    Busy {
        /// Requests that are running or waiting.
        requests: usize,
    },
    /// The batching engine has stopped.
    Stopped {
        /// Why.
        reason: String,
    },
    /// An option has a value that cannot be.
    Option {
        /// The option's name.
        name: &'static str,
        /// What was found and expected.
        message: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File(error) => error.fmt(f),
            Error::Model { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Tokenizer { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Vocabulary { path, tokens, rows } => {
                write!(
                    f,
                    "{}: the vocabulary has {tokens} tokens, but the embedding {rows} rows",
                    path.display()
                )
            }
            Error::Device { name, message } => write!(f, "device '{name}': {message}"),
            Error::Graph(error) => error.fmt(f),
            Error::Batch(error) => error.fmt(f),
            Error::Sampling(error) => error.fmt(f),
            Error::ContextExceeded { tokens, context } => {
                write!(f, "the prompt has {tokens} tokens, more than the context of {context}")
            }
            Error::OutOfPages { needed, free } => {
                write!(f, "no room in the KV cache: {needed} pages needed, {free} free")
            }
            Error::EmptyPrompt => f.write_str("the prompt is empty: there is nothing to continue"),
            Error::TextTooShort { tokens, chunk } => {
                write!(f, "the text is too short to score: expected at least {chunk} tokens, found {tokens}")
            }
            Error::NotFinite { token, logit, vocabulary } => write!(
                f,
                "the model's logits are not finite: {logit} at token {token} of {vocabulary}, expected a finite number"
            ),
            Error::NotFiniteEmbedding { column, value, columns } => write!(
                f,
                "the embedding is not finite: {value} in column {column} of {columns}, expected a finite number"
            ),
            Error::GraphFile { path, source } => {
                write!(f, "{}: the graph cannot be written: {source}", path.display())
            }
            Error::Constraint(message) => write!(f, "the answer cannot go on by its grammar: {message}"),
            Error::Internal(message) => write!(f, "internal error: {message}"),
            Error::Busy { requests } => {
                write!(f, "{requests} requests are running or waiting, as many as may; try again later")
            }
            Error::Stopped { reason } => write!(f, "the engine has stopped: {reason}"),
            Error::Option { name, message } => write!(f, "{name}: {message}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File(error) => Some(error),
            Error::Model { source, .. } => Some(source),
            Error::Tokenizer { source, .. } => Some(source),
            Error::Graph(error) => Some(error.as_ref()),
            Error::Batch(error) => Some(error),
            Error::Sampling(error) => Some(error),
            Error::GraphFile { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<gguf::Error> for Error {
    fn from(error: gguf::Error) -> Error {
        Error::File(error)
    }
}

impl From<graph::GraphError> for Error {
    fn from(error: graph::GraphError) -> Error {
        Error::Graph(Box::new(error))
    }
}

impl From<graph::BatchError> for Error {
    fn from(error: graph::BatchError) -> Error {
        Error::Batch(error)
    }
}

impl From<sampling::Error> for Error {
    fn from(error: sampling::Error) -> Error {
        Error::Sampling(error)
    }
}
