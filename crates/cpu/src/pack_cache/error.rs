//! Why a file of packed weights is of no use.

use std::{fmt, io};

/// Why a file of packed weights is not used, or was not written.
#[derive(Debug)]
pub enum PackCacheError {
    /// The file could not be read or written.
    Io(io::Error),
    /// The file ends too early, or goes on too long.
    Length {
        /// Bytes that it should have, or at least.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// The file is something else.
    Magic,
    /// Another version of this program made it.
    Version {
        /// Ours.
        expected: u32,
        /// The file's.
        found: u32,
    },
    /// It was made from another model, or another state of it.
    Identity,
    /// Header or table do not have their checksum.
    Checksum,
    /// An entry of the table means nothing.
    Entry {
        /// Its number.
        index: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A weight does not have its checksum.
    Damaged {
        /// The weight's name.
        weight: String,
    },
}

impl fmt::Display for PackCacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PackCacheError::Io(error) => error.fmt(f),
            PackCacheError::Length { expected, found } => {
                write!(f, "expected {expected} bytes, found {found}")
            }
            PackCacheError::Magic => f.write_str("no file of packed weights"),
            PackCacheError::Version { expected, found } => {
                write!(f, "expected version {expected}, found {found}")
            }
            PackCacheError::Identity => f.write_str("made from another model, or before the model changed"),
            PackCacheError::Checksum => f.write_str("the table does not have its checksum"),
            PackCacheError::Entry { index, what } => write!(f, "entry {index} of the table: {what}"),
            PackCacheError::Damaged { weight } => write!(f, "weight '{weight}' does not have its checksum"),
        }
    }
}

impl std::error::Error for PackCacheError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PackCacheError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for PackCacheError {
    fn from(error: io::Error) -> PackCacheError {
        PackCacheError::Io(error)
    }
}
