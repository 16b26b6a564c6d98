//! The errors of this crate. Every message says what was found, what was expected, and where.

use crate::cursor::Short;
use quant::Format;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why a file cannot be read, a metadata value not be used, or a file not be written.
///
/// Errors of [`File::open`](crate::File::open) are [`Error::InFile`] and begin with the path; the others know
/// keys, tensors and offsets, and leave the path to the caller.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Any other error, about this file.
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it. Never `InFile` itself.
        error: Box<Error>,
    },
    /// The operating system refused.
    Io(std::io::Error),
    /// The path is a directory, a pipe or a device.
    NotAFile,
    /// There is not one byte.
    Empty,
    /// The file does not begin with `GGUF`.
    Magic {
        /// Its first bytes, at most four.
        found: Vec<u8>,
        /// What the file seems to be instead.
        looks_like: Option<&'static str>,
    },
    /// The file was written for big-endian machines: the bytes of its version are in their order.
    BigEndian {
        /// Those bytes.
        found: [u8; 4],
    },
    /// A version of the format that is not read.
    Version(u32),
    /// The header breaks off.
    Truncated {
        /// What was being read.
        what: String,
        /// Where in the file the read began.
        offset: u64,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that there are.
        left: u64,
    },
    /// A claimed count of things that cannot fit in what is left of the file.
    Count {
        /// What is counted.
        what: String,
        /// The claimed count.
        count: u64,
        /// Bytes that one of them takes at least.
        least: u64,
        /// Where in the file they begin.
        offset: u64,
        /// Bytes that there are.
        left: u64,
    },
    /// A key or a tensor's name is not UTF-8.
    NameNotUtf8 {
        /// Which name.
        what: String,
        /// Where in the file it is.
        offset: u64,
        /// It, with U+FFFD for what is not UTF-8.
        lossy: String,
    },
    /// A key or a tensor's name is longer than the format allows.
    NameTooLong {
        /// Which name.
        what: String,
        /// Where in the file it is.
        offset: u64,
        /// Its bytes.
        len: u64,
        /// How many are allowed.
        limit: u64,
    },
    /// A metadata type that the format does not have.
    ValueType {
        /// The key.
        key: String,
        /// Where in the file the type is.
        offset: u64,
        /// The type's id.
        id: u32,
    },
    /// A flag that is neither 0 nor 1.
    Bool {
        /// The key.
        key: String,
        /// Where in the file the flag is.
        offset: u64,
        /// Its byte.
        found: u8,
    },
    /// Arrays inside arrays, too deep.
    Nesting {
        /// The key.
        key: String,
        /// Where in the file the first array too deep is.
        offset: u64,
        /// How deep arrays may be.
        limit: usize,
    },
    /// The same key twice.
    DuplicateKey(String),
    /// `general.alignment` is not a power of two in the allowed range.
    Alignment {
        /// Its value.
        found: i128,
        /// The smallest allowed.
        least: u64,
        /// The greatest allowed.
        most: u64,
    },
    /// A key that must be there is missing.
    MissingKey(String),
    /// A key's value is of another type than its reader can use.
    WrongType {
        /// The key.
        key: String,
        /// What the file has.
        found: String,
        /// What the reader can use.
        expected: &'static str,
    },
    /// A key's value is an integer that does not fit in the reader's type.
    OutOfRange {
        /// The key.
        key: String,
        /// The integer.
        found: i128,
        /// The type.
        expected: &'static str,
    },
    /// A tensor has no dimensions or too many.
    Dimensions {
        /// The tensor.
        tensor: String,
        /// How many it has.
        found: u64,
    },
    /// A tensor has a dimension of 0.
    ZeroDimension {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        shape: Vec<u64>,
    },
    /// A tensor's elements are stored in a way that is not read.
    TensorType {
        /// The tensor.
        tensor: String,
        /// The id of its type.
        id: u32,
        /// The name of the type, if it is one of the format's.
        name: Option<&'static str>,
    },
    /// A tensor's rows are no whole number of blocks.
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        row: u64,
        /// How they are stored.
        format: Format,
    },
    /// A tensor's size or position does not fit in 64 bits.
    Overflow {
        /// The tensor.
        tensor: String,
        /// What does not fit.
        what: String,
    },
    /// A tensor's data begins at an offset that is not a multiple of the alignment.
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset from the beginning of the data.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// The same tensor twice.
    DuplicateTensor(String),
    /// Two tensors share bytes.
    Overlap {
        /// The one that begins first.
        first: String,
        /// Where in the file it ends.
        first_end: u64,
        /// The one that begins before that.
        second: String,
        /// Where in the file it begins.
        second_start: u64,
    },
    /// The file ends before its tensors do.
    Incomplete {
        /// The tensor whose data ends last.
        tensor: String,
        /// Where in the file that end should be.
        end: u64,
        /// Bytes that the file has.
        len: u64,
    },
    /// One shard of a model is not named as shards are, so that the others cannot be found.
    ShardName {
        /// `split.count`.
        count: u64,
        /// The file's name.
        found: String,
    },
    /// A shard of a model is missing.
    MissingShard {
        /// Where it should be.
        path: PathBuf,
        /// How many there should be.
        count: u64,
    },
    /// A shard's `split.no` or `split.count` is not what its name says.
    ShardNumber {
        /// The key.
        key: &'static str,
        /// Its value, if it is there.
        found: Option<u64>,
        /// What it should be.
        expected: u64,
    },
    /// The shards have fewer or more tensors than `split.tensors.count` says.
    ShardTensors {
        /// The tensors of all shards.
        found: u64,
        /// `split.tensors.count`.
        expected: u64,
    },
    /// Data of another size than its tensor's shape and format take was given to a writer.
    DataLength {
        /// The tensor.
        tensor: String,
        /// Bytes that were given.
        found: u64,
        /// Bytes that its shape takes.
        expected: u64,
    },
}

impl Error {
    /// The file that the error is about, where known.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Error::InFile { path, .. } => Some(path),
            _ => None,
        }
    }

    /// The error without the file: never [`Error::InFile`].
    pub fn kind(&self) -> &Error {
        match self {
            Error::InFile { error, .. } => error.kind(),
            error => error,
        }
    }

    /// The same error, about this file.
    pub(crate) fn in_file(self, path: &Path) -> Error {
        match self {
            Error::InFile { .. } => self,
            error => Error::InFile { path: path.into(), error: Box::new(error) },
        }
    }
}

impl Short {
    /// The error of a read of `what` that came up short.
    pub(crate) fn reading(self, what: impl fmt::Display) -> Error {
        let Short { offset, needed, left } = self;
        Error::Truncated { what: what.to_string(), offset, needed, left }
    }
}

/// A number of bytes that are not there, in words that go before "missing".
struct Bytes(u128);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("1 byte is"),
            count => write!(f, "{count} bytes are"),
        }
    }
}

/// A name out of a file, fit for a message: control characters escaped, and no longer than [`Shown::LIMIT`].
pub(crate) struct Shown<'a>(pub &'a str);

impl Shown<'_> {
    /// Characters shown of a name.
    const LIMIT: usize = 100;
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.char_indices().nth(Shown::LIMIT).map_or(self.0, |(end, _)| &self.0[..end]);
        let more = if shown.len() < self.0.len() { "..." } else { "" };
        write!(f, "'{}{more}'", shown.escape_debug())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InFile { path, error } => write!(f, "{}: {error}", path.display()),
            Error::Io(error) => error.fmt(f),
            Error::NotAFile => f.write_str("not a regular file: expected a GGUF file"),
            Error::Empty => f.write_str(
                "not a GGUF file: expected 'GGUF' at byte 0, but the file is empty (download incomplete?)",
            ),
            Error::Magic { found, looks_like } => {
                write!(f, "not a GGUF file: expected 'GGUF' at byte 0, found '{}'", found.escape_ascii())?;
                looks_like.map_or(Ok(()), |what| write!(f, " (this looks like {what})"))
            }
            Error::BigEndian { found } => write!(
                f,
                "a big-endian GGUF file, which is not read: expected a little-endian version at byte 4, found '{}'",
                found.escape_ascii()
            ),
            Error::Version(1) => f.write_str(
                "GGUF version 1 at byte 4, which is not read: expected 2 or 3 (convert the model again)",
            ),
            Error::Version(version) => write!(f, "GGUF version at byte 4: expected 2 or 3, found {version}"),
            Error::Truncated { what, offset, needed, left } => write!(
                f,
                "{what}: expected {needed} bytes at byte {offset}, found {left}: at least {} missing (download incomplete?)",
                Bytes(u128::from(needed.saturating_sub(*left)))
            ),
            Error::Count { what, count, least, offset, left } => write!(
                f,
                "{what}: found a count of {count}, of at least {least} bytes each, but only {left} bytes at byte \
                 {offset}: at least {} missing (damaged, or download incomplete?)",
                Bytes((u128::from(*count) * u128::from(*least)).saturating_sub((*left).into()))
            ),
            Error::NameNotUtf8 { what, offset, lossy } => {
                write!(f, "{what} at byte {offset}: expected UTF-8, found {}", Shown(lossy))
            }
            Error::NameTooLong { what, offset, len, limit } => {
                write!(f, "{what} at byte {offset}: expected at most {limit} bytes, found {len}")
            }
            Error::ValueType { key, offset, id } => {
                write!(f, "key {}: expected a value type of 0 to 12 at byte {offset}, found {id}", Shown(key))
            }
            Error::Bool { key, offset, found } => {
                write!(f, "key {}: expected a bool of 0 or 1 at byte {offset}, found {found}", Shown(key))
            }
            Error::Nesting { key, offset, limit } => write!(
                f,
                "key {}: expected arrays nested at most {limit} deep, found a deeper one at byte {offset}",
                Shown(key)
            ),
            Error::DuplicateKey(key) => write!(f, "key {}: expected once, found twice", Shown(key)),
            Error::Alignment { found, least, most } => write!(
                f,
                "key 'general.alignment': expected a power of two from {least} to {most}, found {found}"
            ),
            Error::MissingKey(key) => write!(f, "key {} is missing", Shown(key)),
            Error::WrongType { key, found, expected } => {
                write!(f, "key {}: expected {expected}, found {found}", Shown(key))
            }
            Error::OutOfRange { key, found, expected } => {
                write!(f, "key {}: expected an integer that fits in {expected}, found {found}", Shown(key))
            }
            Error::Dimensions { tensor, found } => {
                write!(f, "tensor {}: expected 1 to 4 dimensions, found {found}", Shown(tensor))
            }
            Error::ZeroDimension { tensor, shape } => {
                write!(f, "tensor {}: expected dimensions of at least 1, found {shape:?}", Shown(tensor))
            }
            Error::TensorType { tensor, id, name: Some(name) } => {
                write!(f, "tensor {}: found type {id}, {name}, which is not supported", Shown(tensor))
            }
            Error::TensorType { tensor, id, name: None } => {
                write!(f, "tensor {}: found type {id}, which is unknown", Shown(tensor))
            }
            Error::PartialBlock { tensor, row, format } => write!(
                f,
                "tensor {}: expected rows of a multiple of {} elements for {format}, found {row}",
                Shown(tensor),
                format.block_len()
            ),
            Error::Overflow { tensor, what } => {
                write!(f, "tensor {}: expected sizes that fit in 64 bits, found {what}", Shown(tensor))
            }
            Error::Misaligned { tensor, offset, alignment } => write!(
                f,
                "tensor {}: expected a data offset that is a multiple of {alignment}, found {offset}",
                Shown(tensor)
            ),
            Error::DuplicateTensor(name) => write!(f, "tensor {}: expected once, found twice", Shown(name)),
            Error::Overlap { first, first_end, second, second_start } => write!(
                f,
                "tensor {}: begins at byte {second_start}, but expected after tensor {}, which ends at byte \
                 {first_end}",
                Shown(second),
                Shown(first)
            ),
            Error::Incomplete { tensor, end, len } => write!(
                f,
                "tensor {}: expected its data to end at byte {end}, but the file has {len}: {} missing \
                 (download incomplete?)",
                Shown(tensor),
                Bytes(u128::from(end.saturating_sub(*len)))
            ),
            Error::ShardName { count, found } => write!(
                f,
                "one of {count} shards ('split.count'): expected a name like NAME-00001-of-{count:05}.gguf, found {}",
                Shown(found)
            ),
            Error::MissingShard { path, count } => {
                write!(f, "one of {count} shards: expected {} too, but not found", path.display())
            }
            Error::ShardNumber { key, found: Some(found), expected } => {
                write!(f, "key '{key}': expected {expected}, as the file's name says, found {found}")
            }
            Error::ShardNumber { key, found: None, expected } => {
                write!(f, "key '{key}': expected {expected}, as the file's name says, but not found")
            }
            Error::ShardTensors { found, expected } => {
                write!(
                    f,
                    "key 'split.tensors.count': expected {expected} tensors in all shards, found {found}"
                )
            }
            Error::DataLength { tensor, found, expected } => {
                write!(f, "tensor {}: expected {expected} bytes of data, found {found}", Shown(tensor))
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // A cause that the message includes already is not repeated as the source: an `InFile` hands on that of
        // the error inside.
        match self {
            Error::InFile { error, .. } => error.source(),
            _ => None,
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::Io(error)
    }
}
