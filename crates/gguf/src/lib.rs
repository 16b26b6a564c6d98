//! The GGUF file format: reading (memory-mapped, split files), validating and writing.
//!
//! [`File::open`] maps a model, finds all its shards and checks every count, length, range and overlap before
//! anything is allocated for it; after that, [`File::data`] cannot fail. [`Writer`] writes version 3.
//!
//! This crate knows bytes, names and shapes. It does not know what a model is.
//!
//! ```
//! use gguf::{Header, Value, Writer};
//! use quant::Format;
//!
//! let mut writer = Writer::new();
//! writer.metadata("general.architecture", Value::String("llama".into()));
//! writer.tensor("output_norm.weight", &[4], Format::F32, vec![0; 16]);
//! let bytes = writer.to_bytes()?;
//!
//! let header = Header::parse(&bytes)?;
//! assert_eq!(header.metadata().require_str("general.architecture")?, "llama");
//! assert_eq!(header.tensors()[0].shape, [4]);
//! # Ok::<(), gguf::Error>(())
//! ```

mod cursor;
mod error;
mod file;
mod header;
mod metadata;
mod validate;
mod value;
mod writer;

pub use error::{Error, ErrorKind};
pub use file::{File, Part};
pub use header::{Header, TensorInfo};
pub use metadata::Metadata;
pub use value::{Array, Value, ValueType};
pub use writer::Writer;
