//! The GGUF file format, versions 2 and 3: reading (memory-mapped, split files), validating and writing.
//!
//! [`File::open`] maps a model with all its shards. Before it returns, one function has checked every count, length,
//! name, size, range and overlap in the headers, and compared each with the bytes that are there, before anything was
//! allocated for it; after that, [`File::data`] is a plain slice. [`Header::parse`] does the same for bytes in memory,
//! and [`Writer`] writes files of version 3.
//!
//! This crate knows bytes, names and shapes. It does not know what a model is, or how elements are encoded: the sizes
//! of blocks come from [`quant::Format`].
//!
//! ```
//! use gguf::{Header, Writer};
//! use quant::Format;
//!
//! let mut writer = Writer::new();
//! writer.metadata("general.architecture", "llama");
//! writer.tensor("output_norm.weight", &[4], Format::F32, vec![0; 16]);
//! let bytes = writer.to_bytes()?;
//!
//! let header = Header::parse(&bytes)?;
//! assert_eq!(header.metadata().require_str("general.architecture")?, "llama");
//! assert_eq!(header.tensors()[0].shape, [4]);
//!
//! let cut = Header::parse(&bytes[..bytes.len() - 17]).unwrap_err();
//! assert_eq!(
//!     cut.to_string(),
//!     "tensor 'output_norm.weight': expected its data to end at byte 144, but the file has 143: 1 byte is missing \
//!      (download incomplete?)"
//! );
//! # Ok::<(), gguf::Error>(())
//! ```

#![warn(missing_docs)]

mod cursor;
mod decode;
mod error;
mod file;
mod header;
mod metadata;
mod split;
mod validate;
mod value;
mod writer;

pub use error::Error;
pub use file::{File, Part};
pub use header::{Header, TensorInfo};
pub use metadata::Metadata;
pub use value::{Array, Value, ValueType};
pub use writer::Writer;
