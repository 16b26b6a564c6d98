//! What can be wrong with a request to encode, decode or cast blocks.

use std::fmt;

use crate::Format;

/// Why blocks could not be encoded, decoded or cast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Error {
    /// The number of elements is not a whole number of blocks.
    PartialBlock {
        /// The format of the blocks.
        format: Format,
        /// The number of elements given.
        elements: usize,
    },
    /// The number of bytes is not that of the elements.
    ByteLength {
        /// The format of the blocks.
        format: Format,
        /// The number of elements given.
        elements: usize,
        /// The bytes that so many elements take.
        expected: usize,
        /// The bytes given.
        found: usize,
    },
    /// The bytes to cast are not a whole number of blocks.
    PartialBytes {
        /// The format of the blocks.
        format: Format,
        /// The bytes given.
        bytes: usize,
    },
    /// The bytes to cast do not start at an address that the block structure can have.
    Misaligned {
        /// The format of the blocks.
        format: Format,
        /// The alignment of the structure.
        alignment: usize,
        /// Where the bytes start.
        address: usize,
    },
    /// A value to encode is NaN or infinite.
    NotFinite {
        /// The format asked for.
        format: Format,
        /// The index of the value.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A value to encode, or the scale that its block would need, is too large for the format.
    OutOfRange {
        /// The format asked for.
        format: Format,
        /// The index of the value of largest magnitude in the block.
        index: usize,
        /// That value.
        value: f32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::PartialBlock { format, elements } => write!(
                f,
                "{elements} elements are not a whole number of {format} blocks of {} elements",
                format.block_len()
            ),
            Error::ByteLength { format, elements, expected, found } => {
                write!(f, "{elements} elements of {format} take {expected} bytes, found {found}")
            }
            Error::PartialBytes { format, bytes } => write!(
                f,
                "{bytes} bytes are not a whole number of {format} blocks of {} bytes",
                format.block_bytes()
            ),
            Error::Misaligned { format, alignment, address } => write!(
                f,
                "{format} blocks must start at a multiple of {alignment} bytes, found address {address:#x}"
            ),
            Error::NotFinite { format, index, value } => {
                write!(f, "cannot encode {value} at index {index} as {format}: values must be finite")
            }
            Error::OutOfRange { format, index, value } => {
                write!(f, "cannot encode {value} at index {index} as {format}: the magnitude is too large")
            }
        }
    }
}

impl std::error::Error for Error {}
