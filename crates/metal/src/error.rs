//! What can go wrong when the backend starts, and how errors of the device reach the graph.

use crate::device;
use graph::BackendError;
use std::fmt;

/// The backend did not start.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The device refused: a library does not compile, a kernel is missing, there is no queue.
    Device(device::Error),
    /// An environment variable has a value that means nothing.
    Environment {
        /// Its name.
        variable: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Device(error) => error.fmt(f),
            Error::Environment { variable, expected, found } => {
                write!(f, "{variable}: expected {expected}, found '{found}'")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Device(error) => Some(error),
            Error::Environment { .. } => None,
        }
    }
}

impl From<device::Error> for Error {
    fn from(error: device::Error) -> Error {
        Error::Device(error)
    }
}

/// An error of an allocation of `bytes` bytes, as the graph knows it.
pub(crate) fn backend_error(error: device::Error, what: &str, bytes: usize) -> BackendError {
    match error {
        device::Error::BufferLength { .. } => BackendError::OutOfMemory { what: what.into(), bytes },
        other => BackendError::Device(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn errors_say_what_was_found_and_expected() {
        let environment =
            Error::Environment { variable: "SMELT_GEMM", expected: "0 or 1", found: "off".into() };
        assert_eq!(environment.to_string(), "SMELT_GEMM: expected 0 or 1, found 'off'");
        assert!(environment.source().is_none());
        let device = Error::from(device::Error::NoPipeline);
        assert_eq!(device.to_string(), "dispatch without a pipeline");
        assert!(device.source().is_some());
    }

    #[test]
    fn a_buffer_past_the_limit_is_a_lack_of_memory() {
        let refused = device::Error::BufferLength { label: "x".into(), length: 9, limit: 8 };
        let expected = BackendError::OutOfMemory { what: "a buffer".into(), bytes: 9 };
        assert_eq!(backend_error(refused, "a buffer", 9), expected);
        let other = backend_error(device::Error::NoPipeline, "a buffer", 9);
        assert_eq!(other, BackendError::Device("dispatch without a pipeline".into()));
    }
}
