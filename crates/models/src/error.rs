//! The errors of this crate.

use quant::Format;
use std::fmt;

/// A model could not be read from its file.
#[derive(Debug)]
pub enum Error {
    /// A metadata key is missing or of the wrong type.
    Metadata(gguf::Error),
    /// The file's architecture is not among those supported.
    UnknownArchitecture {
        /// `general.architecture` of the file.
        name: String,
        /// What is supported.
        supported: Vec<&'static str>,
    },
    /// A hyper-parameter has a value that cannot be.
    Value {
        /// The metadata key.
        key: String,
        /// The value.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A tensor that the architecture reads is not in the file.
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor has the wrong shape.
    Shape {
        /// The tensor's name.
        name: String,
        /// Its shape, innermost dimension first.
        found: Vec<u64>,
        /// The shape by the hyper-parameters.
        expected: Vec<u64>,
    },
    /// A tensor is in a format that it cannot be in: norms and biases are not packed.
    Format {
        /// The tensor's name.
        name: String,
        /// Its format.
        found: Format,
        /// The formats that it can be in.
        expected: &'static [Format],
    },
    /// The file asks for something that this architecture's implementation does not do.
    Unsupported {
        /// What, and by which key or tensor it is asked for.
        what: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Metadata(error) => error.fmt(f),
            Error::UnknownArchitecture { name, supported } => {
                write!(f, "unknown model architecture '{name}'; supported: {}", supported.join(", "))
            }
            Error::Value { key, found, expected } => write!(f, "'{key}': expected {expected}, found {found}"),
            Error::MissingTensor { name } => write!(f, "tensor '{name}' is missing"),
            Error::Shape { name, found, expected } => {
                write!(f, "tensor '{name}': expected shape {expected:?}, found {found:?}")
            }
            Error::Format { name, found, expected } => {
                let expected: Vec<String> = expected.iter().map(Format::to_string).collect();
                write!(f, "tensor '{name}': expected format {}, found {found}", expected.join(" or "))
            }
            Error::Unsupported { what } => write!(f, "not supported: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Metadata(error) => Some(error),
            _ => None,
        }
    }
}

impl From<gguf::Error> for Error {
    fn from(error: gguf::Error) -> Error {
        Error::Metadata(error)
    }
}
