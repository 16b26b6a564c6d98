//! The errors of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

/// A file could not be read, with the file that it was.
#[derive(Debug)]
pub struct Error {
    path: Option<PathBuf>,
    kind: ErrorKind,
}

/// What is wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused.
    Io(std::io::Error),
    /// The file does not begin with `GGUF`.
    Magic {
        /// Its first bytes, at most 9.
        found: Vec<u8>,
    },
    /// The version's bytes are in the order of a big-endian machine.
    BigEndian,
    /// A version that is not read.
    Version(u32),
    /// The header ends before it is complete.
    Truncated {
        /// What was being read.
        what: String,
        /// Where it begins.
        offset: u64,
        /// Bytes that it takes at least.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// An unknown metadata type.
    ValueType {
        /// The key.
        key: String,
        /// The type's number.
        found: u32,
    },
    /// Arrays in arrays, too deep.
    Nesting {
        /// The key.
        key: String,
        /// The deepest nesting that is read.
        limit: usize,
    },
    /// A key or tensor name that is not UTF-8, or too long.
    Name {
        /// Where it begins.
        offset: u64,
        /// What is wrong with it.
        message: String,
    },
    /// The same key twice.
    DuplicateKey(String),
    /// The same tensor name twice.
    DuplicateTensor(String),
    /// A key has another type than its reader expects.
    Type {
        /// The key.
        key: String,
        /// The type in the file.
        found: ValueType,
        /// What the reader expects.
        expected: &'static str,
    },
    /// A key that must be there is not.
    MissingKey(String),
    /// A key's value is out of range.
    Value {
        /// The key.
        key: String,
        /// The value.
        found: String,
        /// What is allowed.
        expected: String,
    },
    /// A tensor has no dimensions or more than four, or one of size 0.
    Dimensions {
        /// The tensor.
        tensor: String,
        /// What was found.
        found: String,
    },
    /// A tensor of a format that is not read.
    Format {
        /// The tensor.
        tensor: String,
        /// The format's number.
        id: u32,
        /// Its name, if it is a known one.
        name: Option<&'static str>,
    },
    /// A tensor's row is no whole number of blocks.
    Block {
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        row: u64,
        /// Its format.
        format: quant::Format,
    },
    /// A tensor's size or offset does not fit in 64 bits.
    Overflow {
        /// The tensor.
        tensor: String,
        /// What does not fit.
        what: String,
    },
    /// A tensor's offset is no multiple of the alignment.
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A tensor lies behind the end of the file.
    Incomplete {
        /// The tensor.
        tensor: String,
        /// Where the tensor's bytes end.
        end: u64,
        /// The length of the file.
        len: u64,
    },
    /// Two tensors share bytes.
    Overlap {
        /// The one that begins first.
        first: String,
        /// The one that begins before it ends.
        second: String,
    },
    /// The shards do not belong together.
    Split(String),
}

use crate::ValueType;

impl Error {
    /// The file, if the error is about one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What is wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The same error, about this file.
    pub(crate) fn at(mut self, path: &Path) -> Error {
        self.path.get_or_insert_with(|| path.to_path_buf());
        self
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Error {
        Error { path: None, kind }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        self.kind.fmt(f)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Io(error) => error.fmt(f),
            ErrorKind::Magic { found } => {
                let hint = match found.as_slice() {
                    [] => "the file is empty",
                    [b'F', b'U', b'G', b'G', ..] => "the bytes of the magic are reversed",
                    [b'P', b'K', ..] => "this looks like a zip archive or a PyTorch file",
                    [b'<', ..] => "this looks like a web page: the download failed?",
                    [b'v', b'e', b'r', b's', ..] => "this looks like a Git LFS pointer: fetch the real file",
                    [b'g', b'g', ..] | [b'l', b'm', b'g', b'g', ..] => "this is a format from before GGUF",
                    [_, _, _, _, _, _, _, _, b'{'] => "this looks like a safetensors file",
                    _ => "this is no GGUF file",
                };
                let shown = String::from_utf8_lossy(&found[..found.len().min(4)]).escape_debug().to_string();
                write!(f, "not a GGUF file: expected the magic 'GGUF', found '{shown}' ({hint})")
            }
            ErrorKind::BigEndian => f.write_str("a big-endian GGUF file: only little-endian files are read"),
            ErrorKind::Version(1) => {
                f.write_str("GGUF version 1 is not read: convert the file anew (expected 2 or 3)")
            }
            ErrorKind::Version(version) => write!(f, "GGUF version: expected 2 or 3, found {version}"),
            ErrorKind::Truncated { what, offset, needed, left } => write!(
                f,
                "{what}, at byte {offset}: needs {needed} bytes, but {left} are left (download incomplete?)"
            ),
            ErrorKind::ValueType { key, found } => {
                write!(f, "key '{key}': expected a value type of 0 to 12, found {found}")
            }
            ErrorKind::Nesting { key, limit } => {
                write!(f, "key '{key}': arrays are nested deeper than {limit}")
            }
            ErrorKind::Name { offset, message } => write!(f, "name at byte {offset}: {message}"),
            ErrorKind::DuplicateKey(key) => write!(f, "key '{key}' is there twice"),
            ErrorKind::DuplicateTensor(name) => write!(f, "tensor '{name}' is there twice"),
            ErrorKind::Type { key, found, expected } => {
                write!(f, "key '{key}': expected {expected}, found {found}")
            }
            ErrorKind::MissingKey(key) => write!(f, "key '{key}' is missing"),
            ErrorKind::Value { key, found, expected } => {
                write!(f, "key '{key}': expected {expected}, found {found}")
            }
            ErrorKind::Dimensions { tensor, found } => {
                write!(f, "tensor '{tensor}': expected 1 to 4 dimensions of at least 1, found {found}")
            }
            ErrorKind::Format { tensor, id, name } => match name {
                Some(name) => write!(f, "tensor '{tensor}': format {name} (type {id}) is not supported"),
                None => write!(f, "tensor '{tensor}': unknown type {id}"),
            },
            ErrorKind::Block { tensor, row, format } => write!(
                f,
                "tensor '{tensor}': expected rows of a multiple of {} elements for {format}, found {row}",
                format.block_len()
            ),
            ErrorKind::Overflow { tensor, what } => {
                write!(f, "tensor '{tensor}': {what} does not fit in 63 bits")
            }
            ErrorKind::Misaligned { tensor, offset, alignment } => {
                write!(
                    f,
                    "tensor '{tensor}': expected an offset that is a multiple of {alignment}, found {offset}"
                )
            }
            ErrorKind::Incomplete { tensor, end, len } => write!(
                f,
                "tensor '{tensor}' ends at byte {end}, but the file has {len}: {} bytes are missing (download incomplete?)",
                end - len
            ),
            ErrorKind::Overlap { first, second } => {
                write!(f, "tensor '{second}' begins inside tensor '{first}'")
            }
            ErrorKind::Split(message) => write!(f, "split file: {message}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}
