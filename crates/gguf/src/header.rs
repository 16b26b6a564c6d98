//! The header of one file: version, metadata and tensor table.

use crate::validate::{Layout, validate};
use crate::{Error, Metadata, decode};
use quant::Format;

/// A tensor's entry in the table, found valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// One to four dimensions, none of them 0, the contiguous one (the elements of a row) first.
    pub shape: Vec<u64>,
    /// How the elements are stored.
    pub format: Format,
    /// The index of the file that has the data, among [`File::parts`](crate::File::parts).
    pub part: usize,
    /// Where in that file the data is, in bytes from the file's beginning.
    pub offset: u64,
    /// Bytes of the data.
    pub len: u64,
}

impl TensorInfo {
    /// The number of elements. (The product fits: it was checked when the file was opened.)
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Everything before the tensors' data, found valid.
#[derive(Clone, Debug)]
pub struct Header {
    version: u32,
    alignment: u64,
    data_start: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
}

impl Header {
    /// Reads the header of a file, given all the file's bytes.
    ///
    /// # Errors
    /// Anything about the file's content in [`Error`]; the path is not known here.
    pub fn parse(bytes: &[u8]) -> Result<Header, Error> {
        Header::parse_prefix(bytes, bytes.len() as u64)
    }

    /// Reads the header of a file of `file_len` bytes, given the first of them. Bytes past the header are not looked
    /// at, so they need not be there: this is for files that are not on this machine yet.
    ///
    /// # Errors
    /// As [`parse`](Header::parse). [`Error::Truncated`] or [`Error::Count`] if the header is longer than `bytes`.
    pub fn parse_prefix(bytes: &[u8], file_len: u64) -> Result<Header, Error> {
        let Layout { version, alignment, data_start, entries, tensors } = validate(bytes, file_len)?;
        let mut metadata = Metadata::default();
        for entry in &entries {
            metadata.insert(entry.key, decode::value(entry)?);
        }
        Ok(Header { version, alignment, data_start, metadata, tensors })
    }

    /// The version of the format, 2 or 3. (They differ only in that 3 allows big-endian files.)
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What the offsets of tensors, from [`data_start`](Header::data_start), are multiples of.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Where in the file the data of tensors begins. A file without tensors may end before.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors, in the order of the file. Their [`part`](TensorInfo::part) is 0.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The metadata and the tensors, for keeps.
    pub(crate) fn into_parts(self) -> (Metadata, Vec<TensorInfo>) {
        (self.metadata, self.tensors)
    }
}
