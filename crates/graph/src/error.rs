//! The errors of this crate.

use std::fmt;

/// A backend could not do what was asked. The scheduler adds the node and the backend's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendError {
    /// Memory for a buffer, state or weight could not be had.
    OutOfMemory {
        /// What it was for.
        what: String,
        /// Bytes asked for.
        bytes: usize,
    },
    /// A handle that this backend never gave out, or took back.
    UnknownHandle {
        /// `buffer`, `state` or `split`.
        kind: &'static str,
        /// Its number.
        id: usize,
    },
    /// A read or write with the wrong length or past the end.
    Length {
        /// What was accessed.
        what: String,
        /// Bytes that it has.
        expected: usize,
        /// Bytes that the caller brought or asked for.
        found: usize,
    },
    /// A weight that the node reads was never registered.
    MissingWeight {
        /// The weight's name in the file.
        name: String,
    },
    /// A broken invariant of a node: shape, type or count.
    Invariant {
        /// What was checked.
        what: String,
        /// What the node demands.
        expected: String,
        /// What it met.
        found: String,
    },
    /// A value in an input is outside its range (a token id past the vocabulary, a cache row past the cache).
    BadInput {
        /// Which input.
        what: String,
        /// Row of the input.
        row: usize,
        /// The value.
        found: i64,
        /// The limit that it breaks.
        limit: i64,
    },
    /// The device failed, or did not finish before the deadline; the message carries its status and the last
    /// dispatch labels.
    Device(String),
    /// Another device that shares the work did not come to where the two meet: what it failed with is the cause.
    Partner(String),
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendError::OutOfMemory { what, bytes } => write!(f, "no memory for {what} ({bytes} bytes)"),
            BackendError::UnknownHandle { kind, id } => write!(f, "unknown {kind} {id}"),
            BackendError::Length { what, expected, found } => {
                write!(f, "{what}: expected {expected} bytes, found {found}")
            }
            BackendError::MissingWeight { name } => write!(f, "weight '{name}' is not registered"),
            BackendError::Invariant { what, expected, found } => {
                write!(f, "{what}: expected {expected}, found {found}")
            }
            BackendError::BadInput { what, row, found, limit } => {
                write!(f, "{what}, row {row}: {found} is outside 0..{limit}")
            }
            BackendError::Device(message) => write!(f, "device: {message}"),
            BackendError::Partner(message) => write!(f, "another device: {message}"),
        }
    }
}

impl std::error::Error for BackendError {}

/// Building or running a graph failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GraphError {
    /// A node was built from inputs that do not fit it.
    Build {
        /// Label of the node, such as `blk.3.attn_q`.
        node: String,
        /// What was found and what was expected.
        message: String,
    },
    /// No backend supports a node, not even the last in the order of priority.
    Unsupported {
        /// Label of the node.
        node: String,
        /// The operation and its types.
        op: String,
        /// The backends that were asked.
        backends: Vec<String>,
    },
    /// A node's buffer is not where the plan put it.
    Placement {
        /// Label of the node.
        node: String,
        /// The backend that runs the node.
        expected: String,
        /// The backend that holds the buffer.
        found: String,
    },
    /// An input has the wrong length for the graph that was built.
    Input {
        /// Which input.
        what: String,
        /// Elements that the graph takes.
        expected: usize,
        /// Elements that were brought.
        found: usize,
    },
    /// An accelerator takes part that the scheduler does not have.
    UnknownBackend {
        /// The name in the participation.
        name: String,
        /// The backends that there are.
        backends: Vec<String>,
    },
    /// A run without a graph: none was prepared, or the last one could not be built.
    NotPrepared,
    /// A read of an output before a forward finished.
    NotRun,
    /// A read of an output that does not exist, or not in this size.
    Output {
        /// Index of the output.
        index: usize,
        /// What was checked.
        what: &'static str,
        /// The most that there are, or the number that it must be.
        expected: usize,
        /// What was asked for.
        found: usize,
    },
    /// A backend failed.
    Backend {
        /// The backend's name.
        backend: String,
        /// Label of the node that it ran, or what it did.
        node: String,
        /// The failure.
        source: BackendError,
    },
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GraphError::Build { node, message } => write!(f, "graph node '{node}': {message}"),
            GraphError::Unsupported { node, op, backends } => {
                write!(f, "no backend supports node '{node}' ({op}); asked: {}", backends.join(", "))
            }
            GraphError::Placement { node, expected, found } => {
                write!(f, "node '{node}' runs on {expected}, but its buffer is on {found}")
            }
            GraphError::Input { what, expected, found } => {
                write!(f, "input {what}: expected {expected} elements, found {found}")
            }
            GraphError::UnknownBackend { name, backends } => {
                write!(f, "participation names '{name}', but the backends are: {}", backends.join(", "))
            }
            GraphError::NotPrepared => f.write_str("a forward pass was run before a graph was prepared"),
            GraphError::Output { index, what, expected, found } => {
                write!(f, "output {index}: {what}: expected {expected}, found {found}")
            }
            GraphError::NotRun => f.write_str("outputs were read before a forward pass finished"),
            GraphError::Backend { backend, node, source } => write!(f, "{backend}, node '{node}': {source}"),
        }
    }
}

impl std::error::Error for GraphError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            GraphError::Backend { source, .. } => Some(source),
            _ => None,
        }
    }
}
